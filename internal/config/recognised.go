package config

import (
	"slices"
	"strings"
)

// Unused is a set variable that is known and has no effect in this version.
type Unused struct {
	Name string
	Why  string
}

// Unknown is a set QUEEN_ variable that nobody declared, most likely a typing mistake.
type Unknown struct {
	Name string
	// Nearest is the declared name that differs least, "" when none is close.
	Nearest string
}

const (
	whyLater    = "accepted, not used by this version"
	whyMesh     = "not needed: brokers tell each other through the database"
	whyInert    = "accepted, has no effect"
	whyNoFilter = "a filter of another program: use LOG_LEVEL"
)

// recognised are the variables of the contract that this version does not act on. A name that ends in an asterisk stands for
// every name with that beginning.
var recognised = []struct{ why, names string }{
	{whyLater, `QUEEN_V2_BUNDLE_LOG QUEEN_ADMISSION_INIT QUEEN_ADMISSION_MIN
		QUEEN_ADMISSION_SHARE_PUSH QUEEN_ADMISSION_SHARE_POP QUEEN_ADMISSION_SHARE_ACK QUEEN_ADMISSION_SHARE_MAINT
		QUEEN_V2_FUSION_MIN_FRAMES QUEEN_V2_FUSION_MIN_WAIT_MS
		QUEEN_ADMISSION_TRAIN_GAP_US QUEEN_ADMISSION_TICK_MS QUEEN_ADMISSION_NOSYNC_BUDGET QUEEN_ADMISSION_TRACE`},
	{whyLater, `QUEEN_LOG_RATES_MS QUEEN_LOG_TOPN_QUEUES`},
	{whyMesh, `QUEEN_MESH_PEERS QUEEN_UDP_PEERS QUEEN_MESH_PORT QUEEN_UDP_NOTIFY_PORT QUEEN_SYNC_SECRET
		QUEEN_SYNC_HEARTBEAT_MS QUEEN_SYNC_DEAD_THRESHOLD_MS`},
	{whyInert, `QUEEN_V2_FUSION_FRAMES QUEEN_ACK_FUSION_HOLD_MS QUEEN_POP_FUSION_SHARDS QUEEN_POP_FUSION_HOLD_MS QUEEN_SEG_PUSH_* QUEEN_SEG_POP_* QUEEN_VEGAS_*`},
	{whyNoFilter, `RUST_LOG`},
}

// classify sorts the names of set variables into those without effect and those nobody knows.
func classify(lookup Lookup, names []string) ([]Unused, []Unknown) {
	declared := declaredNames()
	why := map[string]string{}
	var prefixes []Unused
	known := slices.Clone(declared)
	for _, group := range recognised {
		for name := range strings.FieldsSeq(group.names) {
			if prefix, isPrefix := strings.CutSuffix(name, "*"); isPrefix {
				prefixes = append(prefixes, Unused{prefix, group.why})
				continue
			}
			why[name] = group.why
			known = append(known, name)
		}
	}
	var unused []Unused
	var unknown []Unknown
	for _, name := range slices.Sorted(slices.Values(names)) {
		if text, set := lookup(name); !set || text == "" || slices.Contains(declared, name) {
			continue
		}
		reason, isKnown := why[name]
		if !isKnown {
			if i := slices.IndexFunc(prefixes, func(p Unused) bool { return strings.HasPrefix(name, p.Name) }); i >= 0 {
				reason, isKnown = prefixes[i].Why, true
			}
		}
		switch {
		case isKnown:
			unused = append(unused, Unused{name, reason})
		case strings.HasPrefix(name, "QUEEN_"):
			unknown = append(unknown, Unknown{name, nearest(name, known)})
		}
	}
	return unused, unknown
}

// declaredNames lists every variable that has an effect, aliases included.
func declaredNames() []string {
	var names []string
	for s := range settings(&Config{}) {
		names = append(names, s.names...)
	}
	return names
}

// nearest is the candidate with the least edit distance to name, "" when the best differs in more than a third of its letters.
func nearest(name string, candidates []string) string {
	best, bestDistance := "", len(name)/3+1
	for _, candidate := range candidates {
		if d := editDistance(name, candidate); d < bestDistance {
			best, bestDistance = candidate, d
		}
	}
	return best
}

// editDistance is the Levenshtein distance in bytes; the names are ASCII.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
