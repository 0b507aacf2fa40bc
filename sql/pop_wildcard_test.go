package sql_test

import (
	"sort"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func TestPopWildcardProvisionsTheQueue(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	for name, want := range map[string][2]string{"orders.eu.express": {"orders", "eu"}, "plain": {"plain", ""}, "a.b": {"a", "b"}} {
		segments, meta := popWildcard(t, l, name, popCall{})
		require.Empty(t, segments)
		require.Empty(t, meta.Partitions)
		var got [2]string
		require.NoError(t, l.QueryRow(t.Context(), `SELECT namespace, task FROM queen.queues WHERE name = $1`, name).Scan(&got[0], &got[1]))
		require.Equal(t, want, got)
	}
	popWildcard(t, l, "", popCall{})
	require.Equal(t, 3, scalar[int](t, l, `SELECT count(*) FROM queen.queues`), "an empty name creates nothing")
	require.Equal(t, 3, scalar[int](t, l, `SELECT count(*) FROM queen.consumer_groups_metadata`))
}

func TestPopWildcardRegistersAndSeedsOnce(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	for _, tc := range []struct {
		name             string
		group            string
		subMode, subFrom string
		mode             string
		recorded         time.Duration // age of the recorded timestamp; 0 is the epoch
		cursor           int64
	}{
		{"All", "g", "all", "", "all", 0, 9},
		{"New", "g", "new", "", "new", time.Nanosecond, 15},
		{"FromNow", "g", "all", "now", "new", time.Nanosecond, 15},
		{"FromATime", "g", "all", "time", "timestamp", 150 * time.Minute, 13},
		{"UnreadableStartIsNew", "g", "all", "nonsense", "new", time.Nanosecond, 15},
		{"QueueModeIsAll", queueMode, "new", "now", "all", 0, 9},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			id := l.queue(t, tc.name, popQueue{})
			l.partition(t, id, "p", run{10, 2, 300 * time.Minute}, run{12, 2, 200 * time.Minute}, run{14, 2, 100 * time.Minute})
			// A cursor that exists already is not touched by the seed, and this one says that there is nothing to claim.
			l.cursor(t, l.partition(t, id, "known", twoRuns()...), tc.group, 7, "", 0)
			l.partition(t, id, "empty")
			from := tc.subFrom
			if from == "time" {
				from = time.Now().UTC().Add(-tc.recorded).Format("2006-01-02 15:04:05")
			}
			segments, _ := popWildcard(t, l, tc.name, popCall{group: tc.group, subMode: tc.subMode, subFrom: from})
			require.Equal(t, 15-tc.cursor, messages(segments))
			rows := popRows(t, l, id, tc.group)
			require.Equal(t, tc.cursor, rows["p"].Committed)
			require.Equal(t, int64(7), rows["known"].Committed)
			require.Contains(t, rows, "empty")
			var mode string
			var at time.Time
			require.NoError(t, l.QueryRow(t.Context(), `SELECT subscription_mode, subscription_timestamp FROM queen.consumer_groups_metadata
				WHERE queue_id = $1 AND consumer_group = $2 AND partition_name = '' AND namespace = '' AND task = ''`, id, tc.group).Scan(&mode, &at))
			require.Equal(t, tc.mode, mode)
			if tc.recorded == 0 {
				require.Equal(t, time.Unix(0, 0).UTC(), at.UTC())
			} else {
				require.WithinDuration(t, time.Now().Add(-tc.recorded), at, time.Minute)
			}

			// From here on the record decides, not what later pops say: a partition that appears later is new to the group.
			l.partition(t, id, "later", run{0, 2, 300 * time.Minute}, run{2, 2, 0})
			segments, _ = popWildcard(t, l, tc.name, popCall{group: tc.group, subMode: "all"})
			want := int64(2) // what was stored after the start of the subscription
			if tc.mode == "all" {
				want = 4
			}
			require.Equal(t, want, messages(segments))
			require.Equal(t, 1, scalar[int](t, l, `SELECT count(*) FROM queen.consumer_groups_metadata WHERE queue_id = $1`, id))
		})
	}
}

func TestPopWildcardClaims(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{})
	for _, name := range []string{"a", "b", "c", "d"} {
		l.partition(t, id, name, run{base: 0, count: 3}, run{base: 3, count: 2})
	}
	l.cursor(t, l.partition(t, id, "leased", twoRuns()...), "g", -1, "other", time.Hour)

	segments, meta := popWildcard(t, l, "q", popCall{maxPartitions: 2, worker: "w1"})
	require.EqualValues(t, 10, messages(segments), "two whole partitions")
	require.Len(t, meta.Partitions, 2)
	for _, p := range meta.Partitions {
		require.Equal(t, "q", p.Queue)
		require.Equal(t, 1, p.Attempt)
		require.Len(t, p.Segments, 2)
		require.Equal(t, scalar[uuid.UUID](t, l, `SELECT id FROM queen.log_partitions WHERE name = $1`, p.Partition), p.PartitionID)
	}
	require.Equal(t, 2, scalar[int](t, l, `SELECT count(*) FROM queen.log_consumers WHERE worker_id = 'w1'`))
	segments, meta = popWildcard(t, l, "q", popCall{budget: 7, worker: "w2"})
	require.EqualValues(t, 7, messages(segments))
	require.Len(t, meta.Partitions, 2)
	segments, _ = popWildcard(t, l, "q", popCall{worker: "w3"})
	require.Empty(t, segments, "all four are leased, and the fifth is somebody else's")

	l.exec(t, `UPDATE queen.log_consumers SET worker_id = NULL`)
	for _, unlimited := range []any{0, -1, -2147483648, (*int)(nil), 2147483647} {
		segments, meta = popWildcard(t, l, "q", popCall{maxPartitions: unlimited, lease: -1})
		require.Len(t, meta.Partitions, 5)
		require.EqualValues(t, 28, messages(segments))
	}
}

// The scan looks at 64 partitions for one: those that others hold must not use the places up.
func TestPopWildcardFindsTheFreePartitionAmongLeasedOnes(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{})
	register(t, l, id)
	l.exec(t, `INSERT INTO queen.log_partitions (queue_id, name, last_offset) SELECT $1, 'p' || g, 9 FROM generate_series(1, 2000) g`, id)
	l.exec(t, `INSERT INTO queen.log_consumers (partition_id, consumer_group, worker_id, lease_expires_at)
		SELECT id, 'g', 'other', now() + interval '1 h' FROM queen.log_partitions`)
	l.partition(t, id, "free", twoRuns()...)
	segments, meta := popWildcard(t, l, "q", popCall{maxPartitions: 1})
	require.EqualValues(t, 8, messages(segments))
	require.Equal(t, "free", meta.Partitions[0].Partition)
}

func TestPopWildcardWireAndBinaryAgree(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{Namespace: "ns", Lease: 33})
	for _, name := range []string{`a"b`, "ü", "c"} {
		l.partition(t, id, name, run{0, 3, time.Hour}, run{3, 2, time.Minute}, run{5, 9, time.Second})
	}
	sorted := func(m popMeta) popMeta {
		sort.Slice(m.Partitions, func(i, j int) bool { return m.Partitions[i].Partition < m.Partitions[j].Partition })
		return m
	}
	call := func(sql string, args ...any) popMeta {
		m, err := callJSON[popMeta](l, sql, args...)
		require.NoError(t, err)
		return sorted(m)
	}
	segments, meta := popWildcard(t, l, "q", popCall{group: "bin", budget: 40})
	require.EqualValues(t, 40, messages(segments))
	blobs := map[string]string{}
	for _, s := range segments {
		blobs[s.Partition+string(rune('0'+s.Base))] = s.Blob
	}
	meta = sorted(meta)
	wires := []popMeta{
		call(`SELECT queen.log_pop_wildcard_wire_v1('q', 'wire', 100, 60, 'w', false, 0)`),
		call(`SELECT queen.log_pop_discover_wire_v1('ns', '', 'wire2', 100, 0, 'w', false, 0)`),
	}
	for _, wire := range wires {
		require.Len(t, wire.Partitions, 3)
		for i, p := range wire.Partitions {
			require.Len(t, p.Segments, 3)
			for j, s := range p.Segments {
				require.Equal(t, []int64{3, 2, 9}[j], s.MsgCount)
				require.Equal(t, blobs[p.Partition+string(rune('0'+s.Seq))], decodeBase64(t, s.Blob))
				wire.Partitions[i].Segments[j].MsgCount, wire.Partitions[i].Segments[j].Blob = 0, ""
				if j == 2 { // the budget of 40 cut one of them in the binary call
					wire.Partitions[i].Segments[j].Take = meta.Partitions[i].Segments[j].Take
				}
			}
		}
		require.Equal(t, meta, wire)
	}
	require.Equal(t, popMeta{Partitions: []popMetaPartition{}}, call(`SELECT queen.log_pop_wildcard_wire_v1('q', 'wire', 100, 60, 'w', false, 0)`))
}

// watermark reads the ages of last_empty_scan_at and updated_at in seconds; -1 when there is no row.
func watermark(t tester, l popLog, queue uuid.UUID) (floor, verified int) {
	t.Helper()
	require.NoError(t, l.QueryRow(t.(*testing.T).Context(), `
		SELECT COALESCE(max(extract(epoch FROM clock_timestamp() - last_empty_scan_at))::bigint / 10, -1),
		       COALESCE(max(extract(epoch FROM clock_timestamp() - updated_at))::bigint / 10, -1)
		  FROM queen.consumer_watermarks WHERE queue_id = $1 AND consumer_group = 'g'`, queue).Scan(&floor, &verified))
	return floor * 10, verified * 10
}

func TestPopWildcardWatermark(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{})
	old := l.partition(t, id, "old", twoRuns()...)
	set := func(floor, verified string) {
		l.exec(t, `INSERT INTO queen.consumer_watermarks (queue_id, consumer_group, last_empty_scan_at, updated_at)
			VALUES ($1, 'g', clock_timestamp() - $2::interval, clock_timestamp() - $3::interval)
			ON CONFLICT (queue_id, consumer_group) DO UPDATE SET (last_empty_scan_at, updated_at) = (EXCLUDED.last_empty_scan_at, EXCLUDED.updated_at)`, id, floor, verified)
	}
	pop := func() int64 { s, _ := popWildcard(t, l, "q", popCall{lease: 300}); return messages(s) }

	require.EqualValues(t, 8, pop())
	floor, verified := watermark(t, l, id)
	require.Equal(t, []int{-10, -10}, []int{floor, verified}, "a pop that delivers touches no watermark")

	require.Zero(t, pop())
	floor, verified = watermark(t, l, id)
	require.Zero(t, verified, "the check is noted")
	require.Greater(t, floor, 1_000_000_000, "but a leased partition is not empty: the floor stays at the epoch")

	l.exec(t, `UPDATE queen.log_consumers SET committed = 7, worker_id = NULL`)
	require.Zero(t, pop())
	floor, _ = watermark(t, l, id)
	require.Greater(t, floor, 1_000_000_000, "emptiness was checked a moment ago: not again within 30 s")
	set("50 years", "25 s")
	require.Zero(t, pop())
	_, verified = watermark(t, l, id)
	require.Equal(t, 20, verified)
	set("50 years", "40 s")
	settle(t, l)
	require.Zero(t, pop())
	floor, verified = watermark(t, l, id)
	require.Equal(t, []int{0, 0}, []int{floor, verified}, "nothing pending: the floor is now")

	// Below the floor nothing is scanned; the floor has a margin of two minutes.
	l.exec(t, `UPDATE queen.log_consumers SET committed = 2`)
	l.exec(t, `UPDATE queen.log_partitions SET last_write_at = clock_timestamp() - interval '150 s' WHERE id = $1`, old)
	require.Zero(t, pop())
	l.exec(t, `UPDATE queen.log_partitions SET last_write_at = clock_timestamp() - interval '90 s' WHERE id = $1`, old)
	require.EqualValues(t, 5, pop())

	// Pending but leased at verification time: only the time of the check moves.
	set("100 s", "40 s")
	require.Zero(t, pop())
	floor, verified = watermark(t, l, id)
	require.Equal(t, []int{100, 0}, []int{floor, verified})
}

func TestPopDiscover(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	queues := map[string]uuid.UUID{}
	for name, q := range map[string]popQueue{
		"one":   {Namespace: "ns", Task: "a", Lease: 100},
		"two":   {Namespace: "ns", Task: "b", Lease: 200},
		"three": {Namespace: "other", Task: "a", Lease: 300},
		"empty": {Namespace: "ns", Task: "c"},
	} {
		queues[name] = l.queue(t, name, q)
		if name != "empty" {
			l.partition(t, queues[name], "p", twoRuns()...)
		}
	}
	l.exec(t, `INSERT INTO queen.queues (tenant_id, name, namespace, task) VALUES (gen_random_uuid(), 'foreign', 'ns', 'a')`)
	found := func(m popMeta) []string {
		names := []string{}
		for _, p := range m.Partitions {
			names = append(names, p.Queue)
		}
		sort.Strings(names)
		return names
	}
	expires := func(name, group string) int64 { return *popRows(t, l, queues[name], group)["p"].Expires }

	segments, meta := popDiscover(t, l, "ns", "", popCall{group: "byns", lease: 0})
	require.EqualValues(t, 16, messages(segments))
	require.Equal(t, []string{"one", "two"}, found(meta))
	require.Equal(t, []int64{100, 200}, []int64{expires("one", "byns"), expires("two", "byns")}, "each queue's own lease time")
	require.Equal(t, 3, scalar[int](t, l, `SELECT count(*) FROM queen.consumer_groups_metadata WHERE consumer_group = 'byns'`), "registered on every matching queue")

	_, meta = popDiscover(t, l, "", "a", popCall{group: "bytask", lease: 40})
	require.Equal(t, []string{"one", "three"}, found(meta))
	require.Equal(t, int64(40), expires("three", "bytask"))
	_, meta = popDiscover(t, l, "ns", "a", popCall{group: "both", lease: (*int)(nil)})
	require.Equal(t, []string{"one"}, found(meta))
	require.Equal(t, int64(100), expires("one", "both"))
	_, meta = popDiscover(t, l, "ns", "", popCall{group: "capped", maxPartitions: 1})
	require.Len(t, meta.Partitions, 1)
	segments, meta = popDiscover(t, l, "nowhere", "", popCall{})
	require.Empty(t, segments)
	require.Empty(t, meta.Partitions)
	require.Equal(t, 5, scalar[int](t, l, `SELECT count(*) FROM queen.queues`), "discovery creates no queue")

	// Verified with something pending: existing watermarks note the check, missing ones are not made.
	l.exec(t, `INSERT INTO queen.consumer_watermarks (queue_id, consumer_group, last_empty_scan_at, updated_at)
		VALUES ($1, 'byns', now() - interval '1 day', now() - interval '40 s')`, queues["one"])
	segments, _ = popDiscover(t, l, "ns", "", popCall{group: "byns", worker: "w2"})
	require.Empty(t, segments)
	require.Equal(t, 1, scalar[int](t, l, `SELECT count(*) FROM queen.consumer_watermarks WHERE updated_at > now() - interval '20 s' AND last_empty_scan_at < now() - interval '1 h'`))
	require.Equal(t, 1, scalar[int](t, l, `SELECT count(*) FROM queen.consumer_watermarks`))
	// Nothing pending anywhere: those that are missing are made, then all of them rise.
	l.exec(t, `UPDATE queen.log_consumers SET committed = 7, worker_id = NULL`)
	for range 2 {
		l.exec(t, `UPDATE queen.consumer_watermarks SET updated_at = now() - interval '40 s'`)
		settle(t, l)
		popDiscover(t, l, "ns", "", popCall{group: "byns"})
	}
	require.Equal(t, 3, scalar[int](t, l, `SELECT count(*) FROM queen.consumer_watermarks WHERE last_empty_scan_at > now() - interval '20 s'`))
}

func TestPopTenantsDoNotMeet(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	l.partition(t, l.queue(t, "q", popQueue{Namespace: "ns"}), "p", twoRuns()...)
	other := uuid.New()
	for name, sql := range map[string]string{
		"wildcard": `SELECT meta, blobs FROM queen.log_pop_wildcard_bin_v1('q', 'g', 9, 60, 'w', false, 0, 'all', '', $1)`,
		"discover": `SELECT meta, blobs FROM queen.log_pop_discover_bin_v1('ns', '', 'g', 9, 60, 'w', false, 0, 'all', '', $1)`,
		"specific": `SELECT meta, blobs FROM queen.log_pop_specific_bin_v1('q', 'p', 'g', 9, 60, 'w', false, 'all', '', $1)`,
		"list":     `SELECT meta, blobs FROM queen.log_pop_list_v1('q', 'g', ARRAY['p'], 9, 60, 'w', false, 0, 'all', '', false, $1)`,
	} {
		segments, meta := popBin(t, l, sql, other)
		require.Empty(t, segments, name)
		require.Empty(t, meta.Partitions, name)
	}
	require.Zero(t, scalar[int](t, l, `SELECT count(*) FROM queen.log_consumers`))
}
