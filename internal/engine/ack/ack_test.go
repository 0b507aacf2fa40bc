package ack

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/ready"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	tenant    = pg.DefaultTenant
	partition = uuid.MustParse("0199b0c4-6a11-7f3e-8c55-41d0e9a7b2f6")
	foreign   = uuid.MustParse("0199b0c4-6a11-7f3e-8c55-41d0e9a7b2f7")
	messageID = uuid.MustParse("0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731")
)

// fakeStore is a database whose answers a test decides.
type fakeStore struct {
	mu      sync.Mutex
	asked   []pg.HashAck
	flushed [][]pg.PositionalAck
	letters []pg.DeadLetter
	renewed []string
	lookups int

	ack   func(ctx context.Context, a pg.HashAck) (pg.HashAckResult, error)
	multi func(ctx context.Context, acks []pg.PositionalAck) ([]pg.PositionalAckResult, error)
	// completed are the transaction ids that CompletedBefore knows.
	completed    []string
	completedErr error
	segment      pg.StoredSegment
	gone         bool
	segErr       error
	file         pg.DeadLetterResult
	fileErr      error
	ownErr       error
}

func (f *fakeStore) AckMulti(ctx context.Context, acks []pg.PositionalAck) ([]pg.PositionalAckResult, error) {
	f.mu.Lock()
	f.flushed = append(f.flushed, acks)
	f.mu.Unlock()
	if f.multi != nil {
		return f.multi(ctx, acks)
	}
	results := make([]pg.PositionalAckResult, len(acks))
	for i := range results {
		results[i].OK = true
	}
	return results, nil
}

func (f *fakeStore) AckByHash(ctx context.Context, a pg.HashAck) (pg.HashAckResult, error) {
	f.mu.Lock()
	f.asked = append(f.asked, a)
	f.mu.Unlock()
	if f.ack == nil {
		return pg.HashAckResult{OK: true, LeaseReleased: true}, nil
	}
	return f.ack(ctx, a)
}

func (f *fakeStore) CompletedBefore(_ context.Context, _ uuid.UUID, _ string, hashes [][]byte) (found [][]byte, err error) {
	for _, id := range f.completed {
		hash := segment.Hash(id)
		if slices.ContainsFunc(hashes, func(h []byte) bool { return bytes.Equal(h, hash[:]) }) {
			found = append(found, hash[:])
		}
	}
	return found, f.completedErr
}

func (f *fakeStore) SegmentAt(context.Context, uuid.UUID, int64) (pg.StoredSegment, bool, error) {
	return f.segment, !f.gone, f.segErr
}

func (f *fakeStore) FileDeadLetter(_ context.Context, d pg.DeadLetter) (pg.DeadLetterResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.letters = append(f.letters, d)
	return f.file, f.fileErr
}

func (f *fakeStore) RenewLease(_ context.Context, tenant uuid.UUID, worker string, seconds int) (pg.Renewal, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.renewed = append(f.renewed, fmt.Sprintf("%s %d", worker, seconds))
	return pg.Renewal{Renewed: 1}, nil
}

func (f *fakeStore) PartitionOwner(_ context.Context, id uuid.UUID) (uuid.UUID, string, string, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lookups++
	switch {
	case f.ownErr != nil:
		return uuid.Nil, "", "", false, f.ownErr
	case id == partition:
		return tenant, "orders", "eu", true, nil
	case id == foreign:
		return uuid.New(), "secret", "p", true, nil
	}
	return uuid.Nil, "", "", false, nil
}

func setup(t *testing.T, cfg Config) (*Server, *fakeStore, *ready.Gates) {
	t.Helper()
	db := &fakeStore{file: pg.DeadLetterResult{OK: true}}
	gates := ready.New()
	server := New(cfg, db, gates, admission.New(admission.Config{PoolSize: 40}))
	t.Cleanup(func() { require.Zero(t, server.slots.Stats().InFlight) })
	return server, db, gates
}

func hashHex(transactionID string) string {
	hash := segment.Hash(transactionID)
	return hex.EncodeToString(hash[:])
}

func TestStatusMapsTheClientsWord(t *testing.T) {
	t.Parallel()
	for sent, want := range map[string]string{
		"completed": Completed, "success": Completed, "acked": Completed, "ok": Completed,
		"retry": Retry, "dlq": DLQ, "failed": Failed,
		"": Failed, "Completed": Failed, "COMPLETED": Failed, "Retry": Failed, "DLQ": Failed, " ok": Failed, "true": Failed,
	} {
		require.Equal(t, want, Status(sent), "%q", sent)
	}
}

// ok is a result that was carried out on the known partition.
func ok(change func(*Result)) Result {
	r := Result{Success: true, Queue: "orders", Partition: "eu"}
	if change != nil {
		change(&r)
	}
	return r
}

func refused(text string) Result { return Result{Error: text, Queue: "orders", Partition: "eu"} }

func TestOutcomeOfEveryItem(t *testing.T) {
	t.Parallel()
	released := func(r *Result) { r.LeaseReleased = true }
	item := func(id, status string) Item {
		return Item{TransactionID: id, PartitionID: partition.String(), Status: status, LeaseID: "lease"}
	}
	answer := func(result pg.HashAckResult) func(context.Context, pg.HashAck) (pg.HashAckResult, error) {
		return func(context.Context, pg.HashAck) (pg.HashAckResult, error) { return result, nil }
	}
	fail := func(err error) func(context.Context, pg.HashAck) (pg.HashAckResult, error) {
		return func(context.Context, pg.HashAck) (pg.HashAckResult, error) { return pg.HashAckResult{}, err }
	}
	three := []Item{item("a", "completed"), item("b", "failed"), item("c", "completed")}
	cases := []struct {
		name  string
		items []Item
		ack   func(context.Context, pg.HashAck) (pg.HashAckResult, error)
		want  []Result
		wakes bool
	}{
		{"whole batch", three[:1], answer(pg.HashAckResult{OK: true, LeaseReleased: true}), []Result{ok(released)}, true},
		{"partial, lease kept", three[:1], answer(pg.HashAckResult{OK: true}), []Result{ok(nil)}, false},
		{"failure report carried out", three, answer(pg.HashAckResult{OK: true, LeaseReleased: true}), []Result{ok(released), ok(released), ok(released)}, true},
		{"dropped without dead letter", three[1:2], answer(pg.HashAckResult{OK: true, Dropped: true, LeaseReleased: true}), []Result{ok(released)}, true},
		{
			"done before", three,
			answer(pg.HashAckResult{OK: true, Noop: []string{hashHex("a")}, Stale: []string{hashHex("b")}}),
			[]Result{ok(func(r *Result) { r.Noop = true }), refused("already committed: the cursor moved past this message before this ack"), ok(nil)},
			false,
		},
		{
			"unknown", three, answer(pg.HashAckResult{OK: true, Unresolved: []string{hashHex("a"), hashHex("b")}}),
			[]Result{
				refused("unresolvable: transaction not in the ack window (hash purged or never pushed); if leased, the message redelivers"),
				refused("unresolvable: transaction not in the ack window (hash purged or never pushed); if leased, the message redelivers"),
				ok(nil),
			},
			false,
		},
		{
			"same id twice, one message",
			[]Item{item("a", "completed"), item("a", "completed")},
			answer(pg.HashAckResult{OK: true, LeaseReleased: true, Unresolved: []string{hashHex("a")}}),
			[]Result{
				ok(released),
				{
					Error:         "unresolvable: transaction not in the ack window (hash purged or never pushed); if leased, the message redelivers",
					LeaseReleased: true, Queue: "orders", Partition: "eu",
				},
			},
			true,
		},
		{
			"no batch to fail", three, answer(pg.HashAckResult{OK: true, SignalIgnored: true}),
			[]Result{ok(nil), refused("no leased batch"), ok(nil)},
			false,
		},
		{"no consumer", three[:1], answer(pg.HashAckResult{Error: "consumer not found"}), []Result{refused("consumer not found")}, false},
		{"lost lease", three[:2], answer(pg.HashAckResult{Error: "invalid or expired lease"}), []Result{refused("invalid or expired lease"), refused("invalid or expired lease")}, false},
		{"refused without a reason", three[:1], answer(pg.HashAckResult{}), []Result{refused("ack rejected")}, false},
		{"no connection", three[:1], fail(fmt.Errorf("ack: %w", pg.ErrPoolTimeout)), []Result{refused("pool")}, false},
		{"database error", three[:1], fail(errors.New("ERROR: disk is on fire")), []Result{refused("the acknowledgment was not committed; repeat it")}, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server, db, gates := setup(t, Config{})
			db.ack = c.ack
			waiter := gates.Subscribe(tenant, "orders")
			defer waiter.Release()
			opened, _ := waiter.Arm()

			_, failure := c.ack(t.Context(), pg.HashAck{})
			got := server.Ack(t.Context(), tenant, "billing", c.items)

			for i := range c.want {
				c.want[i].TransactionID = c.items[i].TransactionID
			}
			for i := range got { // what failed is for the log and the error table, and never part of a text
				require.ErrorIs(t, got[i].Cause, failure)
				got[i].Cause = nil
			}
			require.Empty(t, cmp.Diff(c.want, got))
			select {
			case <-opened:
				require.True(t, c.wakes, "woken although no lease ended")
			default:
				require.False(t, c.wakes, "a lease ended and nobody was woken")
			}
		})
	}
}

// The first ack of a batch ends its lease. When its answer got lost and it comes again, what is completed is a success.
func TestRepeatedAckIsNoLostLease(t *testing.T) {
	t.Parallel()
	const lost = "invalid or expired lease"
	items := []Item{
		{TransactionID: "a", PartitionID: partition.String(), Status: "ok", LeaseID: "lease"},
		{TransactionID: "b", PartitionID: partition.String(), Status: "failed", LeaseID: "lease"},
		{TransactionID: "c", PartitionID: partition.String(), Status: "completed", LeaseID: "lease"},
	}
	noop := func(r *Result) { r.Noop = true }
	for _, c := range []struct {
		name      string
		completed []string
		err       error
		want      []Result
	}{
		{"all completed", []string{"a", "b", "c"}, nil, []Result{ok(noop), refused(lost), ok(noop)}},
		{"one completed", []string{"c"}, nil, []Result{refused(lost), refused(lost), ok(noop)}},
		{"none completed", nil, nil, []Result{refused(lost), refused(lost), refused(lost)}},
		{"not known", nil, pg.ErrUnavailable, []Result{refused(lost), refused(lost), refused(lost)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server, db, _ := setup(t, Config{})
			db.ack = func(context.Context, pg.HashAck) (pg.HashAckResult, error) { return pg.HashAckResult{Error: lost}, nil }
			db.completed, db.completedErr = c.completed, c.err
			for i := range c.want {
				c.want[i].TransactionID = items[i].TransactionID
			}
			require.Empty(t, cmp.Diff(c.want, server.Ack(t.Context(), tenant, "billing", items)))
		})
	}
}

func TestGroupsAreIndependent(t *testing.T) {
	t.Parallel()
	server, db, _ := setup(t, Config{})
	db.ack = func(_ context.Context, a pg.HashAck) (pg.HashAckResult, error) {
		if a.Worker == "stale" {
			return pg.HashAckResult{Error: "invalid or expired lease"}, nil
		}
		return pg.HashAckResult{OK: true, LeaseReleased: true}, nil
	}
	id := partition.String()
	items := []Item{
		{"a", id, "completed", "live", "", nil},
		{"b", id, "completed", "stale", "", nil},
		{"c", "not-a-uuid", "completed", "live", "", nil},
		{"d", id, "failed", "live", "boom", nil},
		{"e", foreign.String(), "completed", "live", "", nil},
		{"f", uuid.NewString(), "completed", "live", "", nil},
		{"g", "", "completed", "", "", nil},
		{"h", "{" + id + "}", "completed", "live", "", nil},
		{"i", id, "completed", "nul\x00", "", nil},
	}
	got := server.Ack(t.Context(), tenant, "", items)

	const badID = "invalid partitionId: it must be a UUID, as the pop returned it"
	want := []Result{
		{TransactionID: "a", Success: true, LeaseReleased: true, Queue: "orders", Partition: "eu"},
		{TransactionID: "b", Error: "invalid or expired lease", Queue: "orders", Partition: "eu"},
		{TransactionID: "c", Error: badID},
		{TransactionID: "d", Success: true, LeaseReleased: true, Queue: "orders", Partition: "eu"},
		{TransactionID: "e", Error: "partition not owned by tenant"},
		{TransactionID: "f", Error: "consumer not found"},
		{TransactionID: "g", Error: badID},
		{TransactionID: "h", Error: badID},
		{TransactionID: "i", Error: "invalid or expired lease"},
	}
	require.Empty(t, cmp.Diff(want, got))
	require.Len(t, db.asked, 2, "one call per partition and lease")
	for _, asked := range db.asked {
		require.Equal(t, pg.QueueModeGroup, asked.Group)
		if asked.Worker == "live" {
			require.Equal(t, []string{"completed", "failed"}, asked.Statuses)
			a, d := segment.Hash("a"), segment.Hash("d")
			require.Equal(t, [][]byte{a[:], d[:]}, asked.Hashes)
		}
	}
	require.Empty(t, server.Ack(t.Context(), tenant, "", nil))
}

func TestMissingPartitionLooksForeignUnderTenancy(t *testing.T) {
	t.Parallel()
	server, db, _ := setup(t, Config{Tenancy: true})
	items := []Item{{TransactionID: "a", PartitionID: uuid.NewString()}, {TransactionID: "a", PartitionID: foreign.String()}}
	got := server.Ack(t.Context(), tenant, "g", items)
	require.Equal(t, got[0], got[1])
	require.Equal(t, "partition not owned by tenant", got[0].Error)
	require.Empty(t, db.asked)

	_, err := server.Owner(t.Context(), tenant, foreign)
	require.ErrorIs(t, err, ErrNotOwned)
	_, err = server.Owner(t.Context(), tenant, uuid.New())
	require.ErrorIs(t, err, ErrNotOwned)
}

func TestOwnershipIsRememberedOnlyWhenFound(t *testing.T) {
	t.Parallel()
	server, db, _ := setup(t, Config{})
	item := []Item{{TransactionID: "a", PartitionID: partition.String()}}
	db.ownErr = fmt.Errorf("look up: %w", pg.ErrPoolTimeout)
	require.Equal(t, "pool", server.Ack(t.Context(), tenant, "g", item)[0].Error, "an error denies")
	db.ownErr = nil
	require.True(t, server.Ack(t.Context(), tenant, "g", item)[0].Success)
	require.True(t, server.Ack(t.Context(), tenant, "g", item)[0].Success)
	require.Equal(t, 2, db.lookups)
	unknown := []Item{{TransactionID: "a", PartitionID: uuid.NewString()}}
	server.Ack(t.Context(), tenant, "g", unknown)
	server.Ack(t.Context(), tenant, "g", unknown)
	require.Equal(t, 4, db.lookups)
	others := []Item{{TransactionID: "a", PartitionID: foreign.String()}}
	server.Ack(t.Context(), tenant, "g", others)
	server.Ack(t.Context(), tenant, "g", others)
	require.Equal(t, 6, db.lookups, "what belongs to others takes as long as what is unknown")
}

func TestOwnersAreBounded(t *testing.T) {
	t.Parallel()
	var known owners
	first := uuid.New()
	known.put(first, Owner{Queue: "orders"})
	for range 3 * ownerEntries {
		known.put(uuid.New(), Owner{})
		_, ok := known.get(first)
		require.True(t, ok, "what is used stays")
	}
	require.LessOrEqual(t, len(known.young)+len(known.old), 2*ownerEntries)
}

func TestAckIsNotCancelledByItsCaller(t *testing.T) {
	t.Parallel()
	server, db, _ := setup(t, Config{})
	db.ack = func(ctx context.Context, _ pg.HashAck) (pg.HashAckResult, error) {
		_, bounded := ctx.Deadline()
		require.True(t, bounded)
		return pg.HashAckResult{OK: true}, ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.True(t, server.Ack(ctx, tenant, "g", []Item{{TransactionID: "a", PartitionID: partition.String()}})[0].Success)
}

func TestManyGroupsRunWithABound(t *testing.T) {
	t.Parallel()
	server, db, _ := setup(t, Config{Concurrency: 3})
	var mu sync.Mutex
	running, most := 0, 0
	db.ack = func(context.Context, pg.HashAck) (pg.HashAckResult, error) {
		mu.Lock()
		running++
		most = max(most, running)
		mu.Unlock()
		defer func() { mu.Lock(); running--; mu.Unlock() }()
		return pg.HashAckResult{OK: true}, nil
	}
	items := make([]Item, 200)
	for i := range items {
		items[i] = Item{TransactionID: fmt.Sprint(i), PartitionID: partition.String(), LeaseID: fmt.Sprint(i)}
	}
	for i, result := range server.Ack(t.Context(), tenant, "g", items) {
		require.True(t, result.Success)
		require.Equal(t, fmt.Sprint(i), result.TransactionID)
	}
	require.LessOrEqual(t, most, 3)
}

func TestExtendClampsAndRefusesNobodysLease(t *testing.T) {
	t.Parallel()
	server, db, _ := setup(t, Config{})
	for _, seconds := range []int{-5, 0, 1, 60, MaxExtendSeconds, MaxExtendSeconds + 1} {
		renewal, err := server.Extend(t.Context(), tenant, "lease", seconds)
		require.NoError(t, err)
		require.Equal(t, 1, renewal.Renewed)
	}
	require.Equal(t, []string{"lease 1", "lease 1", "lease 1", "lease 60", "lease 86400", "lease 86400"}, db.renewed)
	for _, id := range []string{"", "a\x00b", "\xff"} {
		renewal, err := server.Extend(t.Context(), tenant, id, 60)
		require.NoError(t, err)
		require.Zero(t, renewal)
	}
	require.Len(t, db.renewed, 6)
}

func TestCleanErrorIsAlwaysStorable(t *testing.T) {
	t.Parallel()
	cases := []struct{ name, sent, want string }{
		{"plain", "boom: é😀", "boom: é😀"},
		{"NUL", "a\x00b", "a\uFFFDb"},
		{"not UTF-8", "a\xff\xfeb", "a\uFFFD\uFFFDb"},
		{"half a character", "a\xe2\x82", "a\uFFFD\uFFFD"},
		{"longest", strings.Repeat("x", MaxErrorBytes), strings.Repeat("x", MaxErrorBytes)},
		{"too long", strings.Repeat("x", MaxErrorBytes+1), strings.Repeat("x", MaxErrorBytes)},
		{"cut at a character", strings.Repeat("x", MaxErrorBytes-1) + "é", strings.Repeat("x", MaxErrorBytes-1)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, CleanError(c.sent))
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		sent := string(rapid.SliceOfN(rapid.Byte(), 0, 3*MaxErrorBytes).Draw(t, "sent"))
		got := CleanError(sent)
		if !utf8.ValidString(got) || strings.ContainsRune(got, 0) || len(got) > MaxErrorBytes {
			t.Fatalf("not storable: %q", got)
		}
	})
}
