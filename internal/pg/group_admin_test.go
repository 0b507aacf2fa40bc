package pg_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sort"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
	"queenmq/internal/testdb"
)

func committed(t testing.TB, database *testdb.Database, partition uuid.UUID, group string) (offset int64, leased bool) {
	t.Helper()
	require.NoError(t, database.Pool(t).QueryRow(context.Background(), `SELECT committed, worker_id IS NOT NULL OR batch_end IS NOT NULL OR attempt_count > 0
		FROM queen.log_consumers WHERE partition_id = $1 AND consumer_group = $2`, partition, group).Scan(&offset, &leased))
	return offset, leased
}

func TestSeek(t *testing.T) {
	t.Parallel()
	db, database := kolkata(t)
	ctx, tenant := t.Context(), pg.DefaultTenant
	p := push(t, db, segment("q", "p", "1", "2")).PartitionID
	for i := range 600 { // long enough for the search by halves
		push(t, db, segment("q", "p", fmt.Sprint("m", i)))
	}
	r := push(t, db, segment("q", "r", "9")).PartitionID
	// Segments an hour apart per hundred; two at the same time.
	exec(t, database, `UPDATE queen.log_segments SET created_at = timestamptz '2026-01-02 00:00:00+00' + make_interval(hours => (base_offset / 100)::int) WHERE partition_id = $1`, p)
	lease := popRequest("q", "w")
	lease.Partition, lease.Budget = "p", 1
	marks := func() (n int) {
		t.Helper()
		require.NoError(t, database.Pool(t).QueryRow(ctx, `SELECT count(*) FROM queen.hotlist_repairs WHERE consumer_group = 'g'`).Scan(&n))
		return n
	}
	back := int64(7)
	for i, tc := range []struct {
		name string
		to   pg.SeekTarget
		want int64
		text string
	}{
		{"to end", pg.SeekTarget{ToEnd: true}, 601, `{"success":true,"consumerGroup":"g","queueName":"q","partitionName":"p","seekToEnd":true,"targetTimestamp":null,"updated":true}`},
		{"at a segment", pg.SeekTarget{Timestamp: "2026-01-02T03:00:00Z"}, 299, `{"success":true,"consumerGroup":"g","queueName":"q","partitionName":"p","seekToEnd":false,"targetTimestamp":"<time>","updated":true}`},
		{"between two", pg.SeekTarget{Timestamp: "2026-01-02T02:00:00.000001Z"}, 299, ""},
		{"with a zone", pg.SeekTarget{Timestamp: "2026-01-02T08:30:00+05:30"}, 299, ""},
		{"without a zone it is UTC", pg.SeekTarget{Timestamp: "2026-01-02 03:00:00"}, 299, ""},
		{"the epoch is the beginning", pg.SeekTarget{Timestamp: "1970-01-01T00:00:00Z"}, -1, ""},
		{"later than everything", pg.SeekTarget{Timestamp: "2026-01-03"}, 601, ""},
		{"an offset", pg.SeekTarget{Offset: &back}, 6, `{"success":true,"consumerGroup":"g","queueName":"q","partitionName":"p","seekToEnd":false,"targetTimestamp":null,"targetOffset":7,
			"partitionsUpdated":1,"updated":true}`},
	} {
		exec(t, database, `UPDATE queen.log_consumers SET committed = -1`)
		_, err := db.PopSpecific(ctx, lease)
		require.NoError(t, err)
		answer, err := db.SeekPartition(ctx, tenant, "g", "q", "p", tc.to)
		text := shape(t, answer, err)
		if tc.text != "" {
			require.JSONEq(t, tc.text, text, tc.name)
		}
		at, held := committed(t, database, p, "g")
		require.Equal(t, tc.want, at, tc.name)
		require.False(t, held, "%s: lease and attempts are gone", tc.name)
		require.Equal(t, i+1, marks(), tc.name)
	}
	beyond, below := int64(1<<60), int64(0)
	_, err := db.SeekPartition(ctx, tenant, "g", "q", "p", pg.SeekTarget{Offset: &beyond})
	require.NoError(t, err)
	at, _ := committed(t, database, p, "g")
	require.EqualValues(t, 601, at)
	exec(t, database, `UPDATE queen.log_partitions SET log_start = 300 WHERE id = $1`, p)
	_, err = db.SeekPartition(ctx, tenant, "g", "q", "p", pg.SeekTarget{Offset: &below})
	require.NoError(t, err)
	at, _ = committed(t, database, p, "g")
	require.EqualValues(t, 299, at, "the oldest that is left")

	exec(t, database, `INSERT INTO queen.consumer_watermarks (queue_id, consumer_group) SELECT id, 'g' FROM queen.queues`)
	answer, err := db.SeekGroup(ctx, tenant, "g", "q", pg.SeekTarget{Timestamp: "1970-01-01"})
	require.JSONEq(t, `{"success":true,"consumerGroup":"g","queueName":"q","seekToEnd":false,"targetTimestamp":"<time>","partitionsUpdated":2}`, shape(t, answer, err))
	at, _ = committed(t, database, r, "g")
	require.EqualValues(t, -1, at, "a missing cursor is made")
	var watermarks int
	require.NoError(t, database.Pool(t).QueryRow(ctx, `SELECT count(*) FROM queen.consumer_watermarks`).Scan(&watermarks))
	require.Zero(t, watermarks)

	answer, err = db.SeekGroup(ctx, tenant, "g", "q", pg.SeekTarget{})
	require.JSONEq(t, `{"success":false,"error":"Must specify either toEnd=true or a timestamp"}`, shape(t, answer, err))
	answer, err = db.SeekGroup(ctx, uuid.New(), "g", "q", pg.SeekTarget{ToEnd: true})
	require.JSONEq(t, `{"success":false,"error":"Queue not found or has no partitions","consumerGroup":"g","queueName":"q","partitionsUpdated":0}`, shape(t, answer, err))
	answer, err = db.SeekPartition(ctx, tenant, "g", "q", "none", pg.SeekTarget{ToEnd: true})
	require.JSONEq(t, `{"success":false,"error":"Partition not found"}`, shape(t, answer, err))
	answer, err = db.SeekGroup(ctx, tenant, "g", "none", pg.SeekTarget{Offset: &back})
	require.Contains(t, shape(t, answer, err), "Queue not found or has no partitions")
	_, err = db.SeekGroup(ctx, tenant, "g", "q", pg.SeekTarget{Timestamp: "tomorrow"})
	require.ErrorIs(t, err, pg.ErrBadData)
}

// "To end" is the end at one moment: whatever a push stored before the answer is behind the cursor or all of it is before it.
// A preview tells exactly what the seek then does, and does nothing itself.
func TestSeekPreview(t *testing.T) {
	t.Parallel()
	db, database := kolkata(t)
	ctx, tenant := t.Context(), pg.DefaultTenant
	for i := range 30 {
		push(t, db, segment("q", fmt.Sprint("p", i%3), fmt.Sprint("m", i)))
	}
	exec(t, database, `UPDATE queen.log_segments SET created_at = timestamptz '2026-01-02 00:00:00+00' + make_interval(mins => base_offset::int)`)
	_, err := db.SeekPartition(ctx, tenant, "g", "q", "p0", pg.SeekTarget{Offset: new(int64(4))})
	require.NoError(t, err)
	_, err = db.SeekPartition(ctx, tenant, "g", "q", "p1", pg.SeekTarget{ToEnd: true})
	require.NoError(t, err)
	exec(t, database, `UPDATE queen.log_partitions SET log_start = 2 WHERE name = 'p1'`)
	exec(t, database, `DELETE FROM queen.log_segments s USING queen.log_partitions p WHERE p.id = s.partition_id AND s.base_offset < p.log_start`)
	// What the group still has before it, partition by partition.
	pending := func() map[string]int64 {
		rows, err := database.Pool(t).Query(ctx, `SELECT p.name, p.last_offset - GREATEST(COALESCE(c.committed, -1), p.log_start - 1)
			FROM queen.log_partitions p LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = 'g'`)
		require.NoError(t, err)
		left := map[string]int64{}
		var name string
		var n int64
		_, err = pgx.ForEachRow(rows, []any{&name, &n}, func() error { left[name] = n; return nil })
		require.NoError(t, err)
		return left
	}
	for name, to := range map[string]pg.SeekTarget{
		"end": {ToEnd: true}, "beginning": {Timestamp: "1970-01-01T00:00:00Z"}, "middle": {Timestamp: "2026-01-02T00:05:00Z"}, "offset": {Offset: new(int64(7))}, "first": {Offset: new(int64(0))},
	} {
		before := pending()
		raw, err := db.SeekPreview(ctx, tenant, "g", "q", nil, to)
		require.NoError(t, err)
		require.Equal(t, before, pending(), "%s: a preview changes nothing", name)
		var said struct{ PartitionsUpdated, PartitionsMoved, Again, Skipped, Pending int64 }
		require.NoError(t, json.Unmarshal(raw, &said))
		_, err = db.SeekGroup(ctx, tenant, "g", "q", to)
		require.NoError(t, err)
		var again, skipped, left, moved int64
		for partition, after := range pending() {
			again += max(after-before[partition], 0)
			skipped += max(before[partition]-after, 0)
			left += after
			if after != before[partition] {
				moved++
			}
		}
		require.Equal(t, []int64{3, moved, again, skipped, left}, []int64{said.PartitionsUpdated, said.PartitionsMoved, said.Again, said.Skipped, said.Pending}, name)
	}
	for _, unknown := range []struct {
		tenant    uuid.UUID
		queue     string
		partition *string
		want      string
	}{{tenant, "nothing", nil, "Queue not found or has no partitions"}, {uuid.New(), "q", nil, "Queue not found or has no partitions"}, {tenant, "q", new("nothing"), "Partition not found"}} {
		raw, err := db.SeekPreview(ctx, unknown.tenant, "g", unknown.queue, unknown.partition, pg.SeekTarget{ToEnd: true})
		require.NoError(t, err)
		require.Contains(t, string(raw), unknown.want)
	}
	_, err = db.SeekPreview(ctx, tenant, "g", "q", nil, pg.SeekTarget{Timestamp: "soon"})
	require.ErrorIs(t, err, pg.ErrBadData)
}

// A clone of a group gets what that group has not acknowledged, leased or not, and the group itself stays where it is.
func TestCloneGroup(t *testing.T) {
	t.Parallel()
	db, database := kolkata(t)
	ctx, tenant := t.Context(), pg.DefaultTenant
	ids := map[string]uuid.UUID{}
	for i := range 30 {
		name := fmt.Sprint("p", i%3)
		ids[name] = push(t, db, segment("q", name, fmt.Sprint("m", i))).PartitionID
	}
	_, err := db.SeekPartition(ctx, tenant, "g", "q", "p0", pg.SeekTarget{Offset: new(int64(4))})
	require.NoError(t, err)
	_, err = db.SeekPartition(ctx, tenant, "g", "q", "p1", pg.SeekTarget{ToEnd: true})
	require.NoError(t, err)
	// g has not touched p2, and holds a batch of p0; twin is ahead of it there, holds a lease, and waits for a redelivery elsewhere.
	exec(t, database, `UPDATE queen.log_consumers SET worker_id = 'w', batch_end = 6, lease_expires_at = now() + INTERVAL '1 hour' WHERE consumer_group = 'g' AND committed = 3`)
	exec(t, database, `UPDATE queen.log_partitions SET log_start = 2 WHERE name = 'p2'`)
	exec(t, database, `INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, worker_id, batch_end, lease_expires_at) SELECT id, 'twin', 7, 'v', 8, now() + INTERVAL '1 hour' FROM queen.log_partitions WHERE name = 'p0'`)

	raw, err := db.SeekPreview(ctx, tenant, "twin", "q", nil, pg.SeekTarget{Group: "g"})
	require.NoError(t, err)
	require.JSONEq(t, `{"success":true,"dryRun":true,"consumerGroup":"twin","queueName":"q","partitionName":null,"seekToEnd":false,"targetTimestamp":null,"targetGroup":"g",
		"partitionsUpdated":3,"updated":false,"partitionsMoved":2,"again":4,"skipped":10,"pending":14,"leases":1}`, string(raw))
	at, leased := committed(t, database, ids["p0"], "twin")
	require.Equal(t, []any{int64(7), true}, []any{at, leased}, "a preview changes nothing")

	raw, err = db.SeekGroup(ctx, tenant, "twin", "q", pg.SeekTarget{Group: "g"})
	require.NoError(t, err)
	require.JSONEq(t, `{"success":true,"consumerGroup":"twin","queueName":"q","partitionName":null,"seekToEnd":false,"targetTimestamp":null,"targetGroup":"g","partitionsUpdated":3,"updated":true}`, string(raw))
	for name, want := range map[string]int64{"p0": 3, "p1": 9, "p2": 1} {
		at, leased := committed(t, database, ids[name], "twin")
		require.Equal(t, want, at, name)
		require.False(t, leased, "%s: a seek ends the lease", name)
	}
	at, leased = committed(t, database, ids["p0"], "g")
	require.Equal(t, []any{int64(3), true}, []any{at, leased}, "the group that was copied stays as it is")
	_, err = db.SeekPartition(ctx, tenant, "single", "q", "p1", pg.SeekTarget{Group: "g"})
	require.NoError(t, err)
	var cursors int
	require.NoError(t, database.Pool(t).QueryRow(ctx, `SELECT count(*) FROM queen.log_consumers WHERE consumer_group = 'single'`).Scan(&cursors))
	require.Equal(t, 1, cursors)

	for _, dryRun := range []bool{true, false} {
		for _, one := range []struct {
			tenant             uuid.UUID
			queue, from, error string
		}{{tenant, "q", "nobody", "The group to copy was not found there"}, {tenant, "nothing", "g", "Queue not found or has no partitions"}, {uuid.New(), "q", "g", "Queue not found or has no partitions"}} {
			seek := db.SeekGroup
			if dryRun {
				seek = func(ctx context.Context, tenant uuid.UUID, group, queue string, to pg.SeekTarget) (json.RawMessage, error) {
					return db.SeekPreview(ctx, tenant, group, queue, nil, to)
				}
			}
			raw, err := seek(ctx, one.tenant, "other", one.queue, pg.SeekTarget{Group: one.from})
			require.NoError(t, err)
			require.Contains(t, string(raw), one.error)
		}
	}
}

func TestStreamPages(t *testing.T) {
	t.Parallel()
	db, database := kolkata(t)
	ctx, tenant := t.Context(), pg.DefaultTenant
	for _, name := range []string{"b", "a", "c"} {
		_, err := db.RegisterStreamQuery(ctx, tenant, json.RawMessage(`{"name":"`+name+`","source_queue":"q","sink_queue":"","config_hash":"h"}`))
		require.NoError(t, err)
	}
	exec(t, database, `INSERT INTO queen_streams.state (query_id, partition_id, key, value) SELECT q.id, gen_random_uuid(), g::text, '{"n":1}' FROM queen_streams.queries q, generate_series(1, 3) g WHERE q.name = 'a'`)
	type page struct {
		Streams []struct {
			Name                  string
			StateRows, Partitions int
			StateRowsExact        bool
			OldestState           *string
		}
		NextCursor *string
	}
	read := func(tenant uuid.UUID, limit int, after string) (p page) {
		raw, err := db.ListStreams(ctx, tenant, pg.StreamFilter{Limit: limit, Cursor: after})
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(raw, &p))
		return p
	}
	first := read(tenant, 2, "")
	require.Equal(t, []string{"a", "b"}, []string{first.Streams[0].Name, first.Streams[1].Name})
	require.Equal(t, []int{3, 3}, []int{first.Streams[0].StateRows, first.Streams[0].Partitions})
	require.True(t, first.Streams[0].StateRowsExact)
	require.NotNil(t, first.Streams[0].OldestState)
	require.Nil(t, first.Streams[1].OldestState, "what is not there is not known")
	last := read(tenant, 2, *first.NextCursor)
	require.Len(t, last.Streams, 1)
	require.Nil(t, last.NextCursor)
	require.Empty(t, read(uuid.New(), 10, "").Streams, "another tenant has none")

	var a, b uuid.UUID
	require.NoError(t, database.Pool(t).QueryRow(ctx, `SELECT (SELECT id FROM queen_streams.queries WHERE name = 'a'), (SELECT id FROM queen_streams.queries WHERE name = 'b')`).Scan(&a, &b))
	found, err := db.StreamPartitions(ctx, tenant, []uuid.UUID{a, b, uuid.New()}, 2)
	require.NoError(t, err)
	require.Len(t, found, 2)
	sort.Slice(found, func(i, j int) bool { return len(found[i].Partitions) > len(found[j].Partitions) })
	require.Equal(t, pg.StreamPartitions{Query: a, Partitions: found[0].Partitions, More: true}, found[0])
	require.Len(t, found[0].Partitions, 2)
	require.Equal(t, pg.StreamPartitions{Query: b, Partitions: []uuid.UUID{}}, found[1])
	found, err = db.StreamPartitions(ctx, tenant, []uuid.UUID{a}, 3)
	require.NoError(t, err)
	require.Len(t, found[0].Partitions, 3)
	require.False(t, found[0].More)
	var wanted []pg.StreamRow
	for _, partition := range found[0].Partitions {
		for _, key := range []string{"1", "2", "control"} {
			wanted = append(wanted, pg.StreamRow{Query: a, Partition: partition, Key: key})
		}
	}
	rows, err := db.StreamRows(ctx, tenant, wanted)
	require.NoError(t, err)
	require.Len(t, rows, 2, "of three rows in three partitions two have these keys")
	require.JSONEq(t, `{"n":1}`, string(rows[0].Value))
	rows, err = db.StreamRows(ctx, uuid.New(), wanted)
	require.NoError(t, err)
	require.Empty(t, rows)
}

func TestSeekToEndSkipsNoLaterPush(t *testing.T) {
	t.Parallel()
	db, database := kolkata(t)
	p := push(t, db, segment("q", "p", "first")).PartitionID
	var pushing sync.WaitGroup
	for w := range 3 {
		pushing.Go(func() {
			for i := range 20 {
				s := segment("q", "p", fmt.Sprintf("%d-%d", w, i))
				if _, err := db.PushMulti(context.Background(), []pg.Segment{s}, pg.PushOptions{}); err != nil {
					t.Errorf("push: %v", err)
				}
			}
		})
	}
	for range 20 {
		_, err := db.SeekPartition(t.Context(), pg.DefaultTenant, "g", "q", "p", pg.SeekTarget{ToEnd: true})
		require.NoError(t, err)
		at, _ := committed(t, database, p, "g")
		after := push(t, db, segment("q", "p", uuid.NewString())).BaseOffset
		require.Less(t, at, after)
	}
	pushing.Wait()
}

func TestDeleteGroups(t *testing.T) {
	t.Parallel()
	db, database := kolkata(t)
	ctx, tenant := t.Context(), pg.DefaultTenant
	for _, queue := range []string{"a", "b"} {
		push(t, db, segment(queue, "p", "1"))
		push(t, db, segment(queue, "r", "2"))
		for _, group := range []string{"g", "h"} {
			request := popRequest(queue, "w")
			request.Group, request.MaxPartitions = group, 2
			_, err := db.PopWildcard(ctx, request)
			require.NoError(t, err)
		}
	}
	records := func(group string) (cursors, subscriptions int) {
		t.Helper()
		require.NoError(t, database.Pool(t).QueryRow(ctx, `SELECT (SELECT count(*) FROM queen.log_consumers WHERE consumer_group = $1),
			(SELECT count(*) FROM queen.consumer_groups_metadata WHERE consumer_group = $1)`, group).Scan(&cursors, &subscriptions))
		return cursors, subscriptions
	}
	counts := func(group string, cursors, subscriptions int) {
		t.Helper()
		a, b := records(group)
		require.Equal(t, []int{cursors, subscriptions}, []int{a, b})
	}
	var groups []struct{ Name, QueueName, SubscriptionMode, SubscriptionTimestamp string }
	answer, err := db.ConsumerGroups(ctx, tenant)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(answer, &groups))
	require.Len(t, groups, 4)
	require.Equal(t, []string{"g", "a", "all", "1970-01-01T00:00:00.000Z"}, []string{groups[0].Name, groups[0].QueueName, groups[0].SubscriptionMode, groups[0].SubscriptionTimestamp})

	answer, err = db.SetGroupSubscription(ctx, tenant, "g", "2026-09-14T00:00:00Z")
	require.JSONEq(t, `{"success":true,"consumerGroup":"g","newTimestamp":"<time>","rowsUpdated":2}`, shape(t, answer, err))
	_, err = db.SetGroupSubscription(ctx, tenant, "g", "soon")
	require.ErrorIs(t, err, pg.ErrBadData)
	answer, err = db.SetGroupSubscription(ctx, uuid.New(), "g", "2026-09-14")
	require.Contains(t, shape(t, answer, err), `"rowsUpdated": 0`)

	answer, err = db.DeleteGroup(ctx, uuid.New(), "g", true)
	require.JSONEq(t, `{"success":true,"consumerGroup":"g","deletedPartitions":0,"metadataDeleted":true}`, shape(t, answer, err))
	counts("g", 4, 2)
	answer, err = db.DeleteGroupForQueue(ctx, tenant, "g", "a", false)
	require.JSONEq(t, `{"success":true,"consumerGroup":"g","queueName":"a","deletedPartitions":2,"metadataDeleted":false}`, shape(t, answer, err))
	counts("g", 2, 2)
	answer, err = db.DeleteGroupForQueue(ctx, tenant, "g", "none", true)
	require.Contains(t, shape(t, answer, err), `"deletedPartitions": 0`)
	answer, err = db.DeleteGroup(ctx, tenant, "g", true)
	require.JSONEq(t, `{"success":true,"consumerGroup":"g","deletedPartitions":2,"metadataDeleted":true}`, shape(t, answer, err))
	counts("g", 0, 0)
	counts("h", 4, 2)
	claim, err := db.PopWildcard(ctx, popRequest("a", "w2"))
	require.NoError(t, err)
	require.NotEmpty(t, claim.Partitions, "its next pop is a first contact and reads everything again")
}

func TestPartitionPagesAndPurge(t *testing.T) {
	t.Parallel()
	db, _ := kolkata(t)
	ctx, tenant := t.Context(), pg.DefaultTenant
	var p2 uuid.UUID
	for i := range 5 {
		for range i + 1 {
			id := push(t, db, segment("q", fmt.Sprintf("p_%d", i), uuid.NewString(), uuid.NewString())).PartitionID
			if i == 2 {
				p2 = id
			}
		}
	}
	push(t, db, segment("q", "px", "1"))
	request := popRequest("q", "w")
	request.Partition, request.Budget, request.AutoAck = "p_4", 3, true
	_, err := db.PopSpecific(ctx, request)
	require.NoError(t, err)
	type lister func(context.Context, uuid.UUID, string, pg.PartitionPage) (json.RawMessage, error)
	walk := func(list lister, page pg.PartitionPage) (names []string) {
		t.Helper()
		for {
			answer, err := list(ctx, tenant, "q", page)
			require.NoError(t, err)
			var found struct {
				Partitions []struct{ Name string }
				NextCursor *string
			}
			require.NoError(t, json.Unmarshal(answer, &found))
			for _, p := range found.Partitions {
				names = append(names, p.Name)
			}
			if found.NextCursor == nil {
				return names
			}
			page.Cursor = *found.NextCursor
		}
	}
	pages := func(page pg.PartitionPage) []string { t.Helper(); return walk(db.ListPartitions, page) }
	for _, limit := range []int{0, 1, 4, 6} {
		require.Equal(t, []string{"p_0", "p_1", "p_2", "p_3", "p_4", "px"}, walk(db.QueueDetail, pg.PartitionPage{Limit: limit}))
		require.Equal(t, []string{"p_0", "p_1", "p_2", "p_3", "p_4", "px"}, walk(db.QueueSummary, pg.PartitionPage{Limit: limit}))
	}
	for _, list := range []lister{db.QueueDetail, db.QueueSummary} {
		answer, err := list(ctx, tenant, "q", pg.PartitionPage{Limit: 1})
		require.Regexp(t, `"partitionCount":6.*"total":31`, shape(t, answer, err), "the totals are those of the whole queue")
		_, err = list(ctx, tenant, "q", pg.PartitionPage{Cursor: "?"})
		require.ErrorIs(t, err, pg.ErrInvalidCursor)
	}
	require.Equal(t, []string{"p_0", "p_1", "p_2", "p_3", "p_4", "px"}, pages(pg.PartitionPage{Limit: 4}))
	require.Equal(t, []string{"p_0", "p_1", "p_2", "p_3", "p_4"}, pages(pg.PartitionPage{Prefix: "p_", Limit: 2}), "a prefix is no pattern")
	require.Equal(t, []string{"p_3", "p_4", "p_2", "p_1", "p_0", "px"}, pages(pg.PartitionPage{Sort: "depth", Limit: 1}))
	require.Equal(t, []string{"p_4", "p_3", "p_2", "p_1", "p_0", "px"}, pages(pg.PartitionPage{Sort: "depth", Limit: 4, Group: "h"}))
	require.Equal(t, []string{"p_0", "p_1", "p_2", "p_3", "p_4", "px"}, pages(pg.PartitionPage{Sort: "age", Limit: 3}))
	require.Equal(t, []string{"p_0", "p_1", "p_2", "p_3", "p_4", "px"}, pages(pg.PartitionPage{Sort: "nonsense"}))
	answer, err := db.ListPartitions(ctx, tenant, "none", pg.PartitionPage{})
	require.JSONEq(t, `{"error":"Queue not found"}`, shape(t, answer, err))
	_, err = db.ListPartitions(ctx, tenant, "q", pg.PartitionPage{Cursor: "?"})
	require.ErrorIs(t, err, pg.ErrInvalidCursor)

	purge := func(partition string, o pg.PurgeOptions) string {
		t.Helper()
		answer, err := db.PurgeQueue(ctx, tenant, "q", partition, o)
		return shape(t, answer, err)
	}
	require.JSONEq(t, `{"queue":"q","mode":"consumed","dryRun":true,"partitions":1,"messages":3,"unread":0,"done":true}`, purge("", pg.PurgeOptions{DryRun: true, Mode: "consumed"}))
	require.JSONEq(t, `{"queue":"q","mode":"consumed","dryRun":false,"partitions":1,"messages":2,"unread":0,"done":true}`, purge("", pg.PurgeOptions{Mode: "consumed"}), "whole segments")
	require.JSONEq(t, `{"queue":"q","mode":"consumed","dryRun":false,"partitions":0,"messages":0,"unread":0,"done":true}`, purge("", pg.PurgeOptions{Mode: "consumed"}))
	require.JSONEq(t, `{"queue":"q","mode":"all","dryRun":true,"partitions":6,"messages":29,"unread":28,"done":true}`, purge("", pg.PurgeOptions{DryRun: true, Mode: "all"}))
	require.JSONEq(t, `{"queue":"q","mode":"all","dryRun":false,"partitions":1,"messages":6,"unread":6,"done":true}`, purge("p_2", pg.PurgeOptions{Mode: "all"}))
	_, found, err := db.SegmentAt(ctx, p2, 0)
	require.NoError(t, err)
	require.False(t, found)
	rounds, messages := 0, 0
	for done := false; !done; rounds++ {
		var step struct {
			Messages int
			Done     bool
		}
		answer, err := db.PurgeQueue(ctx, tenant, "q", "", pg.PurgeOptions{Mode: "all", Limit: 3})
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(answer, &step))
		messages, done = messages+step.Messages, step.Done
		require.Less(t, rounds, 20)
	}
	require.Equal(t, 23, messages)
	require.Greater(t, rounds, 2, "in bounded steps")
	answer, err = db.QueueDepth(ctx, tenant, "q", "")
	require.Contains(t, shape(t, answer, err), `"depth": 0`)
	answer, err = db.PurgeQueue(ctx, uuid.New(), "q", "", pg.PurgeOptions{Mode: "all"})
	require.JSONEq(t, `{"error":"Queue not found"}`, shape(t, answer, err))
	require.Contains(t, purge("", pg.PurgeOptions{}), "mode must be")
}

func TestLeaseMonitoring(t *testing.T) {
	t.Parallel()
	db, database := kolkata(t)
	ctx, tenant := t.Context(), pg.DefaultTenant
	ids := map[string]uuid.UUID{}
	for _, name := range []string{"a", "b", "c"} {
		ids[name] = push(t, db, segment("q", name, name)).PartitionID
		request := popRequest("q", "lease-"+name)
		request.Partition = name
		_, err := db.PopSpecific(ctx, request)
		require.NoError(t, err)
	}
	exec(t, database, `UPDATE queen.log_consumers SET lease_expires_at = clock_timestamp() + interval '5 s', lease_acquired_at = clock_timestamp() - interval '10 min' WHERE worker_id = 'lease-b'`)
	exec(t, database, `UPDATE queen.log_consumers SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE worker_id = 'lease-c'`)
	leases := func(f pg.LeaseFilter) (found []string) {
		t.Helper()
		answer, err := db.Leases(ctx, tenant, f)
		require.NoError(t, err)
		var list struct {
			Leases           []struct{ LeaseID string }
			Total, Abandoned int
		}
		require.NoError(t, json.Unmarshal(answer, &list))
		require.Equal(t, 1, list.Abandoned)
		for _, l := range list.Leases {
			found = append(found, l.LeaseID)
		}
		if f.Limit == 0 {
			require.Equal(t, list.Total, len(found))
		}
		return found
	}
	soon, long := 30, 60
	require.Equal(t, []string{"lease-a", "lease-b"}, leases(pg.LeaseFilter{}))
	require.Equal(t, []string{"lease-b"}, leases(pg.LeaseFilter{Limit: 1, Offset: 1}))
	require.Equal(t, []string{"lease-b"}, leases(pg.LeaseFilter{ExpiringWithin: &soon}))
	require.Equal(t, []string{"lease-b", "lease-a"}, leases(pg.LeaseFilter{ExpiringWithin: ptr(1000)}), "soonest first")
	require.Equal(t, []string{"lease-b"}, leases(pg.LeaseFilter{HeldLonger: &long}))
	require.Equal(t, []string{"lease-c"}, leases(pg.LeaseFilter{Abandoned: true}))
	exec(t, database, `UPDATE queen.log_consumers SET attempt_count = CASE worker_id WHEN 'lease-c' THEN 7 WHEN 'lease-a' THEN 5 ELSE 4 END`)
	require.Equal(t, []string{"lease-c", "lease-a"}, leases(pg.LeaseFilter{MinAttempts: ptr(5)}), "held and abandoned ones, the most often delivered first")
	require.Empty(t, leases(pg.LeaseFilter{MinAttempts: ptr(8)}))
	answer, err := db.Leases(ctx, uuid.New(), pg.LeaseFilter{})
	require.JSONEq(t, `{"leases":[],"total":0,"abandoned":0,"pagination":{"limit":100,"offset":0}}`, shape(t, answer, err))

	answer, err = db.ReleaseLeaseOf(ctx, tenant, ids["a"], "g", "")
	require.Contains(t, shape(t, answer, err), `"leaseId": "lease-a"`)
	answer, err = db.ReleaseLeaseOf(ctx, tenant, ids["a"], "g", "")
	require.Contains(t, shape(t, answer, err), `"released": false`)
	request := popRequest("q", "lease-new")
	request.Partition = "a"
	claim, err := db.PopSpecific(ctx, request)
	require.NoError(t, err)
	require.Len(t, claim.Partitions, 1, "its messages are there at once")
	result, err := db.AckByHash(ctx, pg.HashAck{PartitionID: ids["a"], Group: "g", Worker: "lease-a", Hashes: hashesOf("a"), Statuses: []string{"completed"}})
	require.NoError(t, err)
	require.False(t, result.OK, "the old holder has lost it")
}

func ptr[T any](v T) *T { return &v }

// Whoever may seek may fill the table of repairs, which every broker reads every second.
func TestRepairsAreFoundByTheirTime(t *testing.T) {
	t.Parallel()
	_, database := setup(t)
	pool := database.Pool(t)
	_, err := pool.Exec(t.Context(), `INSERT INTO queen.hotlist_repairs (created_at) SELECT now() - interval '30 minutes' FROM generate_series(1, 20000)`)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `ANALYZE queen.hotlist_repairs`)
	require.NoError(t, err)
	rows, err := pool.Query(t.Context(), `EXPLAIN `+pg.HotListRepairsQuery)
	require.NoError(t, err)
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Contains(t, strings.Join(plan, "\n"), "Index Cond: (created_at > ")
}
