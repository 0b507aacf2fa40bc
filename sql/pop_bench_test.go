package sql_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// BenchmarkPop64Partitions claims one segment of 800 bytes from each of 64 partitions out of 2,000: with one list call, with 64
// calls of log_pop_v1 in a transaction each, and with the same 64 calls in one statement. Leases end at once, so that every round
// claims anew.
func BenchmarkPop64Partitions(b *testing.B) {
	l := newPopLog(b)
	ctx := context.Background()
	id := l.queue(b, "q", popQueue{})
	l.exec(b, `INSERT INTO queen.log_partitions (queue_id, name, last_offset) SELECT $1, 'p' || g, 9 FROM generate_series(0, 1999) g`, id)
	l.exec(b, `INSERT INTO queen.log_segments SELECT id, 0, 9, now(), convert_to(repeat(md5(name), 25), 'utf8') FROM queen.log_partitions`)
	l.exec(b, `INSERT INTO queen.log_consumers (partition_id, consumer_group) SELECT id, 'g' FROM queen.log_partitions`)
	l.exec(b, `VACUUM (ANALYZE) queen.log_partitions, queen.log_segments, queen.log_consumers`)
	names := func(n int) []string {
		list := make([]string, 64)
		for i := range list {
			list[i] = fmt.Sprintf("p%d", (n*64+i)%2000)
		}
		return list
	}
	conn, err := l.Acquire(ctx)
	require.NoError(b, err)
	defer conn.Release()
	const one = `SELECT * FROM queen.log_pop_v1('q', $1, 'g', 100, -1, 'w')`
	for name, pop := range map[string]func(n int) error{
		"list": func(n int) error {
			_, err := conn.Exec(ctx, `SELECT * FROM queen.log_pop_list_v1('q', 'g', $1, 6400, -1, 'w', false, 0)`, names(n))
			return err
		},
		"calls": func(n int) error {
			for _, p := range names(n) {
				if _, err := conn.Exec(ctx, one, p); err != nil {
					return err
				}
			}
			return nil
		},
		"pipelined": func(n int) error {
			batch := &pgx.Batch{}
			for _, p := range names(n) {
				batch.Queue(one, p)
			}
			return conn.SendBatch(ctx, batch).Close()
		},
		"lateral": func(n int) error {
			_, err := conn.Exec(ctx, `SELECT u.name, s.* FROM unnest($1::text[]) AS u(name), LATERAL queen.log_pop_v1('q', u.name, 'g', 100, -1, 'w') s`, names(n))
			return err
		},
	} {
		b.Run(name, func(b *testing.B) {
			for n := 0; b.Loop(); n++ {
				require.NoError(b, pop(n))
			}
		})
	}
}
