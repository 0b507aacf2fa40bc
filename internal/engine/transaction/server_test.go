package transaction

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/push"
	"queenmq/internal/engine/ready"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	tenant = pg.DefaultTenant
	eu     = uuid.MustParse("0199b0c4-6a11-7f3e-8c55-41d0e9a7b2f6")
	us     = uuid.MustParse("0199b0c4-6a11-7f3e-8c55-41d0e9a7b2f7")
)

// fakeStore is a database whose answers a test decides.
type fakeStore struct {
	asked   []pg.Transaction
	answers []error // of the first calls
	acks    []pg.HashAckResult
	holder  map[uuid.UUID]string
	holdErr error
}

func (f *fakeStore) Transact(ctx context.Context, t pg.Transaction) (pg.TransactionResult, error) {
	f.asked = append(f.asked, t)
	if ctx.Err() != nil {
		return pg.TransactionResult{}, ctx.Err()
	}
	if n := len(f.asked); n <= len(f.answers) && f.answers[n-1] != nil {
		return pg.TransactionResult{}, f.answers[n-1]
	}
	result := pg.TransactionResult{Pushes: make([]pg.PushVerdict, len(t.Pushes)), Acks: f.acks}
	if result.Acks == nil {
		result.Acks = make([]pg.HashAckResult, len(t.Acks))
	}
	return result, nil
}

func (f *fakeStore) PartitionLeaseHolder(_ context.Context, partition uuid.UUID, _ string) (string, bool, error) {
	return f.holder[partition], f.holder[partition] != "", f.holdErr
}

// fakeAcks files dead letters as told.
type fakeAcks struct {
	forgotten []string
	orders    []ack.DeadLetterOrder
	filed     bool
}

func (f *fakeAcks) Owner(_ context.Context, _, partition uuid.UUID) (ack.Owner, error) {
	if partition == eu {
		return ack.Owner{Queue: "orders", Partition: "eu"}, nil
	}
	return ack.Owner{}, ack.ErrNotOwned
}

func (f *fakeAcks) FileDeadLetter(_ context.Context, order ack.DeadLetterOrder) ack.DeadLetterOutcome {
	f.orders = append(f.orders, order)
	return ack.DeadLetterOutcome{Filed: f.filed, Named: []int{order.Nacks[0].Index}}
}

func (f *fakeAcks) Forget(partition uuid.UUID, group, worker string) {
	f.forgotten = append(f.forgotten, fmt.Sprint(partition, group, worker))
}

func setup(t *testing.T) (*Server, *fakeStore, *fakeAcks, *ready.Gates) {
	t.Helper()
	db, acks, gates := &fakeStore{}, &fakeAcks{}, ready.New()
	server := New(Config{}, db, acks, gates, admission.New(admission.Config{PoolSize: 40}))
	t.Cleanup(func() { require.Zero(t, server.slots.Stats().InFlight) })
	return server, db, acks, gates
}

func pushOp(queue, partition, transactionID string) Operation {
	return Operation{Push: &push.Item{Queue: queue, Partition: partition, TransactionID: transactionID, Payload: []byte("1")}}
}

func ackOp(partition uuid.UUID, transactionID, status, lease string) Operation {
	return Operation{Ack: &AckOperation{
		Item: ack.Item{TransactionID: transactionID, PartitionID: partition.String(), Status: status, LeaseID: lease}, Group: "billing",
	}}
}

func hashesOf(transactionIDs ...string) [][]byte {
	var hashes [][]byte
	for _, id := range transactionIDs {
		hash := segment.Hash(id)
		hashes = append(hashes, hash[:])
	}
	return hashes
}

func TestPushesAndAcksGoInOneCall(t *testing.T) {
	t.Parallel()
	server, db, acks, gates := setup(t)
	noop := hex.EncodeToString(hashesOf("b")[0])
	db.acks = []pg.HashAckResult{{OK: true, LeaseReleased: true, Noop: []string{noop}}, {OK: true}}
	orders, labels := gates.Subscribe(tenant, "orders"), gates.Subscribe(tenant, "labels")
	defer orders.Release()
	defer labels.Release()
	ordersOpened, _ := orders.Arm()
	labelsOpened, _ := labels.Arm()

	outcome, err := server.Run(t.Context(), tenant, "", []Operation{
		ackOp(eu, "a", "completed", "lease"),
		pushOp("labels", "p", "x"),
		ackOp(eu, "b", "ok", "lease"),
		pushOp("labels", "p", "x"), // a repeat
		pushOp("bills", "q", ""),
		ackOp(us, "c", "completed", "lease"),
	}, nil)
	require.NoError(t, err)

	require.Equal(t, []string{fmt.Sprint(eu, "billing", "lease"), fmt.Sprint(us, "billing", "lease")}, acks.forgotten,
		"a batch acknowledged in part here is not recognised as a whole later")
	require.Len(t, db.asked, 1)
	asked := db.asked[0]
	require.Equal(t, tenant, asked.Tenant)
	require.Len(t, asked.Pushes, 2)
	require.Equal(t, 1, asked.Pushes[0].Count, "the repeat is stored once")
	require.Empty(t, cmp.Diff([]pg.HashAck{
		{PartitionID: eu, Group: "billing", Worker: "lease", Hashes: hashesOf("a", "b"), Statuses: []string{"completed", "completed"}},
		{PartitionID: us, Group: "billing", Worker: "lease", Hashes: hashesOf("c"), Statuses: []string{"completed"}},
	}, asked.Acks))

	require.Equal(t, uuid.Version(7), outcome.ID.Version())
	first, generated := outcome.Results[1].MessageID, outcome.Results[4].MessageID
	require.Empty(t, cmp.Diff([]Result{
		{TransactionID: "a"},
		{TransactionID: "x", MessageID: first},
		{TransactionID: "b", Noop: true},
		{TransactionID: "x", MessageID: first, Duplicate: true},
		{TransactionID: generated.String(), MessageID: generated},
		{TransactionID: "c"},
	}, outcome.Results))
	requireWoken(t, ordersOpened)
	requireWoken(t, labelsOpened)
}

func TestEmptyTransactionCommitsNothing(t *testing.T) {
	t.Parallel()
	server, db, _, _ := setup(t)
	outcome, err := server.Run(t.Context(), tenant, "", nil, []string{"lease"})
	require.NoError(t, err)
	require.NotEqual(t, uuid.Nil, outcome.ID)
	require.Empty(t, outcome.Results)
	require.Empty(t, db.asked)
}

func TestLeaseOfAnAck(t *testing.T) {
	t.Parallel()
	none := ackOp(eu, "a", "completed", "")
	cases := []struct {
		name     string
		ops      []Operation
		required []string
		holder   string
		want     string
	}{
		{"its own", []Operation{ackOp(eu, "a", "completed", "mine")}, []string{"other"}, "other", "mine"},
		{"none named anywhere", []Operation{none}, nil, "holder", ""},
		{"empty ones do not count", []Operation{none}, []string{"", ""}, "holder", ""},
		{"the only hint", []Operation{none}, []string{"hint", "hint"}, "", "hint"},
		{"the only hint, held by another", []Operation{none}, []string{"hint"}, "thief", "hint"},
		{"the holder among the hints", []Operation{none}, []string{"a", "holder", "z"}, "holder", "holder"},
		{"no hint is the holder", []Operation{none}, []string{"z", "a"}, "thief", "a"},
		{"nobody holds it", []Operation{none}, []string{"z", "a"}, "", "a"},
		{"a hint of another ack", []Operation{none, ackOp(us, "b", "completed", "theirs")}, nil, "theirs", "theirs"},
		{"of a neighbour on the same partition", []Operation{none, ackOp(eu, "b", "completed", "mine")}, []string{"x"}, "x", "mine"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server, db, _, _ := setup(t)
			db.holder = map[uuid.UUID]string{eu: c.holder}
			_, err := server.Run(t.Context(), tenant, "", c.ops, c.required)
			require.NoError(t, err)
			require.Equal(t, c.want, db.asked[0].Acks[0].Worker)
		})
	}
}

func TestNothingIsSentWhenTheRequestCannotHold(t *testing.T) {
	t.Parallel()
	badID := ackOp(eu, "a", "completed", "")
	badID.Ack.PartitionID = "nowhere"
	cases := []struct {
		name string
		ops  []Operation
		hold error
		want string
	}{
		{
			"two leases on one partition",
			[]Operation{ackOp(eu, "a", "completed", "one"), pushOp("q", "p", "x"), ackOp(eu, "b", "completed", "two")},
			nil,
			`QTXN ack failed for partition ` + eu.String() + ` group "billing": acks name different leases; transaction rolled back`,
		},
		{"partition id that is none", []Operation{badID}, nil, "QTXN ack references partition nowhere not owned by this tenant"},
		{"holder unknown", []Operation{ackOp(eu, "a", "completed", ""), ackOp(us, "a", "completed", "x"), ackOp(uuid.New(), "a", "completed", "y")}, errors.New("broken"), "transaction: find the lease holder: broken"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server, db, _, _ := setup(t)
			db.holdErr = c.hold
			_, err := server.Run(t.Context(), tenant, "", c.ops, nil)
			require.EqualError(t, err, c.want)
			require.Empty(t, db.asked)
		})
	}
}

func TestFailureRollsBackAndWakesNobody(t *testing.T) {
	t.Parallel()
	vanished := fmt.Errorf("transaction: %w", pg.ErrVanished)
	rule := &pg.TransactionError{Reason: "QDUP duplicate messages in queue \"q\" partition \"p\"; transaction rolled back"}
	cases := []struct {
		name    string
		answers []error
		want    error
		calls   int
	}{
		{"rule", []error{rule}, rule, 1},
		{"database away", []error{pg.ErrUnavailable}, pg.ErrUnavailable, 1},
		{"deleted meanwhile, once", []error{vanished}, nil, 2},
		{"deleted meanwhile, again", []error{vanished, vanished}, pg.ErrVanished, 2},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server, db, _, gates := setup(t)
			db.answers = c.answers
			waiter := gates.Subscribe(tenant, "q")
			defer waiter.Release()
			opened, _ := waiter.Arm()
			_, err := server.Run(t.Context(), tenant, "", []Operation{pushOp("q", "p", "x")}, nil)
			require.ErrorIs(t, err, c.want)
			require.Len(t, db.asked, c.calls)
			select {
			case <-opened:
				require.NoError(t, err, "woken although nothing was committed")
			default:
				require.Error(t, err)
			}
		})
	}
}

func TestDeadLetterFollowsTheCommit(t *testing.T) {
	t.Parallel()
	for _, filed := range []bool{true, false} {
		t.Run(fmt.Sprintf("filed %t", filed), func(t *testing.T) {
			t.Parallel()
			server, db, acks, gates := setup(t)
			acks.filed = filed
			db.acks = []pg.HashAckResult{{OK: true, DeadLetter: true, Worker: "holder", Offset: 7}}
			waiter := gates.Subscribe(tenant, "orders")
			defer waiter.Release()
			opened, _ := waiter.Arm()
			failed := ackOp(eu, "b", "dlq", "lease")
			failed.Ack.Error = "boom"
			outcome, err := server.Run(t.Context(), tenant, "", []Operation{ackOp(eu, "a", "completed", "lease"), failed}, nil)
			require.NoError(t, err)
			require.Equal(t, []Result{{TransactionID: "a"}, {TransactionID: "b", DeadLetter: filed}}, outcome.Results)
			require.Equal(t, []ack.DeadLetterOrder{{
				PartitionID: eu, Group: "billing", Worker: "holder", Offset: 7,
				Nacks: []ack.Nack{{Index: 1, TransactionID: "b", Status: "dlq", Error: "boom"}},
			}}, acks.orders)
			select {
			case <-opened:
				require.True(t, filed)
			default:
				require.False(t, filed, "the lease ended and nobody was woken")
			}
		})
	}
}

func TestTransactionIsNotCancelledByItsCaller(t *testing.T) {
	t.Parallel()
	server, _, _, _ := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := server.Run(ctx, tenant, "", []Operation{pushOp("q", "p", "x")}, nil)
	require.NoError(t, err)
}

// requireWoken fails when no wake came. Wakes are sent before the call that causes them returns.
func requireWoken(t *testing.T, opened <-chan struct{}) {
	t.Helper()
	select {
	case <-opened:
	default:
		t.Fatal("a lease ended or a message came, and nobody was woken")
	}
}
