package stack

// Switches are settings that change what a broker's work costs and must not change what it does. Tests of behaviour run under each
// row.
var Switches = []struct {
	Name     string
	Settings map[string]string
}{
	{"defaults", nil},
	{"partitions found by the database", map[string]string{"QUEEN_HOTLIST": "0"}},
	{"every pop in a claim of its own", map[string]string{"QUEEN_POP_FUSION": "0"}},
	{"every message claimed by a pop", map[string]string{"QUEEN_POP_HANDOVER": "0"}},
	{"every ack resolved by its ids", map[string]string{"QUEEN_ACK_REGISTRY": "0"}},
	{"every push looked up by the database", map[string]string{"QUEEN_DEDUP_CACHE": "0", "QUEEN_V2_FUSION_SHARDS": "8", "QUEEN_V2_BUNDLE_MAX": "1"}},
	{"every ack in a commit of its own", map[string]string{"QUEEN_ACK_FUSION": "0"}},
}
