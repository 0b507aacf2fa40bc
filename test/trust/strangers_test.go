package trust

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/test/stack"
)

// identities are the names and ids of one tenant's things, by the name under which routes ask for them.
type identities map[string]string

// bodies are the requests of the routes that take one; {name} stands for an identity. A route with a body and without a row here
// fails the test.
var bodies = map[string]string{
	"POST /api/v1/push":               `{"items":[{"queue":"{queue}","partition":"{partition}","transactionId":"{transactionId}","payload":1}]}`,
	"POST /api/v1/ack":                `{"transactionId":"{transactionId}","partitionId":"{partitionId}","leaseId":"{leaseId}","consumerGroup":"{group}"}`,
	"POST /api/v1/ack/batch":          `{"consumerGroup":"{group}","acknowledgments":[{"transactionId":"{transactionId}","partitionId":"{partitionId}","leaseId":"{leaseId}"}]}`,
	"POST /api/v1/transaction":        `{"operations":[{"type":"ack","transactionId":"{transactionId}","partitionId":"{partitionId}","consumerGroup":"{group}"}],"requiredLeases":["{leaseId}"]}`,
	"POST /api/v1/configure":          `{"queue":"{queue}","options":{"leaseTime":7}}`,
	"POST /api/v1/dlq/tasks":          `{"kind":"purge","filter":{"queue":"{queue}"}}`,
	"POST /api/v1/traces":             `{"transactionId":"{transactionId}","partitionId":"{partitionId}","data":1,"traceNames":["{traceName}"]}`,
	"POST /api/v1/leases/release":     `{"partitionId":"{partitionId}","consumerGroup":"{group}","leaseId":"{leaseId}"}`,
	"POST /internal/api/notify":       `{"queue":"{queue}","partition":"{partition}"}`,
	"POST /streams/v1/queries":        `{"name":"{query}","source_queue":"{queue}","config_hash":"another"}`,
	"POST /streams/v1/state/get":      `{"query_id":"{queryId}","partition_id":"{partitionId}","keys":["k"]}`,
	"POST /streams/v1/state/ripe":     `{"query_id":"{queryId}","consumer_group":"{group}"}`,
	"POST /streams/v1/cycle":          `{"query_id":"{queryId}","partition_id":"{partitionId}","consumer_group":"{group}","state_ops":[{"type":"upsert","key":"k","value":2}],"ack":{"leaseId":"{leaseId}","transactionId":"{transactionId}"}}`,
	"POST /api/v1/dlq/{id}/replay":    `{}`,
	"POST /api/v1/stats/refresh":      ``,
	"POST /api/v1/system/maintenance": ``, "POST /api/v1/system/maintenance/pop": ``, "POST /auth/logout": ``,
	"POST /api/v1/lease/{leaseId}/extend":                                             `{"seconds":600}`,
	"POST /api/v1/dlq/tasks/{id}/cancel":                                              `{}`,
	"POST /api/v1/messages/{partitionId}/{transactionId}/retry":                       `{}`,
	"POST /api/v1/resources/queues/{queue}/purge":                                     `{"mode":"all"}`,
	"POST /api/v1/consumer-groups/{group}/subscription":                               `{"subscriptionTimestamp":"2020-01-01T00:00:00Z"}`,
	"POST /api/v1/consumer-groups/{group}/queues/{queue}/seek":                        `{"toEnd":true}`,
	"POST /api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek": `{"toEnd":true}`,
}

// A described is one route of the broker's own description.
type described struct {
	method, path string
	public       bool
	queries      []string
}

// describedRoutes reads all routes from the broker.
func describedRoutes(t *testing.T, c *caller) []described {
	t.Helper()
	var document struct {
		Paths map[string]map[string]struct {
			Parameters []struct{ Name, In string }
		}
	}
	a := c.call("GET", "/openapi.json", "")
	require.NoError(t, json.Unmarshal([]byte(a.body), &document))
	var out []described
	for _, path := range slices.Sorted(maps.Keys(document.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(document.Paths[path])) {
			r := described{method: strings.ToUpper(method), path: path}
			r.public = !strings.HasPrefix(path, "/api/") && !strings.HasPrefix(path, "/streams/") && !strings.HasPrefix(path, "/internal/")
			for _, parameter := range document.Paths[path][method].Parameters {
				if parameter.In == "query" {
					r.queries = append(r.queries, parameter.Name)
				}
			}
			out = append(out, r)
		}
	}
	require.Greater(t, len(out), 70)
	return out
}

// requests are the ways to address things through a route: by path and body, with each query parameter alone, and with all.
func (r described) requests(t *testing.T, ids identities) (paths []string, body string) {
	t.Helper()
	fill := func(text string) string {
		id := ids["dlqId"]
		if strings.Contains(r.path, "/tasks/") {
			id = ids["taskId"]
		}
		text = strings.ReplaceAll(text, "{id}", id)
		for name, value := range ids {
			text = strings.ReplaceAll(text, "{"+name+"}", value)
		}
		return text
	}
	path := fill(r.path)
	require.NotContains(t, path, "{", "give the path parameter a value")
	template, known := bodies[r.method+" "+r.path]
	require.True(t, known || r.method != "POST", "give %s %s a body", r.method, r.path)
	paths = []string{path}
	all := url.Values{}
	for _, name := range r.queries {
		if value, ok := ids[name]; ok {
			all.Set(name, value)
			paths = append(paths, path+"?"+url.Values{name: {value}}.Encode())
		}
	}
	if len(all) > 1 {
		paths = append(paths, path+"?"+all.Encode())
	}
	return paths, fill(template)
}

// addresses reports whether a request names anything.
func (r described) addresses(path string) bool {
	return strings.Contains(r.path, "{") || strings.Contains(bodies[r.method+" "+r.path], "{q") || strings.Contains(bodies[r.method+" "+r.path], "{p") ||
		strings.Contains(path, "?")
}

// furnish gives the owner one of everything and returns how it is addressed.
func furnish(t *testing.T, s *stack.Stack, owner *caller) identities {
	t.Helper()
	ids := identities{
		"queue": "ownns.owntask.queue", "namespace": "ownns", "ns": "ownns", "task": "owntask", "partition": "own-partition", "prefix": "own-part",
		"group": "own-group", "traceName": "own-trace-name", "query": "own-query", "traceId": uuid.NewString(),
		"error": "own-failure", "hostname": "own-host",
	}
	ids["consumerGroup"] = ids["group"]
	must := func(method, path, body string) string {
		t.Helper()
		a := owner.call(method, path, body)
		require.Less(t, a.status, 300, "%s %s: %s", method, path, a.body)
		return a.body
	}
	owner.configure(ids["queue"], `{"leaseTime":600,"retryLimit":0,"deadLetterQueue":true,"maxSize":1000}`)
	for _, id := range []string{"own-dead", "own-live", "own-rest"} {
		must("POST", "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":%q,"partition":%q,"transactionId":%q,"traceId":%q,"payload":"own-payload"}]}`, ids["queue"], ids["partition"], id, ids["traceId"]))
	}
	dead := owner.pop(ids["queue"], "batch=1&consumerGroup="+ids["group"])
	require.Len(t, dead, 1)
	ids["partitionId"] = dead[0].PartitionID
	must("POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":"own-dead","partitionId":%q,"leaseId":%q,"status":"dlq","error":"own-failure","consumerGroup":%q}`, dead[0].PartitionID, dead[0].LeaseID, ids["group"]))
	live := owner.pop(ids["queue"], "batch=1&consumerGroup="+ids["group"])
	require.Len(t, live, 1)
	ids["leaseId"] = live[0].LeaseID
	var letter string
	require.NoError(t, s.DB.QueryRow(t.Context(), `SELECT id::text FROM queen.log_dlq WHERE partition_id = $1`, ids["partitionId"]).Scan(&letter))
	ids["dlqId"] = letter
	id := func(text, name string) string {
		t.Helper()
		var members map[string]any
		require.NoError(t, json.Unmarshal([]byte(text), &members))
		require.IsType(t, "", members[name], text)
		return members[name].(string)
	}
	must("POST", "/api/v1/traces", fmt.Sprintf(`{"transactionId":"own-live","partitionId":%q,"data":{"own":"own-data"},"traceNames":[%q]}`, ids["partitionId"], ids["traceName"]))
	ids["taskId"] = id(must("POST", "/api/v1/dlq/tasks", `{"kind":"purge","filter":{"queue":"nothing there"}}`), "id")
	require.Eventually(t, func() bool {
		return strings.Contains(must("GET", "/api/v1/dlq/tasks/"+ids["taskId"], ""), `"done"`)
	}, 20*time.Second, 20*time.Millisecond, "a task that finds nothing ends")
	ids["queryId"] = id(must("POST", "/streams/v1/queries", fmt.Sprintf(`{"name":%q,"source_queue":%q,"config_hash":"own"}`, ids["query"], ids["queue"])), "query_id")
	must("POST", "/streams/v1/cycle", fmt.Sprintf(`{"query_id":%q,"partition_id":%q,"state_ops":[{"type":"upsert","key":"k","value":"own-state"}]}`, ids["queryId"], ids["partitionId"]))
	must("POST", "/api/v1/stats/refresh", "")
	return ids
}

// rowsOf returns all rows that belong to a tenant, whichever way a table says so.
func rowsOf(t *testing.T, s *stack.Stack, tenant uuid.UUID) string {
	t.Helper()
	const queues = `SELECT id FROM queen.queues WHERE tenant_id = $1`
	const partitions = `SELECT p.id FROM queen.log_partitions p WHERE p.queue_id IN (` + queues + `)`
	// The first column of a table that is here says whose a row is.
	owners := []struct{ column, condition string }{
		{"tenant_id", `tenant_id = $1`},
		{"queue_id", `queue_id IN (` + queues + `)`},
		{"partition_id", `partition_id IN (` + partitions + `)`},
		{"query_id", `query_id IN (SELECT id FROM queen_streams.queries WHERE tenant_id = $1)`},
		{"trace_id", `trace_id IN (SELECT id FROM queen.message_traces WHERE partition_id IN (` + partitions + `))`},
	}
	rows, err := s.DB.Query(t.Context(), `SELECT format('%I.%I', table_schema, table_name), array_agg(column_name::text) FROM information_schema.columns
		WHERE table_schema LIKE 'queen%' GROUP BY 1 ORDER BY 1`)
	require.NoError(t, err)
	columns, names := map[string][]string{}, []string(nil)
	for rows.Next() {
		var name string
		var has []string
		require.NoError(t, rows.Scan(&name, &has))
		columns[name], names = has, append(names, name)
	}
	require.NoError(t, rows.Err())
	var all strings.Builder
	filled := map[string]bool{}
	for _, table := range names {
		if table == "queen.stats" {
			continue // figures computed from the rest, for all tenants at once, by whoever asks for a refresh
		}
		for _, owner := range owners {
			if !slices.Contains(columns[table], owner.column) {
				continue
			}
			var text *string
			require.NoError(t, s.DB.QueryRow(t.Context(), `SELECT string_agg(x::text, E'\n' ORDER BY x::text) FROM `+table+` x WHERE `+owner.condition, tenant).Scan(&text), table)
			if text != nil {
				filled[table] = true
				fmt.Fprintf(&all, "-- %s\n%s\n", table, *text)
			}
			break
		}
	}
	for _, table := range []string{
		"queen.queues", "queen.log_partitions", "queen.log_segments", "queen.log_consumers", "queen.log_dlq", "queen.message_traces",
		"queen.message_trace_names", "queen.consumer_groups_metadata", "queen_streams.queries", "queen_streams.state",
	} {
		require.True(t, filled[table], "the owner has nothing in %s, so that nothing of it could change", table)
	}
	return all.String()
}

// What differs between two answers to the same question: times, and ids made for the answer.
var (
	momentOf = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?Z?`)
	idOf     = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
)

// Whatever a tenant asks about things of another, on any route, is answered like a question about things that never existed, and
// changes nothing of them. The routes are those that the broker describes.
func TestForeignAndUnknownAreAnsweredAlike(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, map[string]string{
		"QUEEN_TENANCY_HEADER": "true",
		// Loops that rewrite the owner's figures stay out of the comparison.
		"STATS_INTERVAL_MS": "3600000", "METRICS_FLUSH_MS": "3600000", "RETENTION_INTERVAL": "3600000",
	})
	tenant := uuid.New()
	owner := as(t, s.URL, tenantHeader(tenant))
	own := furnish(t, s, owner)
	nobodys := identities{}
	for name, value := range own {
		if _, err := uuid.Parse(value); err == nil {
			nobodys[name] = uuid.NewString()
		} else {
			nobodys[name] = strings.ReplaceAll(value, "own", "nil")
		}
	}
	before := rowsOf(t, s, tenant)
	compared := 0
	for _, transaction := range []string{"dead", "live"} {
		own["transactionId"], nobodys["transactionId"] = "own-"+transaction, "nil-"+transaction
		for _, r := range describedRoutes(t, owner) {
			if r.public {
				continue
			}
			mine, body := r.requests(t, own)
			theirs, unknownBody := r.requests(t, nobodys)
			for i := range mine {
				name := fmt.Sprintf("%s %s %s", r.method, mine[i], body)
				for who, header := range map[string]map[string]string{"a stranger": tenantHeader(uuid.New()), "the default tenant": nil} {
					other := as(t, s.URL, header)
					if !r.addresses(mine[i]) {
						if r.method == "GET" && header != nil { // the default tenant has tasks and queries of its own by now
							a := other.call(r.method, mine[i], "")
							require.Less(t, a.status, 500, "%s: %s", name, a.body)
							requireNothingOf(t, own, a.body, name)
						}
						continue
					}
					absent := other.call(r.method, theirs[i], unknownBody)
					foreign := other.call(r.method, mine[i], body)
					require.Equal(t, anonymous(absent, nobodys), anonymous(foreign, own), "%s by %s", name, who)
					require.Less(t, foreign.status, 500, "%s by %s: %s", name, who, foreign.body)
					compared++
					if header == nil && r.method != "GET" || strings.Contains(r.path, "/pop") {
						// The next question finds a tenant that has nothing, too.
						for _, ids := range []identities{own, nobodys} {
							require.Equal(t, 200, other.call("DELETE", "/api/v1/resources/queues/"+ids["queue"], "").status)
						}
					}
				}
			}
		}
		require.Equal(t, before, rowsOf(t, s, tenant))
	}
	require.Greater(t, compared, 300)
}

// requireNothingOf holds that an answer shows no name, id or content of the owner.
func requireNothingOf(t *testing.T, own identities, body, name string) {
	t.Helper()
	for what, value := range own {
		require.NotContains(t, body, value, "%s shows the %s of another tenant", name, what)
	}
	for _, content := range []string{"own-payload", "own-failure", "own-data", "own-state"} {
		require.NotContains(t, body, content, name)
	}
}

// anonymous is an answer without what it was asked by, and without times and made ids.
func anonymous(a answer, ids identities) string {
	text := a.body
	for _, name := range slices.Sorted(maps.Keys(ids)) {
		if _, err := uuid.Parse(ids[name]); err == nil {
			text = strings.ReplaceAll(text, ids[name], "ID")
		}
	}
	text = strings.NewReplacer("own", "nil").Replace(text)
	return fmt.Sprint(a.status, " ", a.header.Get("Content-Type"), " ", momentOf.ReplaceAllString(idOf.ReplaceAllString(text, "ID"), "TIME"))
}

// How long an answer takes tells nothing either: the ids of others take as long as ids that nobody has. Both are asked in turn, so that a busy
// machine slows both; one more statement or one more lock for one of them would show in the medians.
func TestForeignAndUnknownTakeAsLong(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, map[string]string{"QUEEN_TENANCY_HEADER": "true"})
	owner := as(t, s.URL, tenantHeader(uuid.New()))
	own := furnish(t, s, owner)
	own["transactionId"] = "own-live"
	nobodys := maps.Clone(own)
	for name, value := range own {
		if _, err := uuid.Parse(value); err == nil {
			nobodys[name] = uuid.NewString()
		}
	}
	other := as(t, s.URL, tenantHeader(uuid.New()))
	const rounds, most, slack = 25, 3, 2 * time.Millisecond // what differs is statements, of which each takes a whole round trip
	asked := 0
	for _, r := range describedRoutes(t, owner) {
		byID := strings.Contains(r.path, "Id}") || strings.Contains(r.path, "{id}") || strings.Contains(bodies[r.method+" "+r.path], "Id}")
		if r.public || !byID || r.path == "/api/v1/push" {
			continue
		}
		mine, body := r.requests(t, own)
		theirs, unknownBody := r.requests(t, nobodys)
		var foreign, unknown []time.Duration
		for range rounds {
			begin := time.Now()
			other.call(r.method, mine[0], body)
			between := time.Now()
			other.call(r.method, theirs[0], unknownBody)
			foreign, unknown = append(foreign, between.Sub(begin)), append(unknown, time.Since(between))
		}
		slices.Sort(foreign)
		slices.Sort(unknown)
		longer, shorter := max(foreign[rounds/2], unknown[rounds/2]), min(foreign[rounds/2], unknown[rounds/2])
		require.LessOrEqual(t, longer, most*shorter+slack, "%s %s: foreign %v, unknown %v", r.method, r.path, foreign[rounds/2], unknown[rounds/2])
		t.Logf("%s %s: foreign %v, unknown %v", r.method, r.path, foreign[rounds/2], unknown[rounds/2])
		asked++
	}
	require.Greater(t, asked, 10)
}
