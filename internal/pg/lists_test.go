package pg_test

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
	"queenmq/internal/testdb"
)

// names that a position of a list must not take apart wrongly.
var listedNames = []string{"a", "A", "a|1|b", "|", "äöü", "日本", "b b", "-x", "zz"}

// fillLists makes a queue of each name, with two partitions each and up to three groups that are behind by different numbers of messages
// of different ages, and queues and groups of another tenant.
func fillLists(t *testing.T, database *testdb.Database) {
	t.Helper()
	for i, name := range listedNames {
		for _, tenant := range []uuid.UUID{pg.DefaultTenant, uuid.MustParse("00000000-0000-0000-0000-00000000000b")} {
			exec(t, database, `INSERT INTO queen.queues (name, tenant_id, namespace, max_queue_size) VALUES ($1, $2, $3, $4)`, name, tenant, []string{"n", "m"}[i%2], i%3)
			exec(t, database, `INSERT INTO queen.log_partitions (queue_id, name, last_offset) SELECT q.id, $1 || p, 9 FROM queen.queues q, generate_series(1, 2) p WHERE q.name = $1 AND q.tenant_id = $2`, name, tenant)
		}
	}
	exec(t, database, `INSERT INTO queen.log_segments (partition_id, base_offset, end_offset, created_at, blob)
		SELECT p.id, o, o, now() - make_interval(mins => 10 - o, secs => abs(hashtext(p.name)) % 50), '' FROM queen.log_partitions p, generate_series(0, 9) o`)
	exec(t, database, `INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, total_consumed, worker_id, lease_expires_at, lease_acquired_at, batch_end, attempt_offset, attempt_count)
		SELECT p.id, g.name, abs(hashtext(p.name || g.name)) % 11 - 1, abs(hashtext(g.name || p.name)) % 5, CASE abs(hashtext(p.id::text)) % 4 WHEN 0 THEN 'w' WHEN 1 THEN '__retry__' END,
		       now() + make_interval(secs => 600 * (1 - 2 * (abs(hashtext(g.name)) % 2))), now(), 9, abs(hashtext(p.name)) % 9, abs(hashtext(p.name)) % 7
		  FROM queen.log_partitions p, (VALUES ('g'), ('G|2|x'), ('ö')) g (name)`)
	exec(t, database, `SELECT queen.log_refresh_all_stats_v1()`)
}

type listAnswer[Row any] struct {
	Rows       []Row
	Total      int
	NextCursor *string
}

// walkList reads all pages of a list whose rows stand under a name.
func walkList[Row any](t *testing.T, under string, page func(cursor string) (json.RawMessage, error)) (rows []Row, pages int) {
	t.Helper()
	cursor := ""
	for {
		raw, err := page(cursor)
		require.NoError(t, err)
		answer := listAnswer[Row]{}
		require.NoError(t, json.Unmarshal([]byte(strings.Replace(string(raw), `"`+under+`":`, `"rows":`, 1)), &answer))
		rows, pages = append(rows, answer.Rows...), pages+1
		require.Less(t, pages, 200, "the pages have no end")
		if answer.NextCursor == nil {
			require.Len(t, rows, answer.Total, "total")
			return rows, pages
		}
		cursor = *answer.NextCursor
	}
}

type groupRow struct {
	Name              string
	QueueName         string
	TotalLag          int
	MaxTimeLag        int
	PartitionsWithLag int
}

func (g groupRow) key() string { return g.Name + "\x00" + g.QueueName }

func TestGroupsPageByPage(t *testing.T) {
	t.Parallel()
	db, database := kolkata(t)
	fillLists(t, database)
	ctx, tenant := t.Context(), pg.DefaultTenant
	var all []groupRow
	raw, err := db.ConsumerGroups(ctx, tenant)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &all))
	require.Len(t, all, 3*len(listedNames))

	passed := 0 // seconds between the first page and the last, by which ages grow meanwhile
	orders := map[string]func(a, b groupRow) int{
		"name":       func(a, b groupRow) int { return cmp.Compare(a.key(), b.key()) },
		"queue":      func(a, b groupRow) int { return cmp.Compare(a.QueueName+"\x00"+a.Name, b.QueueName+"\x00"+b.Name) },
		"lag":        func(a, b groupRow) int { return cmp.Compare(a.TotalLag, b.TotalLag) },
		"partitions": func(a, b groupRow) int { return cmp.Compare(a.PartitionsWithLag, b.PartitionsWithLag) },
		"age": func(a, b groupRow) int {
			if d := a.MaxTimeLag - b.MaxTimeLag; d >= -passed && d <= passed {
				return 0
			}
			return cmp.Compare(a.MaxTimeLag, b.MaxTimeLag)
		},
	}
	for sort, order := range orders {
		for _, limit := range []int{1, 4, 27, 1000} {
			for _, sort := range []string{sort, "-" + sort} {
				began := time.Now()
				rows, _ := walkList[groupRow](t, "groups", func(cursor string) (json.RawMessage, error) {
					return db.ListGroups(ctx, tenant, pg.GroupFilter{Sort: sort, Limit: limit, Cursor: cursor})
				})
				passed = int(time.Since(began)/time.Second) + 1
				if limit > len(all) {
					passed = 0 // one page, one moment
				}
				require.True(t, slices.IsSortedFunc(rows, func(a, b groupRow) int {
					if strings.HasPrefix(sort, "-") {
						return order(b, a)
					}
					return order(a, b)
				}), "order %s by pages of %d: %v", sort, limit, rows)
				keys := map[string]bool{}
				for _, row := range rows {
					keys[row.key()] = true
				}
				require.Len(t, keys, len(all), "each once, order %s by pages of %d", sort, limit)
			}
		}
	}
	count := func(f pg.GroupFilter) int {
		t.Helper()
		rows, _ := walkList[groupRow](t, "groups", func(cursor string) (json.RawMessage, error) {
			f.Limit, f.Cursor = 2, cursor
			return db.ListGroups(ctx, tenant, f)
		})
		return len(rows)
	}
	behind := 0
	for _, row := range all {
		if row.TotalLag > 0 {
			behind++
		}
	}
	require.Equal(t, behind, count(pg.GroupFilter{Behind: true}))
	require.Equal(t, 3, count(pg.GroupFilter{Queue: "a"}))
	require.Equal(t, len(listedNames), count(pg.GroupFilter{Group: "ö", Sort: "-age"}))
	require.Equal(t, len(listedNames), count(pg.GroupFilter{Contains: "|2|X"}), "in any case, in either name")
	require.Zero(t, count(pg.GroupFilter{MinLagSeconds: 3600}))
	require.Positive(t, count(pg.GroupFilter{MinLagSeconds: 60}))
	require.Less(t, count(pg.GroupFilter{NeverConsumed: true}), len(all))
}

func TestGroupPartitionsPageByPage(t *testing.T) {
	t.Parallel()
	db, database := kolkata(t)
	fillLists(t, database)
	ctx, tenant := t.Context(), pg.DefaultTenant
	type row struct {
		Queue, Partition           string
		OffsetLag, TimeLagSeconds  int
		TotalConsumed              int
		LeaseActive, Abandoned     bool
		LeaseID, RedeliveryAt      *string
		LeaseExpiresAt             *time.Time
		AttemptCount, BatchRetries int
	}
	var detail map[string]struct {
		Partitions []struct {
			Partition   string
			OffsetLag   int
			LeaseActive bool
		}
	}
	raw, err := db.ConsumerGroupDetails(ctx, tenant, "G|2|x")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &detail))
	orders := map[string]func(a, b row) int{
		"name":     func(a, b row) int { return cmp.Compare(a.Partition, b.Partition) },
		"lag":      func(a, b row) int { return cmp.Compare(a.OffsetLag, b.OffsetLag) },
		"age":      func(a, b row) int { return cmp.Compare(a.TimeLagSeconds, b.TimeLagSeconds) },
		"attempts": func(a, b row) int { return cmp.Compare(a.AttemptCount, b.AttemptCount) },
		"consumed": func(a, b row) int { return cmp.Compare(a.TotalConsumed, b.TotalConsumed) },
	}
	for sort, order := range orders {
		for _, sort := range []string{sort, "-" + sort} {
			rows, _ := walkList[row](t, "partitions", func(cursor string) (json.RawMessage, error) {
				return db.ListGroupPartitions(ctx, tenant, "G|2|x", pg.GroupPartitionFilter{Sort: sort, Limit: 5, Cursor: cursor})
			})
			require.Len(t, rows, 2*len(listedNames))
			require.True(t, slices.IsSortedFunc(rows, func(a, b row) int {
				if strings.HasPrefix(sort, "-") {
					return order(b, a)
				}
				return order(a, b)
			}), sort)
			for _, one := range rows {
				found := false
				for _, other := range detail[one.Queue].Partitions {
					if other.Partition == one.Partition {
						found = true
						require.Equal(t, other.OffsetLag, one.OffsetLag)
						require.Equal(t, other.LeaseActive, one.LeaseActive)
						require.Equal(t, one.LeaseActive || one.Abandoned, one.LeaseID != nil)
					}
				}
				require.True(t, found, one)
			}
		}
	}
	leased, _ := walkList[row](t, "partitions", func(cursor string) (json.RawMessage, error) {
		return db.ListGroupPartitions(ctx, tenant, "G|2|x", pg.GroupPartitionFilter{Leased: true, Limit: 1, Cursor: cursor})
	})
	abandoned, _ := walkList[row](t, "partitions", func(cursor string) (json.RawMessage, error) {
		return db.ListGroupPartitions(ctx, tenant, "G|2|x", pg.GroupPartitionFilter{Abandoned: true, Limit: 1, Cursor: cursor})
	})
	require.Positive(t, len(leased)+len(abandoned))
	for _, one := range abandoned {
		require.True(t, one.Abandoned && !one.LeaseActive)
	}
	raw, err = db.ListGroupPartitions(ctx, tenant, "G|2|x", pg.GroupPartitionFilter{Contains: "äö", Limit: 1})
	require.NoError(t, err)
	var page struct {
		Totals struct{ Partitions, Leased, Abandoned int }
		Total  int
	}
	require.NoError(t, json.Unmarshal(raw, &page))
	require.Equal(t, 2, page.Total, "somewhere in the name")
	require.Equal(t, 2*len(listedNames), page.Totals.Partitions, "totals are of the group")
	require.Equal(t, len(leased), page.Totals.Leased)
	require.Equal(t, len(abandoned), page.Totals.Abandoned)
}

func TestQueuesPageByPage(t *testing.T) {
	t.Parallel()
	db, database := kolkata(t)
	fillLists(t, database)
	ctx, tenant := t.Context(), pg.DefaultTenant
	exec(t, database, `INSERT INTO queen.queues (name) VALUES ('new')`) // no figures yet
	type row struct {
		Name      string
		Namespace *string
		MaxSize   int
		Messages  struct{ Pending, Total *int }
	}
	known := func(n *int) int {
		if n == nil {
			return -1
		}
		return *n
	}
	text := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	orders := map[string]func(a, b row) int{
		"name":    func(a, b row) int { return cmp.Compare(a.Name, b.Name) },
		"pending": func(a, b row) int { return cmp.Compare(known(a.Messages.Pending), known(b.Messages.Pending)) },
		"stored":  func(a, b row) int { return cmp.Compare(known(a.Messages.Total), known(b.Messages.Total)) },
		"namespace": func(a, b row) int {
			return cmp.Compare(text(a.Namespace)+"\x00"+a.Name, text(b.Namespace)+"\x00"+b.Name)
		},
	}
	for _, sort := range []string{"name", "pending", "processing", "dead", "stored", "in", "partitions", "size", "namespace", "created"} {
		for _, sort := range []string{sort, "-" + sort} {
			rows, _ := walkList[row](t, "queues", func(cursor string) (json.RawMessage, error) {
				return db.QueuePage(ctx, tenant, pg.QueuePageFilter{Sort: sort, Limit: 3, Cursor: cursor})
			})
			require.Len(t, rows, len(listedNames)+1, sort)
			order := orders[strings.TrimPrefix(sort, "-")]
			require.True(t, order == nil || slices.IsSortedFunc(rows, func(a, b row) int {
				if strings.HasPrefix(sort, "-") {
					return order(b, a)
				}
				return order(a, b)
			}), sort)
			for _, one := range rows {
				require.Equal(t, one.Name == "new", one.Messages.Pending == nil, "what was not counted yet is not zero")
			}
		}
	}
	for name, want := range map[string]struct {
		filter pg.QueuePageFilter
		rows   int
	}{
		"contains":  {pg.QueuePageFilter{Contains: "äö"}, 1},
		"namespace": {pg.QueuePageFilter{Namespace: "m"}, 4},
		"bounded":   {pg.QueuePageFilter{Bounded: true}, 6},
		"dead":      {pg.QueuePageFilter{Dead: true}, 0},
	} {
		rows, _ := walkList[row](t, "queues", func(cursor string) (json.RawMessage, error) {
			want.filter.Limit, want.filter.Cursor = 2, cursor
			return db.QueuePage(ctx, tenant, want.filter)
		})
		require.Len(t, rows, want.rows, name)
	}
}

func TestTracesPageByPage(t *testing.T) {
	t.Parallel()
	db, _ := kolkata(t)
	ctx, tenant := t.Context(), pg.DefaultTenant
	p := push(t, db, segment("q", "p", "1")).PartitionID
	for i := range 7 {
		_, err := db.RecordTrace(ctx, tenant, pg.TraceRecord{PartitionID: p, TransactionID: "1", Group: "g", EventType: fmt.Sprint("e", i), Data: []byte(`1`), Names: []string{"all", "a|" + fmt.Sprint(i)}})
		require.NoError(t, err)
	}
	type event struct {
		EventType string `json:"event_type"`
	}
	events, pages := walkList[event](t, "traces", func(cursor string) (json.RawMessage, error) {
		return db.TracesByName(ctx, tenant, "all", pg.TracePage{Limit: 2, Cursor: cursor})
	})
	require.Equal(t, []event{{"e0"}, {"e1"}, {"e2"}, {"e3"}, {"e4"}, {"e5"}, {"e6"}}, events)
	require.Equal(t, 4, pages)
	type name struct {
		Name string `json:"trace_name"`
	}
	names, _ := walkList[name](t, "trace_names", func(cursor string) (json.RawMessage, error) {
		return db.TraceNames(ctx, tenant, pg.TracePage{Limit: 2, Cursor: cursor})
	})
	require.Equal(t, []name{{"all"}, {"a|6"}, {"a|5"}, {"a|4"}, {"a|3"}, {"a|2"}, {"a|1"}, {"a|0"}}, names)
	names, _ = walkList[name](t, "trace_names", func(cursor string) (json.RawMessage, error) {
		return db.TraceNames(ctx, tenant, pg.TracePage{Contains: "A|", Limit: 3, Cursor: cursor})
	})
	require.Len(t, names, 7)
}

// A cursor of another list, of another order or of nobody is refused, and never an error of the database.
func TestListCursorsAreChecked(t *testing.T) {
	t.Parallel()
	db, database := kolkata(t)
	fillLists(t, database)
	ctx, tenant := t.Context(), pg.DefaultTenant
	raw, err := db.ListGroups(ctx, tenant, pg.GroupFilter{Sort: "-lag", Limit: 1})
	require.NoError(t, err)
	var page struct{ NextCursor string }
	require.NoError(t, json.Unmarshal(raw, &page))
	bad := []string{page.NextCursor, "x", "?"}
	for _, text := range []string{"name|0|0", "name|x|1|a", "name|0|x|a", "name|0|123456|a", "age|0|1|a", "0|a", "2026-01-01T00:00:00.000000Z", "|||"} {
		bad = append(bad, base64.RawURLEncoding.EncodeToString([]byte(text)))
	}
	for _, cursor := range bad {
		_, err := db.ListGroups(ctx, tenant, pg.GroupFilter{Cursor: cursor})
		require.ErrorIs(t, err, pg.ErrInvalidCursor, cursor)
		_, err = db.ListGroupPartitions(ctx, tenant, "g", pg.GroupPartitionFilter{Cursor: cursor})
		require.ErrorIs(t, err, pg.ErrInvalidCursor, cursor)
		_, err = db.QueuePage(ctx, tenant, pg.QueuePageFilter{Cursor: cursor})
		require.ErrorIs(t, err, pg.ErrInvalidCursor, cursor)
		_, err = db.TracesByName(ctx, tenant, "n", pg.TracePage{Cursor: cursor})
		require.ErrorIs(t, err, pg.ErrInvalidCursor, cursor)
	}
	_, err = db.TraceNames(ctx, tenant, pg.TracePage{Cursor: page.NextCursor})
	require.ErrorIs(t, err, pg.ErrInvalidCursor)
	_, err = db.ListGroups(ctx, tenant, pg.GroupFilter{Cursor: base64.RawURLEncoding.EncodeToString([]byte("name|0|99999|a"))})
	require.NoError(t, err, "a position that no row has is one between two")
}
