package pop

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/ready"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	tenant      = uuid.MustParse("00000000-0000-0000-0000-000000000001")
	partitionID = uuid.MustParse("0199b0c4-6a11-7f3e-8c55-41d0e9a7b2f6")
	createdAt   = time.Date(2026, 9, 14, 6, 21, 8, 417302000, time.UTC)
)

// fakeStore is a database whose answers a test decides.
type fakeStore struct {
	mu       sync.Mutex
	calls    []string
	requests []pg.PopRequest
	released []string
	inFlight int

	// claim answers the claiming calls ("wildcard", "specific", "discover", "list").
	claim    func(ctx context.Context, call string, r pg.PopRequest) (pg.Claim, error)
	pending  bool
	raised   int
	settings map[string]pg.QueueSettings
	failRead error

	cuts        []pg.LeaseCut
	leaseLost   bool
	failShorten error

	registered bool
	failWalk   error
	pages      [][]string
	walked     []pg.PendingPage
	seeded     int
	repairs    []pg.HotListRepair
}

func (f *fakeStore) enter(call string) func() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call)
	f.inFlight++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.inFlight--
	}
}

// log returns the calls so far and forgets them.
func (f *fakeStore) log() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

func (f *fakeStore) last() pg.PopRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests[len(f.requests)-1]
}

func (f *fakeStore) setPending(pending bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending = pending
}

func (f *fakeStore) answer(ctx context.Context, call string, r pg.PopRequest) (pg.Claim, error) {
	defer f.enter(call)()
	f.mu.Lock()
	f.requests = append(f.requests, r)
	f.mu.Unlock()
	if f.claim == nil {
		return pg.Claim{}, nil
	}
	claim, err := f.claim(ctx, call, r)
	if err == nil && r.AutoAck && r.Accept != nil {
		err = r.Accept(claim)
	}
	if err != nil {
		return pg.Claim{}, err
	}
	return claim, nil
}

func (f *fakeStore) PopWildcard(ctx context.Context, r pg.PopRequest) (pg.Claim, error) {
	return f.answer(ctx, "wildcard", r)
}

func (f *fakeStore) PopSpecific(ctx context.Context, r pg.PopRequest) (pg.Claim, error) {
	return f.answer(ctx, "specific", r)
}

func (f *fakeStore) PopDiscover(ctx context.Context, r pg.PopRequest) (pg.Claim, error) {
	return f.answer(ctx, "discover", r)
}

func (f *fakeStore) PopList(ctx context.Context, r pg.PopRequest) (pg.Claim, error) {
	return f.answer(ctx, "list", r)
}

func (f *fakeStore) PopReady(ctx context.Context, r pg.PopRequest) (pg.Claim, error) {
	return f.answer(ctx, "ready", r)
}

func (f *fakeStore) GroupRegistered(context.Context, uuid.UUID, string, string) (bool, error) {
	defer f.enter("registered")()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.registered, f.failRead
}

// Pending answers one page after the other from pages.
func (f *fakeStore) Pending(_ context.Context, page pg.PendingPage) ([]string, []int64, pg.PendingCursor, error) {
	defer f.enter("walk")()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.walked = append(f.walked, page)
	if f.failWalk != nil || len(f.pages) == 0 {
		return nil, nil, pg.PendingCursor{}, f.failWalk
	}
	names, next := f.pages[0], pg.PendingCursor{}
	if f.pages = f.pages[1:]; len(f.pages) > 0 {
		next = pg.PendingCursor{At: time.Now(), ID: uuid.New()}
	}
	return names, slices.Repeat([]int64{1}, len(names)), next, nil
}

// SeedGroup counts the steps; there is one.
func (f *fakeStore) SeedGroup(context.Context, uuid.UUID, string, string, pg.PendingCursor, int) (pg.PendingCursor, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seeded++
	return pg.PendingCursor{}, nil
}

func (f *fakeStore) HotListRepairs(context.Context) ([]pg.HotListRepair, error) {
	defer f.enter("repairs")()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.repairs, f.failRead
}

func (f *fakeStore) RaiseScanFloor(context.Context, uuid.UUID, string, string, time.Time) (time.Time, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.raised++
	return time.Time{}, false, nil
}

func (f *fakeStore) HasPending(context.Context, uuid.UUID, string, string) (bool, error) {
	defer f.enter("pending")()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pending, f.failRead
}

func (f *fakeStore) QueueSettings(_ context.Context, _ uuid.UUID, queue string) (pg.QueueSettings, bool, error) {
	defer f.enter("settings")()
	f.mu.Lock()
	defer f.mu.Unlock()
	settings, found := f.settings[queue]
	return settings, found, f.failRead
}

func (f *fakeStore) ReleaseLease(_ context.Context, partition uuid.UUID, group, worker string) error {
	defer f.enter("release")()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.released = append(f.released, fmt.Sprintf("%s/%s/%s", partition, group, worker))
	return nil
}

// setup returns a server on a fake database.
func setup(t *testing.T, cfg Config) (*Server, *fakeStore, *ready.Gates) {
	t.Helper()
	db := &fakeStore{settings: map[string]pg.QueueSettings{"orders": {LeaseSeconds: 300}}}
	return setupAt(t, cfg, db, ready.New())
}

// setupHot is setup with a hot list, for a group that is registered.
func setupHot(t *testing.T, cfg Config) (*Server, *fakeStore, *ready.Gates) {
	t.Helper()
	db := &fakeStore{settings: map[string]pg.QueueSettings{"orders": {LeaseSeconds: 300}}, registered: true}
	return setupAt(t, cfg, db, ready.NewHot(ready.NewHotList(ready.HotConfig{})))
}

func setupAt(t *testing.T, cfg Config, db *fakeStore, gates *ready.Gates) (*Server, *fakeStore, *ready.Gates) {
	t.Helper()
	server := New(cfg, db, gates, admission.New(admission.Config{PoolSize: 40}))
	return server, db, gates
}

// register makes the group of the request known, as a first pop does.
func register(t *testing.T, server *Server, db *fakeStore, req Request) {
	t.Helper()
	req.Wait = false
	_, err := server.Pop(t.Context(), req)
	require.NoError(t, err)
	db.log()
}

// stored is a claimed segment with n messages from base on.
func stored(t testing.TB, base int64, frames ...segment.Frame) pg.ClaimedSegment {
	t.Helper()
	blob, _, err := segment.Pack(frames)
	require.NoError(t, err)
	return pg.ClaimedSegment{Base: base, Take: len(frames), CreatedAt: createdAt, Blob: blob}
}

// message is a frame with a payload.
func message(n int) segment.Frame {
	return segment.Frame{ID: segment.NewID(), TransactionID: fmt.Sprintf("txn-%d", n), Payload: fmt.Appendf(nil, `{"n":%d}`, n)}
}

// claimOf is a claim of one partition.
func claimOf(segments ...pg.ClaimedSegment) pg.Claim {
	return pg.Claim{Partitions: []pg.ClaimedPartition{{
		Queue: "orders", Partition: "eu", PartitionID: partitionID, Segments: segments,
	}}}
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

// ShortenLeases keeps what it is asked to keep, and answers what a test decides.
func (f *fakeStore) ShortenLeases(_ context.Context, _, _ string, cuts []pg.LeaseCut) ([]uuid.UUID, error) {
	defer f.enter("shorten")()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cuts = append(f.cuts, cuts...)
	var kept []uuid.UUID
	for _, cut := range cuts {
		if cut.End >= 0 && !f.leaseLost {
			kept = append(kept, cut.PartitionID)
		}
	}
	return kept, f.failShorten
}
