package trust

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/broker"
	"queenmq/internal/localpg"
	"queenmq/queen"
	"queenmq/queen/streams"
	"queenmq/test/stack"
)

// A query is a registered streaming query and one partition of its source.
type query struct {
	*caller
	id, partition string
}

// newQuery registers a query; its source gets one message, so that there is a partition.
func newQuery(c *caller, name, source, sink string) query {
	c.t.Helper()
	c.mustPush(source, "first", `1`)
	q := query{caller: c, partition: c.pop(source, "consumerGroup="+name)[0].PartitionID}
	q.register(name, source, sink, "h", false)
	return q
}

func (q *query) register(name, source, sink, hash string, reset bool) {
	q.t.Helper()
	a := q.call("POST", "/streams/v1/queries", fmt.Sprintf(`{"name":%q,"source_queue":%q,"sink_queue":%q,"config_hash":%q,"reset":%v}`, name, source, sink, hash, reset))
	require.Equal(q.t, 200, a.status, a.body)
	var registered struct {
		ID string `json:"query_id"`
	}
	require.NoError(q.t, json.Unmarshal([]byte(a.body), &registered))
	q.id = registered.ID
}

// through is the same query, asked for through another broker.
func (q query) through(c *caller) query { return query{c, q.id, q.partition} }

func (q query) cycle(members string) answer {
	q.t.Helper()
	return q.call("POST", "/streams/v1/cycle", fmt.Sprintf(`{"query_id":%q,"partition_id":%q,%s}`, q.id, q.partition, members))
}

func (q query) mustCycle(members string) {
	q.t.Helper()
	a := q.cycle(members)
	require.Equal(q.t, 200, a.status, a.body)
	var result struct {
		Success bool
		Applied int `json:"state_ops_applied"`
	}
	require.NoError(q.t, json.Unmarshal([]byte(a.body), &result))
	require.True(q.t, result.Success, a.body)
}

func (q query) mustRefuse(members, reason string) {
	q.t.Helper()
	a := q.cycle(members)
	require.Equal(q.t, 200, a.status, a.body)
	require.Contains(q.t, a.body, reason)
	require.NotContains(q.t, a.body, `"success":true`)
	require.NotContains(q.t, a.body, `"success": true`)
}

// state reads rows as key: value.
func (q query) state(members string) map[string]string {
	q.t.Helper()
	a := q.call("POST", "/streams/v1/state/get", fmt.Sprintf(`{"query_id":%q,"partition_id":%q%s}`, q.id, q.partition, members))
	require.Equal(q.t, 200, a.status, a.body)
	var answer struct {
		Success bool
		Rows    []map[string]json.RawMessage
	}
	require.NoError(q.t, json.Unmarshal([]byte(a.body), &answer))
	require.True(q.t, answer.Success)
	rows := map[string]string{}
	last := ""
	for _, row := range answer.Rows {
		require.Len(q.t, row, 3, "key, value and updated_at, as ever: %s", a.body)
		var key, at string
		require.NoError(q.t, json.Unmarshal(row["key"], &key))
		require.NoError(q.t, json.Unmarshal(row["updated_at"], &at))
		require.Regexp(q.t, `^\d{4}-.*\.\d{6}\+00:00$`, at)
		require.Less(q.t, last, key, "in the order of the keys")
		last = key
		rows[key] = strings.ReplaceAll(string(row["value"]), " ", "")
	}
	return rows
}

func quoted(t *testing.T, text string) string {
	t.Helper()
	quoted, err := json.Marshal(text)
	require.NoError(t, err)
	return string(quoted)
}

// dump is what pg_dump writes.
func dump(t *testing.T, s *stack.Stack) string {
	t.Helper()
	dir, err := localpg.Programs(t.Context())
	require.NoError(t, err)
	program := filepath.Join(dir, "pg_dump")
	if _, err := os.Stat(program); err != nil {
		program = "pg_dump"
	}
	text, err := exec.CommandContext(t.Context(), program, "--dbname", s.DB.Config().ConnString()).Output()
	require.NoError(t, err)
	require.Contains(t, string(text), "COPY queen_streams.state")
	return string(text)
}

// The state of a query that reads or writes an encrypted queue holds parts of its messages: nothing of it, neither value nor key, lies in
// the database in plain text, and clients notice nothing.
func TestStateOfQueriesOverEncryptedQueues(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, map[string]string{"QUEEN_ENCRYPTION_KEY": keyA})
	c := as(t, s.URL, nil)
	c.configure("secret", `{"encryptionEnabled":true}`)
	for _, queues := range [][2]string{{"secret", "open"}, {"open", "secret"}, {"open2", ""}} {
		q := newQuery(c, "from-"+queues[0], queues[0], queues[1])
		sealed := queues[0] == "secret" || queues[1] == "secret"
		mark := clear
		if !sealed {
			mark = "nothing to hide"
		}
		key := "w\u001f" + mark
		// In the order that the database gives to members.
		one, two := fmt.Sprintf(`{"n":12345678901234567890.10,"words":%q,"windowEnd":1000}`, mark), fmt.Sprintf(`{"words":%q,"windowEnd":2000}`, mark)
		upsert := func(key, value string) string {
			return fmt.Sprintf(`{"type":"upsert","key":%s,"value":%s}`, quoted(t, key), value)
		}
		q.mustCycle(`"state_ops":[` + upsert(key+"1", `"overwritten at once"`) + `,` + upsert(key+"1", one) + `,` + upsert(key+"2", two) + `,` + upsert("other", `null`) + `,{"type":"upsert","key":"bare"}]`)
		require.Equal(t, map[string]string{key + "1": strings.ReplaceAll(one, " ", ""), key + "2": strings.ReplaceAll(two, " ", ""), "other": "null", "bare": "{}"}, q.state(""))
		require.Len(t, q.state(`,"keys":[`+quoted(t, key+"1")+`,"none"]`), 1)
		require.Len(t, q.state(`,"key_prefix":`+quoted(t, key)), 2)
		require.Len(t, q.state(`,"ripe_at_or_before":1500`), 1)
		require.Len(t, q.state(`,"ripe_at_or_before":5000,"key_prefix":`+quoted(t, key)+`,"keys":[`+quoted(t, key+"2")+`,"other"]`), 1)

		// What a cycle expects is compared as ever: whatever the order of members and the spelling of numbers.
		expect := func(key, value string) string {
			return fmt.Sprintf(`"if_state":[{"key":%s,"value":%s}]`, quoted(t, key), value)
		}
		q.mustCycle(expect(key+"2", fmt.Sprintf(`{"windowEnd":2e3, "words":%q}`, mark)) + `,"state_ops":[` + upsert(key+"2", `{"windowEnd":2500}`) + `]`)
		q.mustRefuse(expect(key+"2", two)+`,"state_ops":[`+upsert(key+"2", `1`)+`]`, "state changed: key")
		q.mustRefuse(expect(key+"2", `null`)+`,"state_ops":[`+upsert(key+"2", `1`)+`]`, "state changed: key")
		q.mustRefuse(expect("absent", `1`)+`,"state_ops":[`+upsert("absent", `1`)+`]`, `state changed: key \"absent\"`)
		q.mustCycle(expect("absent", `null`) + `,"state_ops":[{"type":"delete","key":"other"},{"type":"delete","key":"bare"},{"type":"delete","key":"never there"}]`)
		q.mustRefuse(`"state_ops":[{"type":"sing","key":"a"}]`, "Unknown state_op type: sing")
		q.mustRefuse(`"state_ops":[{"type":"upsert"}]`, "state_op key is required")
		require.Len(t, q.state(""), 2)

		// The windows that nobody closes are still found.
		batch := q.pop(queues[0], "consumerGroup=ripe")
		require.Len(t, batch, 1)
		q.mustCycle(fmt.Sprintf(`"consumer_group":"ripe","ack":{"transactionId":"first","leaseId":%q,"status":"completed","count":1}`, batch[0].LeaseID))
		ripe := q.call("POST", "/streams/v1/state/ripe", fmt.Sprintf(`{"query_id":%q,"consumer_group":"ripe"}`, q.id))
		require.Contains(t, strings.ReplaceAll(ripe.body, " ", ""), `"windowEnd":2500`, ripe.body)

		var rows, hidden int
		require.NoError(t, s.DB.QueryRow(t.Context(), `SELECT count(*), count(sealed) FROM queen_streams.state WHERE query_id = $1`, q.id).Scan(&rows, &hidden))
		require.Equal(t, 2, rows)
		if sealed {
			require.Equal(t, 2, hidden)
		} else {
			require.Zero(t, hidden)
		}
	}
	text := dump(t, s)
	require.NotContains(t, text, clear)
	require.NotContains(t, text, fmt.Sprintf("%x", clear))
	require.Contains(t, text, "nothing to hide", "the dump would show it")
	require.NotContains(t, everything(t, s), clear)
	require.NotContains(t, c.call("GET", "/api/v1/streams", "").body, clear)
}

// A broker without the key reads and writes nothing, whatever it knew of the query before; also one that has a key, only not that one.
func TestStateIsKeptFromBrokersWithoutTheKey(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, map[string]string{"QUEEN_ENCRYPTION_KEY": keyA})
	keyless := as(t, stack.Serve(t, s.DB.Config().ConnString()), nil)
	c := as(t, s.URL, nil)
	q := newQuery(c, "q", "source", "sink")
	q.through(keyless).mustCycle(`"state_ops":[{"type":"upsert","key":"early","value":1}]`)
	c.configure("source", `{"encryptionEnabled":true}`)
	refuse := func(who *caller) {
		t.Helper()
		for _, members := range []string{
			`"state_ops":[{"type":"upsert","key":"late","value":"` + clear + `"}]`,
			`"if_state":[{"key":"late","value":null}]`,
		} {
			a := q.through(who).cycle(members)
			require.Equal(t, 503, a.status, a.body)
			require.Contains(t, a.body, "encryption_key_missing")
		}
	}
	refuse(keyless)
	q.mustCycle(`"state_ops":[{"type":"upsert","key":"late","value":"` + clear + `"}]`)
	refuse(keyless)
	read := func(who *caller, members string) answer {
		return who.call("POST", "/streams/v1/state/get", fmt.Sprintf(`{"query_id":%q,"partition_id":%q%s}`, q.id, q.partition, members))
	}
	for _, members := range []string{"", `,"keys":["late"]`, `,"keys":["never there"]`} {
		a := read(keyless, members)
		require.Equal(t, 503, a.status, "nothing must look as if it were not there: %s", a.body)
		require.Contains(t, a.body, "encryption_key_missing")
	}
	// Another broker comes to encrypt with a key that the first lacks.
	ahead := as(t, stack.Serve(t, s.DB.Config().ConnString(), map[string]string{"QUEEN_ENCRYPTION_KEY": keyB, "QUEEN_ENCRYPTION_KEYS_OLD": keyA}), nil)
	require.Equal(t, map[string]string{"early": "1", "late": `"` + clear + `"`}, q.through(ahead).state(""))
	q.through(ahead).mustCycle(`"state_ops":[{"type":"upsert","key":"late","value":"newer"}]`)
	require.Equal(t, 503, read(c, `,"keys":["late"]`).status)
	refuse(c)
	require.Equal(t, map[string]string{"early": "1", "late": `"newer"`}, q.through(ahead).state(""), "one row for a key, under whatever key it was written")
	require.NotContains(t, everything(t, s), clear)
}

// A queue comes to demand encryption while a query runs, and ceases to: what was stored in plain text is read and replaced, what is written
// is encrypted from then on, until the state is wiped.
func TestStateOfAQueueThatBecomesEncrypted(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, map[string]string{"QUEEN_ENCRYPTION_KEY": keyA})
	c, other := as(t, s.URL, nil), as(t, stack.Serve(t, s.DB.Config().ConnString(), map[string]string{"QUEEN_ENCRYPTION_KEY": keyA}), nil)
	q := newQuery(c, "q", "source", "sink")
	for _, who := range []*caller{c, other} { // both brokers know the query as a plain one
		q.through(who).mustCycle(`"state_ops":[{"type":"upsert","key":"a","value":"before"},{"type":"upsert","key":"b","value":"before"},{"type":"upsert","key":"c","value":"before"}]`)
	}
	c.configure("sink", `{"encryptionEnabled":true}`)
	q.through(other).mustCycle(`"if_state":[{"key":"a","value":"before"},{"key":"d","value":null}],"state_ops":[{"type":"upsert","key":"a","value":"` + clear + `"},{"type":"delete","key":"b"}]`)
	want := map[string]string{"a": `"` + clear + `"`, "c": `"before"`}
	require.Equal(t, want, q.state(""))
	require.Equal(t, want, q.through(other).state(`,"keys":["a","b","c"]`))
	q.mustRefuse(`"if_state":[{"key":"a","value":"before"}]`, "state changed")
	q.mustCycle(`"if_state":[{"key":"a","value":"` + clear + `"},{"key":"c","value":"before"},{"key":"b","value":null}]`)

	c.configure("sink", `{"encryptionEnabled":false}`)
	fresh := as(t, stack.Serve(t, s.DB.Config().ConnString(), map[string]string{"QUEEN_ENCRYPTION_KEY": keyA}), nil)
	q.through(fresh).mustCycle(`"if_state":[{"key":"a","value":"` + clear + `"}],"state_ops":[{"type":"upsert","key":"a","value":"` + clear + `-again"}]`)
	require.Equal(t, map[string]string{"a": `"` + clear + `-again"`, "c": `"before"`}, q.state(""))
	require.NotContains(t, everything(t, s), clear)

	q.register("q", "source", "sink", "another hash", true)
	require.Empty(t, q.state(""))
	q.through(as(t, stack.Serve(t, s.DB.Config().ConnString()), nil)).mustCycle(`"state_ops":[{"type":"upsert","key":"a","value":"plain"}]`)
	require.Equal(t, map[string]string{"a": `"plain"`}, q.state(""))
}

// Re-encryption puts state under the new key, beside a runner that works on it; then the old key is not needed.
func TestStateIsRotated(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, map[string]string{"QUEEN_ENCRYPTION_KEY": keyA, "QUEEN_ENCRYPTION_KEYS_OLD": keyB})
	c := as(t, s.URL, nil)
	c.configure("source", `{"encryptionEnabled":true}`)
	q := newQuery(c, "q", "source", "")
	const rows = 500
	var ops []string
	for i := range rows {
		ops = append(ops, fmt.Sprintf(`{"type":"upsert","key":"k%d","value":{"n":0}}`, i))
	}
	q.mustCycle(`"state_ops":[` + strings.Join(ops, ",") + `]`)

	ctx, stop := context.WithCancel(t.Context())
	var n [3]int
	counted := make(chan struct{})
	go func() { // counts up rows, each time expecting what it wrote before
		defer close(counted) // also when a cycle is refused, which has failed the test
		for i := 0; ctx.Err() == nil; i++ {
			k := i % 3
			q.mustCycle(fmt.Sprintf(`"if_state":[{"key":"k%d","value":{"n":%d}}],"state_ops":[{"type":"upsert","key":"k%[1]d","value":{"n":%[3]d}}]`, k*200, n[k], n[k]+1))
			n[k]++
		}
	}()
	both := settings(t, s, map[string]string{"QUEEN_ENCRYPTION_KEY": keyB, "QUEEN_ENCRYPTION_KEYS_OLD": keyA})
	var said strings.Builder
	require.NoError(t, broker.RotateKeys(t.Context(), both, slog.New(slog.DiscardHandler), &said))
	stop()
	<-counted
	require.NoError(t, broker.RotateKeys(t.Context(), both, slog.New(slog.DiscardHandler), &said)) // what the runner wrote under the old key

	_, err := s.DB.Exec(t.Context(), `UPDATE queen.encryption_keys SET used_at = now() - interval '1 hour'`)
	require.NoError(t, err)
	said.Reset()
	require.NoError(t, broker.CheckKeys(t.Context(), both, slog.New(slog.DiscardHandler), &said))
	require.Contains(t, said.String(), "not used any more: it may be removed")
	alone := q.through(as(t, stack.Serve(t, s.DB.Config().ConnString(), map[string]string{"QUEEN_ENCRYPTION_KEY": keyB}), nil))
	state := alone.state("")
	require.Len(t, state, rows)
	for i := range rows {
		want := 0
		if i%200 == 0 {
			want = n[i/200]
		}
		require.Equal(t, fmt.Sprintf(`{"n":%d}`, want), state[fmt.Sprint("k", i)], "%d of %v", i, n)
	}
	require.Len(t, alone.state(`,"keys":["k0","k1"]`), 2)
}

// An envelope that was changed, or put where another belongs, is not taken for state.
func TestChangedStateIsNotTakenForState(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, map[string]string{"QUEEN_ENCRYPTION_KEY": keyA})
	c := as(t, s.URL, nil)
	c.configure("source", `{"encryptionEnabled":true}`)
	q := newQuery(c, "q", "source", "")
	other := q
	other.partition = newQuery(c, "o", "elsewhere", "").partition
	for name, change := range map[string]string{
		"changed":   `UPDATE queen_streams.state SET sealed = overlay(sealed PLACING 'AAAA' FROM position('authTag' IN sealed) + 10)`,
		"exchanged": `UPDATE queen_streams.state s SET sealed = o.sealed FROM queen_streams.state o WHERE o.key <> s.key`,
	} {
		q.mustCycle(`"state_ops":[{"type":"upsert","key":"rich","value":1000},{"type":"upsert","key":"poor","value":1}]`)
		_, err := s.DB.Exec(t.Context(), change)
		require.NoError(t, err)
		a := q.call("POST", "/streams/v1/state/get", fmt.Sprintf(`{"query_id":%q,"partition_id":%q}`, q.id, q.partition))
		require.Equal(t, 409, a.status, "%s: %s", name, a.body)
		require.Contains(t, a.body, `"code":"state_undecryptable"`)
		a = q.cycle(`"if_state":[{"key":"poor","value":1000}]`)
		require.Equal(t, 409, a.status, "%s: %s", name, a.body)
	}

	// Of the same key, and from another partition: its name is that of the place, what is in it is not.
	q.mustCycle(`"state_ops":[{"type":"upsert","key":"rich","value":1000},{"type":"delete","key":"poor"}]`)
	other.mustCycle(`"state_ops":[{"type":"upsert","key":"rich","value":2000}]`)
	moved, err := s.DB.Exec(t.Context(), `UPDATE queen_streams.state s SET sealed = o.sealed FROM queen_streams.state o WHERE s.partition_id = $1 AND o.partition_id = $2`, q.partition, other.partition)
	require.NoError(t, err)
	require.EqualValues(t, 1, moved.RowsAffected())
	a := q.call("POST", "/streams/v1/state/get", fmt.Sprintf(`{"query_id":%q,"partition_id":%q}`, q.id, q.partition))
	require.Equal(t, 409, a.status, a.body)
	require.Equal(t, map[string]string{"rich": "2000"}, other.state(""))
}

// The windows of the Go client's streams are the same over encrypted queues.
func TestWindowsOverEncryptedQueues(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, map[string]string{"QUEEN_ENCRYPTION_KEY": keyA})
	c := as(t, s.URL, nil)
	client, err := queen.Connect(s.URL)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	type sale struct {
		Customer string `json:"customer"`
		At       int64  `json:"at"`
		Cents    int64  `json:"cents"`
	}
	const sales, partitions = 600, 2
	results := map[string][]string{}
	for _, kind := range []string{"plain", "secret"} {
		customer := "somebody"
		if kind == "secret" {
			customer = clear
			c.configure(kind+".in", `{"encryptionEnabled":true}`)
			c.configure(kind+".out", `{"encryptionEnabled":true}`)
		}
		var items []queen.Item
		for i := range sales {
			payload, err := json.Marshal(sale{fmt.Sprintf("%s %d", customer, i%3), int64(i) * 50, int64(i)})
			require.NoError(t, err)
			items = append(items, queen.Item{Queue: kind + ".in", Partition: fmt.Sprint("p", i%partitions), Payload: payload})
		}
		_, err := client.Push(t.Context(), items...)
		require.NoError(t, err)
		seconds := streams.From[sale](kind + ".in").KeyBy(func(s sale) string { return s.Customer }).
			EventTime(func(s sale) time.Time { return time.UnixMilli(s.At) }).Window(streams.Tumbling(time.Second))
		query := streams.Sum(seconds, func(s sale) int64 { return s.Cents }).To(kind + ".out")
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		for range 2 { // two runners of one query share its state
			runner, err := streams.NewRunner(client, kind, query, streams.Logger(slog.New(slog.DiscardHandler)), streams.BatchSize(40, 1))
			require.NoError(t, err)
			go func() { ended <- runner.Run(ctx) }()
		}
		// All windows but the last of each partition are closed by what comes later.
		require.Eventually(t, func() bool {
			for _, m := range c.pop(kind+".out", "batch=1000&partitions=10&autoAck=true") {
				results[kind] = append(results[kind], strings.ReplaceAll(string(m.Data), customer, "X"))
			}
			return len(results[kind]) >= partitions*3*(sales/20-1)
		}, time.Minute, 20*time.Millisecond)
		stop()
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
	}
	slices.Sort(results["plain"])
	slices.Sort(results["secret"])
	require.Equal(t, results["plain"], results["secret"])
	var rows, hidden int
	require.NoError(t, s.DB.QueryRow(t.Context(), `SELECT count(*), count(t.sealed) FROM queen_streams.state t JOIN queen_streams.queries q ON q.id = t.query_id
		WHERE q.name = 'secret'`).Scan(&rows, &hidden))
	require.Positive(t, rows)
	require.Equal(t, rows, hidden)
	require.NotContains(t, everything(t, s), clear)
}
