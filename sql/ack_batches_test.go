package sql_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// batchRefusal is one row of log_ack_batches_v1.
type batchRefusal struct {
	Ord   int
	Error string
}

func ackBatches(db pgxQuerier, ids, groups, workers []string, ends []int64, counts []int) ([]batchRefusal, error) {
	rows, err := db.Query(context.Background(), `SELECT r_ord, r_error FROM queen.log_ack_batches_v1($1::text[]::uuid[], $2, $3, $4, $5)`, ids, groups, ends, workers, counts)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[batchRefusal])
}

// On random cursors and acks, log_ack_batches_v1 does and says what log_ack_multi_v1 does and says.
func TestAckBatchesEqualsMulti(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	queue := log.queue(t, defaultTenant, "q")
	const consumers = 4
	var ids [2][]string // the same cursors twice
	for range consumers {
		for side := range ids {
			ids[side] = append(ids[side], log.partition(t, queue, decisionSegments()...).String())
		}
	}
	unknown := uuid.NewString()
	rapid.Check(t, func(rt *rapid.T) {
		for i := range consumers {
			before := cursor{
				Committed: rapid.Int64Range(-1, 4).Draw(rt, "committed"), Retries: rapid.IntRange(0, 2).Draw(rt, "retries"),
				Consumed: 3, Attempts: rapid.IntRange(0, 2).Draw(rt, "attempts"),
			}
			if lease := rapid.SampledFrom([]string{"live", "live", "live", "expired", ""}).Draw(rt, "lease"); lease != "" {
				before.Worker, before.Lease = "w", lease
				before.BatchEnd = new(rapid.Int64Range(before.Committed+1, 8).Draw(rt, "end"))
				before.AttemptOffset = new(before.Committed + 1)
			}
			for side := range ids {
				log.setCursor(rt, uuid.MustParse(ids[side][i]), "g", before)
			}
		}
		n := rapid.IntRange(0, 6).Draw(rt, "acks")
		var named [2][]string
		groups, workers, ends, counts := make([]string, n), make([]string, n), make([]int64, n), make([]int, n)
		for i := range n {
			which := rapid.IntRange(0, consumers).Draw(rt, "consumer")
			for side := range ids {
				if which == consumers {
					named[side] = append(named[side], unknown)
				} else {
					named[side] = append(named[side], ids[side][which])
				}
			}
			groups[i] = rapid.SampledFrom([]string{"g", "g", "g", "h"}).Draw(rt, "group")
			workers[i] = rapid.SampledFrom([]string{"w", "w", "w", "stranger", "", "__retry__"}).Draw(rt, "worker")
			ends[i], counts[i] = rapid.Int64Range(-1, 9).Draw(rt, "upto"), rapid.IntRange(-1, 5).Draw(rt, "count")
		}
		multi, err := callJSON[ackRows](log, `SELECT queen.log_ack_multi_v1($1, $2, $3, $4, $5)`, named[0], groups, ends, workers, counts)
		require.NoError(rt, err)
		got, err := ackBatches(log, named[1], groups, workers, ends, counts)
		require.NoError(rt, err)
		want := []batchRefusal{}
		for i, row := range multi.Results {
			if !row.OK {
				want = append(want, batchRefusal{i + 1, *row.Error})
			}
		}
		require.Equal(rt, want, got)
		for i := range consumers {
			require.Equal(rt, log.cursor(rt, uuid.MustParse(ids[0][i]), "g"), log.cursor(rt, uuid.MustParse(ids[1][i]), "g"))
		}
	})
}

func TestAckBatchesDoesNotWaitForABusyConsumer(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	queue := log.queue(t, defaultTenant, "q")
	var ids []string
	for range 3 {
		partition := log.partition(t, queue, decisionSegments()...)
		log.setCursor(t, partition, "g", cursor{Committed: 1, BatchEnd: new(int64(8)), Worker: "w", Lease: "live"})
		ids = append(ids, partition.String())
	}
	holder := log.session(t)
	holder.do(t, "BEGIN")
	holder.do(t, `SELECT 1 FROM queen.log_consumers WHERE partition_id = $1 FOR UPDATE`, uuid.MustParse(ids[1]))
	groups, workers := []string{"g", "g", "g"}, []string{"w", "w", "w"}
	got, err := ackBatches(log, ids, groups, workers, []int64{8, 8, 8}, []int{1, 1, 1})
	require.NoError(t, err)
	require.Equal(t, []batchRefusal{{2, "consumer is busy"}}, got)
	holder.do(t, "COMMIT")
	require.Equal(t, int64(8), log.cursor(t, uuid.MustParse(ids[0]), "g").Committed)
	require.Equal(t, int64(1), log.cursor(t, uuid.MustParse(ids[1]), "g").Committed)
	_, err = ackBatches(log, ids, groups[:2], workers, []int64{8, 8, 8}, []int{1, 1, 1})
	require.ErrorContains(t, err, "QACKM misaligned arrays")
}

func TestPlanAckBatchesLooksRowsUp(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	session := log.session(t)
	ack := func(db pgxQuerier, ids []string) []batchRefusal {
		n := len(ids)
		groups, workers, ends, counts := make([]string, n), make([]string, n), make([]int64, n), make([]int, n)
		for i := range ids {
			groups[i], ends[i], counts[i] = "g", 8, 1
		}
		got, err := ackBatches(db, ids, groups, workers, ends, counts)
		require.NoError(t, err)
		return got
	}
	for range 10 {
		ack(session.Conn, []string{uuid.NewString(), uuid.NewString()})
	}
	ids := manyConsumers(t, log)
	got := measure(t, session.Conn, "queen.log_consumers", func(tx pgx.Tx) { require.Empty(t, ack(tx, ids)) })
	require.Zero(t, got.seqScans)
	require.LessOrEqual(t, got.rows, 4*len(ids))
}
