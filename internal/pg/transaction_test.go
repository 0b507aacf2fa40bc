package pg_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
)

func completed(partition uuid.UUID, worker string, ids ...string) pg.HashAck {
	ack := pg.HashAck{PartitionID: partition, Group: "g", Worker: worker, Hashes: hashesOf(ids...)}
	for range ids {
		ack.Statuses = append(ack.Statuses, "completed")
	}
	return ack
}

func TestTransactionCommitsBoth(t *testing.T) {
	t.Parallel()
	db, database := setup(t)
	partition := leased(t, db, "1", "2")
	trace := uuid.New()
	out := segment("out", "p", "a", "b")
	out.Traces = []pg.FrameTrace{{Frame: 1, ID: trace}}
	result, err := db.Transact(t.Context(), pg.Transaction{Tenant: pg.DefaultTenant, Pushes: []pg.Segment{out, segment("out", "r", "c")}, Acks: []pg.HashAck{completed(partition, "w", "1", "2")}})
	require.NoError(t, err)
	require.Len(t, result.Pushes, 2)
	require.EqualValues(t, 2, result.Acks[0].Acked)
	require.True(t, result.Acks[0].LeaseReleased)

	stored, found, err := db.SegmentAt(t.Context(), result.Pushes[0].PartitionID, 0)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, out.Blob, stored.Blob)
	var offset int64
	require.NoError(t, database.Pool(t).QueryRow(t.Context(), `SELECT "offset" FROM queen.log_traced WHERE trace_id = $1::text::uuid`, trace.String()).Scan(&offset))
	require.EqualValues(t, 1, offset)
	empty, err := db.Transact(t.Context(), pg.Transaction{Tenant: pg.DefaultTenant})
	require.NoError(t, err)
	require.Empty(t, empty.Pushes)
}

func TestTransactionAcksComeInRequestOrder(t *testing.T) {
	t.Parallel()
	db, _ := setup(t)
	var acks []pg.HashAck
	counts := []int{3, 1, 2, 5, 4}
	for i, n := range counts {
		ids := []string{"1", "2", "3", "4", "5"}[:n]
		verdict := push(t, db, segment("q", string(rune('a'+i)), ids...))
		r := popRequest("q", "w")
		r.Partition, r.Group = string(rune('a'+i)), pg.QueueModeGroup
		_, err := db.PopSpecific(t.Context(), r)
		require.NoError(t, err)
		ack := completed(verdict.PartitionID, "w", ids...)
		ack.Group = pg.QueueModeGroup
		acks = append(acks, ack)
	}
	result, err := db.Transact(t.Context(), pg.Transaction{Tenant: pg.DefaultTenant, Acks: acks})
	require.NoError(t, err)
	for i, n := range counts {
		require.EqualValues(t, n, result.Acks[i].Acked)
	}
}

func TestTransactionRollsBackByRule(t *testing.T) {
	t.Parallel()
	foreign := uuid.New()
	for name, test := range map[string]struct {
		change func(*pg.Transaction, uuid.UUID)
		reason string
		full   bool
	}{
		"Duplicate":        {func(x *pg.Transaction, _ uuid.UUID) { x.Pushes = []pg.Segment{segment("q", "p", "1")} }, `QDUP duplicate messages in queue "q" partition "p"; transaction rolled back`, false},
		"UnknownMessage":   {func(x *pg.Transaction, p uuid.UUID) { x.Acks = []pg.HashAck{completed(p, "w", "?")} }, "QTXN ack references unknown transactionId; transaction rolled back", false},
		"ForeignPartition": {func(x *pg.Transaction, _ uuid.UUID) { x.Acks = []pg.HashAck{completed(foreign, "w", "1")} }, "QTXN ack references partition " + foreign.String() + " not owned by this tenant", false},
		"LeaseLost":        {func(x *pg.Transaction, p uuid.UUID) { x.Acks = []pg.HashAck{completed(p, "thief", "1")} }, "", false},
		"QueueFull":        {func(x *pg.Transaction, _ uuid.UUID) { x.Pushes = []pg.Segment{segment("small", "p", "1", "2")} }, `QUEUE_FULL queue "small" is full; transaction rolled back`, true},
		"NoQueue":          {func(x *pg.Transaction, _ uuid.UUID) { x.Pushes = []pg.Segment{segment("", "p", "1")} }, "QTXN resolved 0 of 1 pushes (empty or unknown queue/partition)", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, database := setup(t)
			configure(t, db, "small", `{"maxSize":1}`)
			partition := leased(t, db, "1", "2")
			transaction := pg.Transaction{Tenant: pg.DefaultTenant, Pushes: []pg.Segment{segment("out", "p", "x")}, Acks: []pg.HashAck{completed(partition, "w", "1", "2")}}
			test.change(&transaction, partition)
			_, err := db.Transact(t.Context(), transaction)
			var rule *pg.TransactionError
			require.ErrorAs(t, err, &rule)
			want := test.reason
			if want == "" {
				want = "QTXN ack failed for partition " + partition.String() + ` group "g": invalid or expired lease; transaction rolled back`
			}
			require.Equal(t, want, rule.Reason)
			require.Equal(t, test.full, rule.QueueFull)
			_, live, err := db.PartitionLeaseHolder(t.Context(), partition, "g")
			require.NoError(t, err)
			require.True(t, live, "the ack was committed without the push")
			var n int
			require.NoError(t, database.Pool(t).QueryRow(t.Context(), "SELECT count(*) FROM queen.queues WHERE name = 'out'").Scan(&n))
			require.Zero(t, n, "the push was committed without the ack")
		})
	}
	t.Run("Misaligned", func(t *testing.T) {
		t.Parallel()
		db, _ := setup(t)
		_, err := db.Transact(t.Context(), pg.Transaction{Tenant: pg.DefaultTenant, Acks: []pg.HashAck{{PartitionID: foreign, Group: "g", Hashes: hashesOf("1")}}})
		require.ErrorIs(t, err, pg.ErrBadData)
	})
}
