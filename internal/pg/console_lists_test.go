package pg_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
)

func TestBrokersPageByPage(t *testing.T) {
	t.Parallel()
	db, database := kolkata(t)
	exec(t, database, `INSERT INTO queen.brokers (id, instance, version, address, started_at, last_seen)
		SELECT 'Broker-' || g, gen_random_uuid(), 'v1', 'host-' || g || ':6632', now() - make_interval(mins => 100 - g / 3), now() - make_interval(secs => CASE WHEN g % 2 = 0 THEN 1 ELSE 3600 END) FROM generate_series(1, 25) g`)
	type row struct {
		ID, Instance string
		Alive, Self  bool
	}
	var self uuid.UUID
	require.NoError(t, database.Pool(t).QueryRow(t.Context(), `SELECT instance FROM queen.brokers WHERE id = 'Broker-7'`).Scan(&self))
	list := func(f pg.BrokerFilter) []row {
		rows, _ := walkList[row](t, "brokers", func(cursor string) (json.RawMessage, error) {
			f.Cursor = cursor
			return db.Brokers(t.Context(), self, f)
		})
		return rows
	}
	whole := list(pg.BrokerFilter{})
	require.Len(t, whole, 25)
	for _, limit := range []int{1, 2, 7, 24, 25} {
		require.Equal(t, whole, list(pg.BrokerFilter{Limit: limit}), "pages of %d", limit)
	}
	require.Len(t, list(pg.BrokerFilter{Alive: new(true), Limit: 5}), 12)
	require.Len(t, list(pg.BrokerFilter{Alive: new(false), Limit: 5}), 13)
	require.Len(t, list(pg.BrokerFilter{Contains: "bROKER-2"}), 7)
	require.Len(t, list(pg.BrokerFilter{Contains: "host-25:"}), 1)
	require.Equal(t, 1, strings.Count(fmt.Sprint(whole), " true}"), "one is the broker that asks")
	_, err := db.Brokers(t.Context(), self, pg.BrokerFilter{Cursor: "x"})
	require.ErrorIs(t, err, pg.ErrInvalidCursor)
}

func TestStreamsPageByPage(t *testing.T) {
	t.Parallel()
	db, database := kolkata(t)
	for i, name := range listedNames {
		exec(t, database, `INSERT INTO queen_streams.queries (name, source_queue, sink_queue, config_hash, created_at, updated_at, tenant_id)
			VALUES ($1, $2, $3, 'h', now() - make_interval(mins => $4), now() - make_interval(mins => $4 * 7 % 5), $5)`, name, "from "+string([]rune(name)[:1]), []any{nil, "to"}[i%2], i, pg.DefaultTenant)
	}
	type row struct {
		Name, SourceQueue string
		CreatedAt         string
	}
	list := func(sort string, limit int) []row {
		rows, _ := walkList[row](t, "streams", func(cursor string) (json.RawMessage, error) {
			return db.ListStreams(t.Context(), pg.DefaultTenant, pg.StreamFilter{Sort: sort, Limit: limit, Cursor: cursor})
		})
		return rows
	}
	for _, sort := range []string{"name", "source", "sink", "created", "updated"} {
		whole := list(sort, 100)
		require.Len(t, whole, len(listedNames))
		for _, limit := range []int{1, 2, 5} {
			require.Equal(t, whole, list(sort, limit), "%s by %d", sort, limit)
			require.Equal(t, list("-"+sort, 100), list("-"+sort, limit), "-%s by %d", sort, limit)
		}
		if sort == "name" || sort == "source" {
			back := list("-"+sort, 100)
			slices.Reverse(back)
			require.Equal(t, whole, back, sort)
		}
	}
	require.Equal(t, listedNames[0], list("-created", 1)[0].Name, "the newest first")
	_, err := db.ListStreams(t.Context(), pg.DefaultTenant, pg.StreamFilter{Sort: "source", Cursor: "bmFtZXwwfDB8YQ"}) // of name|0|0|a
	require.ErrorIs(t, err, pg.ErrInvalidCursor)
}

func TestErrorShapesPageByPage(t *testing.T) {
	t.Parallel()
	db, database := kolkata(t)
	ids := letters(t, db, database, "q", "p", "g", 12)
	for i, id := range ids {
		exec(t, database, `UPDATE queen.log_dlq SET error = $2 WHERE id = $1`, id, []string{"a|b", "ä", "", "Z"}[min(i%5, 3)]+strings.Repeat("x", i%3))
	}
	type row struct {
		Shape string
		Count int
	}
	list := func(limit int) (rows []row) {
		f := pg.DeadLetterFilter{Limit: limit}
		for {
			raw, err := db.DeadLetterShapes(t.Context(), pg.DefaultTenant, f)
			require.NoError(t, err)
			var page struct {
				Groups     []row
				Shapes     int
				Total      int
				NextCursor *string
			}
			require.NoError(t, json.Unmarshal(raw, &page))
			require.Equal(t, 12, page.Total)
			rows = append(rows, page.Groups...)
			if page.NextCursor == nil {
				require.Len(t, rows, page.Shapes)
				return rows
			}
			require.Len(t, page.Groups, limit)
			f.After = *page.NextCursor
		}
	}
	whole := list(100)
	require.Greater(t, len(whole), 5)
	require.True(t, slices.IsSortedFunc(whole, func(a, b row) int { return b.Count - a.Count }), "the most frequent first")
	for _, limit := range []int{1, 2, 5} {
		require.Equal(t, whole, list(limit), "pages of %d", limit)
	}
	_, err := db.DeadLetterShapes(t.Context(), pg.DefaultTenant, pg.DeadLetterFilter{After: "x"})
	require.ErrorIs(t, err, pg.ErrInvalidCursor)
}

// What the cursors know of a message, and nothing that they do not.
func TestDeliveriesOfAMessage(t *testing.T) {
	t.Parallel()
	db, database := kolkata(t)
	partition := leased(t, db, "a", "b", "c")
	known := func(offset int64) map[string]pg.Delivery {
		t.Helper()
		detail, found, err := db.MessageAt(t.Context(), pg.DefaultTenant, partition, offset)
		require.NoError(t, err)
		require.True(t, found)
		out := map[string]pg.Delivery{}
		for _, d := range detail.Deliveries {
			out[d.Group] = d
		}
		return out
	}
	exec(t, database, `INSERT INTO queen.log_consumers (partition_id, consumer_group, committed) VALUES ($1, '__QUEUE_MODE__', 1)`, partition)
	exec(t, database, `UPDATE queen.log_consumers SET attempt_count = 3, batch_retry_count = 2, batch_end = 1 WHERE partition_id = $1 AND consumer_group = 'g'`, partition)
	head := known(0)["g"]
	require.Equal(t, []any{"held", 3, true, 2, "w"}, []any{head.State, *head.Attempts, head.AttemptsExact, *head.Failures, head.LeaseID})
	require.False(t, head.AcquiredAt.IsZero())
	require.False(t, head.ExpiresAt.IsZero())
	second := known(1)["g"]
	require.Equal(t, []any{"held", 1, false}, []any{second.State, *second.Attempts, second.AttemptsExact}, "delivered at least with this lease")
	require.Nil(t, second.Failures)
	third := known(2)["g"]
	require.Equal(t, pg.Delivery{Group: "g", State: "waiting"}, third, "not in the batch")
	passed := known(1)["__QUEUE_MODE__"]
	require.Equal(t, pg.Delivery{Group: "__QUEUE_MODE__", State: "passed"}, passed, "nothing is kept of what was passed")

	exec(t, database, `UPDATE queen.log_consumers SET lease_expires_at = now() - interval '1 minute' WHERE partition_id = $1 AND consumer_group = 'g'`, partition)
	require.Equal(t, "abandoned", known(0)["g"].State)
	exec(t, database, `UPDATE queen.log_consumers SET worker_id = '__retry__', batch_end = NULL, lease_expires_at = now() + interval '1 minute' WHERE partition_id = $1 AND consumer_group = 'g'`, partition)
	delayed := known(0)["g"]
	require.Equal(t, []any{"delayed", 3, ""}, []any{delayed.State, *delayed.Attempts, delayed.LeaseID})
	require.False(t, delayed.RedeliveryAt.IsZero())
}
