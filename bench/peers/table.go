package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// table is the queue that everybody writes first: one row a message and consumers that skip each other's locks.
type table struct {
	// lease makes consumers take messages with a time limit in one transaction and delete them in a second one, as
	// message queues on PostgreSQL do. Without it, one transaction is open while messages are handled.
	lease    bool
	database *database
}

func (t *table) start(ctx context.Context, dir string) (string, error) {
	var err error
	if t.database, err = startDatabase(ctx, dir); err != nil {
		return "", err
	}
	return t.database.version, nil
}

func (t *table) programs() []program { return []program{t.database.program()} }
func (t *table) stop()               { t.database.stop() }

func (t *table) open(ctx context.Context, name string, w workload) (queue, error) {
	if t.lease && w.keys > 0 {
		return nil, errNotOffered
	}
	q := &tableQueue{pool: t.database.pool, keys: w.keys}
	name = strings.ReplaceAll(name, "-", "_")
	q.insert = fmt.Sprintf(`INSERT INTO %s (lane, body) SELECT * FROM unnest($1::int[], $2::text[]::jsonb[])`, name)
	q.take = fmt.Sprintf(`DELETE FROM %[1]s WHERE id IN (SELECT id FROM %[1]s ORDER BY id LIMIT %[2]d FOR UPDATE SKIP LOCKED) RETURNING id, body::text`, name, fetch)
	schema := fmt.Sprintf(`CREATE TABLE %s (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, lane int NOT NULL, body jsonb NOT NULL)`, name)
	if t.lease {
		schema = fmt.Sprintf(`CREATE TABLE %[1]s (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, lane int NOT NULL, body jsonb NOT NULL,
			visible_at timestamptz NOT NULL DEFAULT now(), attempts int NOT NULL DEFAULT 0); CREATE INDEX ON %[1]s (visible_at)`, name)
		q.take = fmt.Sprintf(`UPDATE %[1]s SET visible_at = clock_timestamp() + '30 s', attempts = attempts + 1
			WHERE id IN (SELECT id FROM %[1]s WHERE visible_at <= clock_timestamp() ORDER BY id LIMIT %[2]d FOR UPDATE SKIP LOCKED) RETURNING id, body::text`, name, fetch)
		q.remove = fmt.Sprintf(`DELETE FROM %s WHERE id = ANY($1)`, name)
	}
	if w.keys > 0 {
		// The row of a lane is its lock: who holds it has the lane's messages, oldest first. Looking begins at a random lane so
		// that consumers do not all walk over the same empty ones.
		schema += fmt.Sprintf(`; CREATE INDEX ON %[1]s (lane, id); CREATE TABLE %[1]s_lanes AS SELECT generate_series(0, %[2]d) AS lane; ALTER TABLE %[1]s_lanes ADD PRIMARY KEY (lane)`, name, w.keys-1)
		q.take = fmt.Sprintf(`WITH held AS (
			SELECT l.lane FROM %[1]s_lanes l WHERE l.lane >= $1 AND EXISTS (SELECT 1 FROM %[1]s m WHERE m.lane = l.lane) ORDER BY l.lane LIMIT 10 FOR UPDATE SKIP LOCKED),
			heads AS (SELECT m.id FROM held, LATERAL (SELECT id FROM %[1]s m WHERE m.lane = held.lane ORDER BY id LIMIT %[2]d) m)
			DELETE FROM %[1]s m USING heads WHERE m.id = heads.id RETURNING m.id, m.body::text`, name, fetch/10)
	}
	_, err := t.database.pool.Exec(ctx, schema)
	return q, err
}

type tableQueue struct {
	pool         *pgxpool.Pool
	keys         int
	insert, take string
	// remove deletes leased messages; empty when taking has deleted them.
	remove string
}

func (q *tableQueue) producer(context.Context) (produce, error) {
	var lanes []int32
	var bodies []string
	return func(ctx context.Context, messages []message) error {
		lanes, bodies = lanes[:0], bodies[:0]
		for _, m := range messages {
			lanes, bodies = append(lanes, int32(m.key)), append(bodies, string(m.body))
		}
		_, err := q.pool.Exec(ctx, q.insert, lanes, bodies)
		return err
	}, nil
}

func (q *tableQueue) consumer(context.Context, int) (consume, error) {
	return func(ctx context.Context, handle func(sequence int64)) error {
		found, err := 0, error(nil)
		if q.remove != "" {
			found, err = q.handleLeased(ctx, handle)
		} else {
			err = pgx.BeginFunc(ctx, q.pool, func(tx pgx.Tx) error {
				taken, err := q.rows(ctx, tx)
				if err == nil {
					found, err = len(taken), handleAll(taken, handle)
				}
				return err
			})
		}
		if err == nil && found == 0 {
			select { // there is nothing to wait on in a plain table: look again soon
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		return err
	}, nil
}

// handleLeased takes messages in one transaction and deletes them in another.
func (q *tableQueue) handleLeased(ctx context.Context, handle func(sequence int64)) (int, error) {
	taken, err := q.rows(ctx, q.pool)
	if err != nil || len(taken) == 0 {
		return 0, err
	}
	if err := handleAll(taken, handle); err != nil {
		return 0, err
	}
	ids := make([]int64, len(taken))
	for i, r := range taken {
		ids[i] = r.ID
	}
	deleted, err := q.pool.Exec(ctx, q.remove, ids)
	if err == nil && deleted.RowsAffected() != int64(len(ids)) {
		err = fmt.Errorf("%d of %d messages deleted", deleted.RowsAffected(), len(ids))
	}
	return len(ids), err
}

// A row is one message of the table.
type row struct {
	ID   int64
	Body string
}

func handleAll(taken []row, handle func(sequence int64)) error {
	for _, r := range taken {
		sequence, err := parseSequence([]byte(r.Body))
		if err != nil {
			return err
		}
		handle(sequence)
	}
	return nil
}

// querier is a transaction, or the pool, which commits every statement by itself.
type querier interface {
	Query(ctx context.Context, sql string, arguments ...any) (pgx.Rows, error)
}

// rows takes messages and returns them in the order in which they were stored.
func (q *tableQueue) rows(ctx context.Context, database querier) ([]row, error) {
	if q.keys == 0 {
		return collect(database.Query(ctx, q.take))
	}
	taken, err := collect(database.Query(ctx, q.take, rand.IntN(q.keys)))
	if err == nil && len(taken) == 0 {
		return collect(database.Query(ctx, q.take, 0)) // from the first lane, up to the random one and beyond
	}
	return taken, err
}

func collect(rows pgx.Rows, err error) ([]row, error) {
	if err != nil {
		return nil, err
	}
	taken, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	// Rows come back in any order.
	slices.SortFunc(taken, func(a, b row) int { return cmp.Compare(a.ID, b.ID) })
	return taken, err
}

func (q *tableQueue) settle(context.Context) error { return nil }
func (q *tableQueue) close()                       {}
