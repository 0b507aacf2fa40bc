package delivery

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/push"
	"queenmq/internal/engine/transaction"
	"queenmq/internal/pg"
)

// ackOf is an ack operation for message i of a batch, without a lease of its own, as the client libraries send it.
func (d *delivered) ackOf(i int, status string) transaction.Operation {
	item := d.item(i, status)
	item.LeaseID = ""
	return transaction.Operation{Ack: &transaction.AckOperation{Item: item, Group: "billing"}}
}

func (d *delivered) delayedAckOf(i int, status string, milliseconds int) transaction.Operation {
	operation := d.ackOf(i, status)
	operation.Ack.DelayMs = &milliseconds
	return operation
}

func pushOf(queue, transactionID string) transaction.Operation {
	return transaction.Operation{Push: &push.Item{
		Queue: queue, Partition: "out", TransactionID: transactionID, Payload: fmt.Appendf(nil, "%q", transactionID),
	}}
}

func (e *engine) transact(leases []string, operations ...transaction.Operation) (transaction.Outcome, error) {
	e.t.Helper()
	return e.txns.Run(e.t.Context(), pg.DefaultTenant, "", operations, leases)
}

// outputs is what lies in a queue, by transaction id.
func (e *engine) outputs(queue string) []string {
	e.t.Helper()
	request := queuePop()
	request.Queue, request.Group, request.AutoAck, request.Batch = queue, uuid.NewString(), true, 10_000
	return e.pop(request).names()
}

func TestTransactionCommitsPushesAndAcksTogether(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.push("eu", "a", "b")
	batch := e.pop(queuePop())
	waiting := queuePop()
	waiting.Queue = "labels"
	parked := e.popParked(waiting)

	outcome, err := e.transact([]string{batch.LeaseID}, batch.ackOf(0, "completed"), pushOf("labels", "x"), batch.ackOf(1, "completed"), pushOf("labels", "x"), pushOf("labels", ""))
	require.NoError(t, err)
	require.Equal(t, "x", outcome.Results[1].TransactionID)
	require.False(t, outcome.Results[1].Duplicate)
	require.True(t, outcome.Results[3].Duplicate)
	require.Equal(t, outcome.Results[1].MessageID, outcome.Results[3].MessageID)
	require.Equal(t, []string{"x", outcome.Results[4].MessageID.String()}, (<-parked).names(), "the push wakes")
	require.EqualValues(t, 1, e.committed("eu"))
	require.Empty(t, e.pop(queuePop()).names())
}

func TestTransactionRollsEverythingBack(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		ops  func(e *engine, batch *delivered) []transaction.Operation
		want func(e *engine) string
	}{
		{
			"duplicate push", func(_ *engine, batch *delivered) []transaction.Operation {
				return []transaction.Operation{batch.ackOf(0, "completed"), pushOf("labels", "fresh"), pushOf("labels", "known")}
			},
			func(*engine) string {
				return `QDUP duplicate messages in queue "labels" partition "out"; transaction rolled back`
			},
		},
		{
			"unknown message", func(_ *engine, batch *delivered) []transaction.Operation {
				unknown := batch.ackOf(0, "completed")
				unknown.Ack.TransactionID = "never pushed"
				return []transaction.Operation{pushOf("labels", "fresh"), batch.ackOf(0, "completed"), unknown}
			},
			func(*engine) string { return `QTXN ack references unknown transactionId; transaction rolled back` },
		},
		{
			"lost lease", func(e *engine, batch *delivered) []transaction.Operation {
				e.expire()
				e.pop(queuePop())
				return []transaction.Operation{pushOf("labels", "fresh"), batch.ackOf(0, "completed")}
			},
			func(e *engine) string {
				return fmt.Sprintf(`QTXN ack failed for partition %s group "billing": invalid or expired lease; transaction rolled back`, e.partitionID("eu"))
			},
		},
		{
			"full queue", func(e *engine, batch *delivered) []transaction.Operation {
				_, err := e.db.Configure(e.t.Context(), pg.DefaultTenant, "labels", "", "", pg.QueueOptions(`{"maxSize":1}`))
				require.NoError(e.t, err)
				return []transaction.Operation{batch.ackOf(0, "completed"), pushOf("labels", "fresh")}
			},
			func(*engine) string { return `QUEUE_FULL queue "labels" is full; transaction rolled back` },
		},
		{
			"partition of nobody", func(_ *engine, batch *delivered) []transaction.Operation {
				foreign := batch.ackOf(0, "completed")
				foreign.Ack.PartitionID = uuid.Max.String()
				return []transaction.Operation{pushOf("labels", "fresh"), foreign}
			},
			func(*engine) string {
				return `QTXN ack references partition ffffffff-ffff-ffff-ffff-ffffffffffff not owned by this tenant`
			},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := setup(t)
			_, err := e.transact(nil, pushOf("labels", "known"))
			require.NoError(t, err)
			e.push("eu", "a")
			batch := e.pop(queuePop())

			_, err = e.transact([]string{batch.LeaseID}, c.ops(e, batch)...)
			var rule *pg.TransactionError
			require.ErrorAs(t, err, &rule)
			require.Equal(t, c.want(e), rule.Reason)
			require.EqualValues(t, -1, e.committed("eu"), "the ack is undone")
			require.Equal(t, []string{"known"}, e.outputs("labels"), "the push is undone")
		})
	}
}

func TestStaleConsumerCannotAckUnderTheNextLease(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.push("eu", "a")
	stale := e.pop(queuePop())
	e.expire()
	live := e.pop(queuePop())
	require.NotEqual(t, stale.LeaseID, live.LeaseID)
	_, err := e.transact([]string{stale.LeaseID, uuid.NewString()}, stale.ackOf(0, "completed"))
	require.ErrorContains(t, err, "invalid or expired lease")
	require.EqualValues(t, -1, e.committed("eu"))
	_, err = e.transact([]string{uuid.NewString(), live.LeaseID}, live.ackOf(0, "completed"))
	require.NoError(t, err, "the holder's own lease is found among several")
}

func TestTransactionFilesItsDeadLetter(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.push("eu", "a", "b")
	batch := e.pop(queuePop())
	outcome, err := e.transact([]string{batch.LeaseID}, batch.ackOf(0, "dlq"), pushOf("labels", "x"))
	require.NoError(t, err)
	require.True(t, outcome.Results[0].DeadLetter)
	require.Equal(t, []string{"a: error of a"}, e.deadLetters())
	require.Equal(t, []string{"b"}, e.pop(queuePop()).names())
}

// Consumers transform messages and produce one output each, and die at random between every two steps. Whatever happens, each
// input has exactly one output in the end.
func TestConsumeTransformProduceIsExactlyOnce(t *testing.T) {
	t.Parallel()
	const partitions, perPartition, workers = 4, 25, 4
	e := setup(t)
	var want []string
	for p := range partitions {
		var names []string
		for n := range perPartition {
			names = append(names, fmt.Sprintf("%d-%d", p, n))
		}
		e.push(fmt.Sprint(p), names...)
		want = append(want, names...)
	}
	dies := func() bool { return rand.IntN(6) == 0 }
	var working sync.WaitGroup
	for range workers {
		working.Go(func() {
			for finished := false; !finished; {
				var err error
				if finished, err = e.transformOne(dies); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	working.Wait()

	var inputs []string
	for _, output := range e.outputs("labels") {
		inputs = append(inputs, output[:len(output)-37])
	}
	require.ElementsMatch(t, want, inputs)
	require.Equal(t, int64(partitions*(perPartition-1)), value[int64](e, `SELECT sum(committed)::bigint FROM queen.log_consumers WHERE consumer_group = 'billing'`))
}

// transformOne pops a batch, produces its outputs and acknowledges it in one transaction, unless it dies before or repeats itself
// after. It says when nothing is left.
func (e *engine) transformOne(dies func() bool) (finished bool, err error) {
	ctx := e.t.Context()
	request := queuePop()
	request.Batch = 1 + rand.IntN(5)
	result, err := e.pops.Pop(ctx, request)
	if err != nil {
		return false, fmt.Errorf("pop: %w", err)
	}
	if result == nil {
		if rand.IntN(20) == 0 { // what the dead ones hold, and sometimes what the living hold
			if _, err := e.sql.Exec(ctx, endLeases); err != nil {
				return false, err
			}
		}
		err := e.sql.QueryRow(ctx, `SELECT NOT EXISTS (
SELECT FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id AND q.name = 'orders'
LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = 'billing' WHERE p.last_offset > COALESCE(c.committed, -1))`).Scan(&finished)
		return finished, err
	}
	defer result.Release()
	batch, err := decode(result)
	if err != nil {
		return false, err
	}
	if dies() {
		return false, nil // popped, and gone
	}
	var operations []transaction.Operation
	for i, m := range batch.Messages {
		// Outputs have ids of their own: nothing but the transaction itself keeps them single.
		operations = append(operations, batch.ackOf(i, "completed"), pushOf("labels", m.TransactionID+"/"+uuid.NewString()))
	}
	run := func() error {
		_, err := e.txns.Run(ctx, pg.DefaultTenant, "", operations, []string{batch.LeaseID})
		return err
	}
	err = run()
	if _, refused := errors.AsType[*pg.TransactionError](err); err != nil && !refused {
		return false, fmt.Errorf("transaction: %w", err)
	}
	if dies() { // the answer was lost: the same again must not commit a second time
		if again := run(); again == nil && err == nil {
			return false, errors.New("a repeated transaction was committed twice")
		}
	}
	return false, nil
}
