package sql_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"queenmq/internal/testdb"
)

// A vouchedParcel is a parcel with what its sender says about earlier ones.
type vouchedParcel struct {
	parcel
	// offset is the verified offset, -1 for none; age is how old the newest message is that it does not cover, 0 says nothing.
	offset int64
	age    time.Duration
}

// A storedVerdict is one element of the row of log_push_core_v1.
type storedVerdict struct {
	ID      uuid.UUID
	Status  string
	Base    *int64
	Created time.Time
	Window  int32
	Detail  string
}

// pushRow calls log_push_core_v1, or log_push_known_v1, with the ids of the partitions and returns the verdicts in input order. Nothing is
// returned for a call that decided nothing; short tells that every segment was stored without the core.
func pushRow(t tester, q querier, tenant uuid.UUID, parcels []vouchedParcel, ids []uuid.UUID, byID bool) (verdicts []storedVerdict, short bool) {
	t.Helper()
	plain := make([]parcel, len(parcels))
	since := make([]*time.Time, len(parcels))
	for i, p := range parcels {
		plain[i] = p.parcel
		plain[i].tenant, plain[i].verified = tenant, &parcels[i].offset
		if p.age > 0 {
			since[i] = new(time.Now().Add(-p.age))
		}
	}
	args := append(pushArguments(false, nil, plain)[:8], ids, since)
	query := `log_push_core_v1($1, $2, $3, $4, $5, $6, $7, $8, FALSE, NULL, NULL, NULL, $9, $10)`
	if byID {
		query = `log_push_known_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`
	}
	var order, windows []int32
	var bases []*int64
	var partitions []uuid.UUID
	var created []time.Time
	var statuses, details []*string
	require.NoError(t, q.QueryRow(context.Background(), `SELECT o_ord, o_pids, o_base, o_created, o_windows, o_status, o_detail::text[] FROM queen.`+query, args...).
		Scan(&order, &partitions, &bases, &created, &windows, &statuses, &details))
	if bases == nil {
		require.Nil(t, order)
		return nil, false
	}
	if short = order == nil; short {
		partitions = ids
		for i := range ids {
			order = append(order, int32(i+1))
		}
	}
	verdicts = make([]storedVerdict, len(parcels))
	for k, position := range order {
		v := storedVerdict{ID: partitions[k], Status: "queued", Base: bases[k], Created: created[k], Window: windows[k], Detail: "{}"}
		if statuses != nil {
			v.Status, v.Detail = *statuses[k], *details[k]
		}
		verdicts[position-1] = v
	}
	return verdicts, short
}

// knownQueues are the queues of TestPushKnownEqualsTheCore and the settings they may have.
var knownQueues, knownSettings = []string{"a", "b"}, []string{
	`dedup_window_seconds = 3600`, `dedup_window_seconds = 3600`, `dedup_window_seconds = 0`, `dedup_window_seconds = 60`, `encryption_enabled = TRUE`,
	`encryption_enabled = FALSE`, `max_queue_size = 12`, `max_queue_size = 0`, `max_queue_size = NULL`,
}

// TestPushKnownEqualsTheCore: whatever is stored, claimed and configured, log_push_known_v1 decides and writes what log_push_core_v1 does,
// or says that it does not decide and writes nothing.
func TestPushKnownEqualsTheCore(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	var ways knownWays
	rapid.Check(t, func(t *rapid.T) {
		byName, byID := uuid.New(), uuid.New()
		heads := map[string]int64{}
		remembered := [2]map[string]uuid.UUID{{}, {}}
		both := func(sql string, args ...any) {
			for _, tenant := range []uuid.UUID{byName, byID} {
				log.exec(t, sql, append([]any{tenant}, args...)...)
			}
		}
		for range rapid.IntRange(2, 8).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0, 1:
				both(`UPDATE queen.queues SET `+rapid.SampledFrom(knownSettings).Draw(t, "setting")+` WHERE tenant_id = $1 AND name = $2`, rapid.SampledFrom(knownQueues).Draw(t, "queue"))
				continue
			case 2:
				name := rapid.IntRange(0, 3).Draw(t, "partition")
				both(`DELETE FROM queen.log_txns t USING queen.log_partitions p, queen.queues q WHERE t.partition_id = p.id AND q.id = p.queue_id AND q.tenant_id = $1 AND p.name = $2`, fmt.Sprint("p", name))
				both(`DELETE FROM queen.log_partitions p USING queen.queues q WHERE q.id = p.queue_id AND q.tenant_id = $1 AND p.name = $2`, fmt.Sprint("p", name))
				continue
			}
			var parcels []vouchedParcel
			for _, at := range rapid.SliceOfNDistinct(rapid.IntRange(0, 7), 1, 6, rapid.ID[int]).Draw(t, "partitions") {
				p := vouchedParcel{parcel: parcel{queue: knownQueues[at/4], partition: fmt.Sprint("p", at%4), plain: rapid.Bool().Draw(t, "plain")}, offset: -1}
				for _, id := range rapid.SliceOfNDistinct(rapid.IntRange(0, 60), 1, 3, rapid.ID[int]).Draw(t, "ids") {
					p.ids = append(p.ids, fmt.Sprint(id))
				}
				if head, stored := heads[p.queue+p.partition]; stored {
					p.offset = rapid.SampledFrom([]int64{head, head, head, -1, head - 1, head + 1}).Draw(t, "verified")
					p.age = rapid.SampledFrom([]time.Duration{0, 2 * time.Hour, 2 * time.Hour, 2 * time.Minute, time.Second}).Draw(t, "since")
				}
				parcels = append(parcels, p)
			}
			want, _ := pushRow(t, log, byName, parcels, rememberedIDs(parcels, remembered[0]), false)
			got := ways.push(t, log, byID, parcels, remembered[1])
			for i := range want {
				require.WithinDuration(t, want[i].Created, got[i].Created, time.Minute)
				want[i].Created, got[i].Created = time.Time{}, time.Time{}
				name := parcels[i].queue + parcels[i].partition
				remembered[0][name], remembered[1][name] = want[i].ID, got[i].ID
				want[i].ID, got[i].ID = uuid.Nil, uuid.Nil
				if want[i].Base != nil {
					heads[name] = *want[i].Base + int64(len(parcels[i].ids)) - 1
				}
			}
			require.Empty(t, cmp.Diff(want, got))
			require.Empty(t, cmp.Diff(rowsOf(t, log, byName), rowsOf(t, log, byID)))
		}
	})
	require.Positive(t, ways.short)
	require.Positive(t, ways.undecided)
	require.Positive(t, ways.core)
}

// knownWays counts what calls of log_push_known_v1 came to.
type knownWays struct{ short, undecided, core int }

// push stores parcels by id when all are remembered, and else, or when that decides nothing, by name. The verdicts are in the order of the
// parcels.
func (w *knownWays) push(t tester, log pushLog, tenant uuid.UUID, parcels []vouchedParcel, remembered map[string]uuid.UUID) []storedVerdict {
	t.Helper()
	order, ids := make([]int, len(parcels)), rememberedIDs(parcels, remembered)
	for i := range order {
		order[i] = i
	}
	var verdicts []storedVerdict
	if !slices.Contains(ids, uuid.Nil) {
		slices.SortFunc(order, func(a, b int) int { return bytes.Compare(ids[a][:], ids[b][:]) })
		sorted, sortedIDs := make([]vouchedParcel, len(parcels)), make([]uuid.UUID, len(parcels))
		for k, i := range order {
			sorted[k], sortedIDs[k] = parcels[i], ids[i]
		}
		before := rowsOf(t, log, tenant)
		answer, short := pushRow(t, log, tenant, sorted, sortedIDs, true)
		switch {
		case answer == nil:
			w.undecided++
			require.Empty(t, cmp.Diff(before, rowsOf(t, log, tenant)), "an undecided call wrote something")
		case short:
			w.short++
		default:
			w.core++
		}
		if answer != nil {
			verdicts = make([]storedVerdict, len(parcels))
			for k, i := range order {
				verdicts[i] = answer[k]
			}
		}
	}
	if verdicts == nil {
		verdicts, _ = pushRow(t, log, tenant, parcels, ids, false)
	}
	return verdicts
}

// rememberedIDs are the remembered ids of the partitions, the nil UUID where there is none.
func rememberedIDs(parcels []vouchedParcel, remembered map[string]uuid.UUID) []uuid.UUID {
	ids := make([]uuid.UUID, len(parcels))
	for i, p := range parcels {
		ids[i] = remembered[p.queue+p.partition]
	}
	return ids
}

// rowsOf is everything that pushes of a tenant left behind, without ids and times.
func rowsOf(t tester, log pushLog, tenant uuid.UUID) []string {
	t.Helper()
	return scan[[]string](t, log, `SELECT COALESCE(array_agg(r.line ORDER BY r.line), '{}') FROM (
		SELECT format('%s/%s head %s %s %s %s', q.name, p.name, p.last_offset, p.oldest_live_at IS NULL, p.oldest_txn_at IS NULL,
		              (SELECT max(s.created_at) FROM queen.log_segments s WHERE s.partition_id = p.id) - p.last_write_at <= interval '1 s') AS line
		  FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id WHERE q.tenant_id = $1
		UNION ALL
		SELECT format('%s/%s segment %s-%s %s %s', q.name, p.name, s.base_offset, s.end_offset, s.blob, s.created_at >= COALESCE(p.oldest_live_at, 'infinity'))
		  FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id JOIN queen.log_segments s ON s.partition_id = p.id WHERE q.tenant_id = $1
		UNION ALL
		SELECT format('%s/%s sidecar %s-%s %s %s', q.name, p.name, x.base_offset, x.end_offset, x.hashes,
		              x.created_at = (SELECT s.created_at FROM queen.log_segments s WHERE s.partition_id = p.id AND s.base_offset = x.base_offset))
		  FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id JOIN queen.log_txns x ON x.partition_id = p.id WHERE q.tenant_id = $1) r`, tenant)
}

// TestPushKnownDoubtsItsCaller: ids in another order, twice, of somebody else or of nothing are undecided.
func TestPushKnownDoubtsItsCaller(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	tenant, other := uuid.New(), uuid.New()
	two := []vouchedParcel{{parcel: parcel{queue: "q", partition: "a", ids: ids("1")}, offset: -1}, {parcel: parcel{queue: "q", partition: "b", ids: ids("1")}, offset: -1}}
	stored, _ := pushRow(t, log, tenant, two, nil, false)
	theirs, _ := pushRow(t, log, other, two, nil, false)
	for i := range two {
		two[i].ids, two[i].offset = ids("2"), 0
	}
	if bytes.Compare(stored[0].ID[:], stored[1].ID[:]) > 0 {
		stored[0], stored[1], two[0], two[1] = stored[1], stored[0], two[1], two[0]
	}
	before := rowsOf(t, log, tenant)
	for name, known := range map[string][]uuid.UUID{
		"Swapped": {stored[1].ID, stored[0].ID}, "Twice": {stored[0].ID, stored[0].ID}, "Nothing": {stored[0].ID, uuid.Max}, "Foreign": {theirs[0].ID, theirs[1].ID},
	} {
		verdicts, _ := pushRow(t, log, tenant, two, known, true)
		require.Nil(t, verdicts, name)
		require.Empty(t, cmp.Diff(before, rowsOf(t, log, tenant)), name)
	}
	verdicts, short := pushRow(t, log, tenant, two, []uuid.UUID{stored[0].ID, stored[1].ID}, true)
	require.True(t, short)
	require.EqualValues(t, 1, *verdicts[0].Base)

	// A segment whose parts contradict each other is stored by no way.
	for _, arrays := range [][2][]byte{{hashOf("3"), {}}, {hashOf("3"), nil}, {{1}, {1}}} {
		_, err := log.Exec(t.Context(), `SELECT queen.log_push_known_v1(ARRAY['q'], ARRAY[$1], ARRAY[1], ARRAY[$2::bytea], ARRAY[1::int8], ARRAY[$3::bytea], ARRAY[$4::uuid], NULL, ARRAY[$5::uuid], NULL)`,
			two[0].partition, arrays[0], arrays[1], tenant, stored[0].ID)
		requireSQLState(t, err, "23502", "violates not-null constraint")
	}
}

// TestPushKnownPlans: the rows are found through the primary keys, also in a session that planned its statements while the tables were empty.
func TestPushKnownPlans(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	tenant := uuid.New()
	bundle := func(queues, width int) []vouchedParcel {
		parcels := make([]vouchedParcel, width)
		for i := range parcels {
			parcels[i] = vouchedParcel{parcel: parcel{queue: fmt.Sprint("q", i%queues), partition: fmt.Sprint("p", i), ids: ids("0")}, offset: -1}
		}
		return parcels
	}
	// known pushes more into partitions that have one message: a call for those of one queue, then one for all.
	known := func(q querier, parcels []vouchedParcel, stored []storedVerdict) {
		var order []int
		for i := range parcels {
			order = append(order, i)
		}
		slices.SortFunc(order, func(a, b int) int { return bytes.Compare(stored[a].ID[:], stored[b].ID[:]) })
		for _, queue := range []string{"q0", ""} {
			var sorted []vouchedParcel
			var sortedIDs []uuid.UUID
			for _, i := range order {
				if p := parcels[i]; queue == "" || p.queue == queue {
					p.ids, p.offset = ids("k"+queue+p.ids[0]), p.offset+1
					if queue == "" && p.queue == "q0" {
						p.offset++
					}
					sorted, sortedIDs = append(sorted, p), append(sortedIDs, stored[i].ID)
				}
			}
			_, short := pushRow(t, q, tenant, sorted, sortedIDs, true)
			require.True(t, short)
		}
	}
	early := log.connect(t)
	small := bundle(2, 4)
	stored, _ := pushRow(t, log, tenant, small, nil, false)
	known(early, small, stored)
	log.exec(t, `DELETE FROM queen.queues WHERE tenant_id = $1`, tenant)
	log.exec(t, `VACUUM ANALYZE`)
	const width = 64
	log.exec(t, `INSERT INTO queen.queues (name, tenant_id) SELECT 'q' || i, $1 FROM generate_series(0, 999) i`, tenant)
	log.exec(t, `INSERT INTO queen.log_partitions (queue_id, name) SELECT q.id, 'x' || i FROM queen.queues q, generate_series(1, 20) i`)
	stored, _ = pushRow(t, log, tenant, bundle(8, width), nil, false)
	log.exec(t, `ANALYZE`)
	for name, conn := range map[string]*pgx.Conn{"early": early, "late": log.connect(t)} {
		for _, table := range []string{"queen.log_partitions", "queen.queues"} {
			got := measure(t, conn, table, func(tx pgx.Tx) { known(tx, bundle(8, width), stored) })
			require.Zero(t, got.seqScans, name)
			require.LessOrEqual(t, got.rows, 8*width, name+table)
		}
	}
}

// BenchmarkPush compares the two ways of storing segments of one message in partitions that exist: microseconds of the cheapest call of many,
// with its commit, which other programs of the machine disturb least.
func BenchmarkPush(b *testing.B) {
	log := pushLog{testdb.New(b).Pool(b)}
	conn, err := log.Acquire(b.Context())
	require.NoError(b, err)
	defer conn.Release()
	tenant := uuid.New()
	for _, width := range []int{1, 4, 16, 64} {
		parcels := make([]vouchedParcel, width)
		for i := range parcels {
			parcels[i] = vouchedParcel{parcel: parcel{queue: fmt.Sprint("q", width), partition: fmt.Sprint("p", i), ids: ids("0")}, offset: -1}
		}
		stored, _ := pushRow(b, log, tenant, parcels, make([]uuid.UUID, width), false)
		slices.SortFunc(stored, func(a, b storedVerdict) int { return bytes.Compare(a.ID[:], b.ID[:]) })
		known, names := make([]uuid.UUID, width), map[uuid.UUID]string{}
		for i, p := range parcels {
			names[scan[uuid.UUID](b, log, `SELECT p.id FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.tenant_id = $1 AND q.name = $2 AND p.name = $3`,
				tenant, p.queue, p.partition)] = p.partition
			known[i] = stored[i].ID
		}
		for i := range parcels {
			parcels[i].partition = names[known[i]]
		}
		n := 0
		for _, way := range []string{"names", "ids"} {
			b.Run(fmt.Sprintf("%s-%d", way, width), func(b *testing.B) {
				least := time.Duration(1<<63 - 1)
				for b.Loop() {
					n++
					for i := range parcels {
						parcels[i].ids, parcels[i].offset = ids(fmt.Sprint(n, "-", i)), int64(n-1)
					}
					begin := time.Now()
					_, short := pushRow(b, conn, tenant, parcels, known, way == "ids")
					least = min(least, time.Since(begin))
					require.Equal(b, way == "ids", short)
				}
				b.ReportMetric(float64(least.Nanoseconds())/1e3, "us-least")
			})
		}
	}
}
