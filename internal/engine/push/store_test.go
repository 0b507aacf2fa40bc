package push

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testTenant = uuid.MustParse("00000000-0000-0000-0000-000000000001")

// memoryStore keeps the rules of log_push_multi_v1 in memory: dense offsets, duplicates refuse their segment, bounded
// queues are decided per call.
type memoryStore struct {
	// latency is how long a call takes; before, if set, may fail it.
	latency time.Duration
	before  func(call int, segments []pg.Segment) error
	// answer, if set, may replace the verdicts.
	answer func(call int, segments []pg.Segment) []pg.PushVerdict
	// settingsError fails QueueSettings.
	settingsError error

	mu           sync.Mutex
	calls        [][]pg.Segment
	parts        map[groupKey]*memoryPartition
	limits       map[string]int
	encrypted    map[string]bool
	repeats      map[string]bool // queues without de-duplication
	settingsRead int
	segmentRead  int
}

var errClaim = errors.New("a false claim")

// WindowHashes makes the store a source of a dedup cache.
func (s *memoryStore) WindowHashes(_ context.Context, partition uuid.UUID, after int64, _ time.Duration, each func(*pg.WindowHashes) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.parts {
		for _, g := range p.segments {
			if p.id != partition || g.Base <= after {
				continue
			}
			row := pg.WindowHashes{Base: g.Base, End: g.End, CreatedAt: time.Now(), Since: time.Now().Add(-time.Hour)}
			for _, frame := range p.frames[g.Base : g.End+1] {
				h := segment.Hash(frame.TransactionID)
				row.Hashes = append(row.Hashes, h[:]...)
			}
			if err := each(&row); err != nil {
				return err
			}
		}
	}
	return nil
}

type memoryPartition struct {
	id       uuid.UUID
	frames   []segment.Frame
	offsets  map[[16]byte]int64
	segments []pg.StoredSegment
}

func newMemoryStore() *memoryStore {
	return &memoryStore{parts: make(map[groupKey]*memoryPartition), limits: make(map[string]int)}
}

func (s *memoryStore) PushMulti(_ context.Context, segments []pg.Segment, _ pg.PushOptions) ([]pg.PushVerdict, error) {
	if s.latency > 0 {
		<-time.After(s.latency)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.calls)
	copies := make([]pg.Segment, len(segments))
	for i, g := range segments {
		g.Hashes = append([]byte(nil), g.Hashes...)
		copies[i] = g
	}
	s.calls = append(s.calls, copies)
	if s.before != nil {
		if err := s.before(n, segments); err != nil {
			return nil, err
		}
	}
	if s.answer != nil {
		if v := s.answer(n, segments); v != nil {
			return v, nil
		}
	}
	return s.store(segments)
}

func (s *memoryStore) store(segments []pg.Segment) ([]pg.PushVerdict, error) {
	verdicts := make([]pg.PushVerdict, len(segments))
	arriving := make(map[string]int)
	repeats := make(map[string]bool)
	for i := range segments {
		g := &segments[i]
		p := s.partitionLocked(g)
		verdicts[i] = pg.PushVerdict{Status: pg.PushQueued, PartitionID: p.id, Window: time.Hour}
		for f := range g.Count {
			if off, dup := p.offsets[[16]byte(g.Hashes[f*16:])]; dup && !s.repeats[g.Queue] {
				if off <= g.Verified && g.VerifiedPartition == p.id {
					return nil, fmt.Errorf("%w: the verifier vouched up to %d for an id stored at %d", errClaim, g.Verified, off)
				}
				verdicts[i].Status = pg.PushDuplicate
				verdicts[i].Duplicates = append(verdicts[i].Duplicates, pg.Duplicate{Frame: f, Offset: off})
				repeats[g.Queue] = true
			}
		}
		arriving[g.Queue] += g.Count
	}
	for i := range segments {
		g, v := &segments[i], &verdicts[i]
		limit := s.limits[g.Queue]
		switch depth := s.depthLocked(g.Queue); {
		case v.Status == pg.PushDuplicate:
		case limit == 0:
		case repeats[g.Queue]:
			v.Status = pg.PushHeld
		case depth+arriving[g.Queue] > limit:
			v.Status, v.Depth, v.Limit, v.Remaining = pg.PushFull, int64(depth), int64(limit), int64(max(limit-depth, 0))
		}
	}
	for i := range segments {
		g, v := &segments[i], &verdicts[i]
		if v.Status != pg.PushQueued {
			continue
		}
		p := s.partitionLocked(g)
		frames, err := segment.Unpack(g.Blob)
		if err != nil {
			return nil, err
		}
		v.BaseOffset, v.CreatedAt = int64(len(p.frames)), time.Now()
		for f := range frames.Len() {
			frame := frames.At(f)
			frame.Payload = append([]byte(nil), frame.Payload...)
			p.offsets[segment.Hash(frame.TransactionID)] = int64(len(p.frames))
			p.frames = append(p.frames, frame)
		}
		frames.Release()
		p.segments = append(p.segments, pg.StoredSegment{Base: v.BaseOffset, End: int64(len(p.frames)) - 1, Blob: g.Blob})
	}
	for i := range verdicts {
		v, limit := &verdicts[i], int64(s.limits[segments[i].Queue])
		if v.Status == pg.PushQueued && limit > 0 {
			v.Limit, v.Depth = limit, int64(s.depthLocked(segments[i].Queue))
			v.Remaining = limit - v.Depth
		}
	}
	return verdicts, nil
}

func (s *memoryStore) partitionLocked(g *pg.Segment) *memoryPartition {
	k := groupKey{tenant: g.Tenant, queue: g.Queue, partition: g.Partition}
	p := s.parts[k]
	if p == nil {
		p = &memoryPartition{id: uuid.New(), offsets: make(map[[16]byte]int64)}
		s.parts[k] = p
	}
	return p
}

func (s *memoryStore) depthLocked(queue string) int {
	n := 0
	for k, p := range s.parts {
		if k.queue == queue {
			n += len(p.frames)
		}
	}
	return n
}

func (s *memoryStore) SegmentAt(_ context.Context, partition uuid.UUID, offset int64) (pg.StoredSegment, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.segmentRead++
	for _, p := range s.parts {
		if p.id != partition {
			continue
		}
		for _, g := range p.segments {
			if g.Base <= offset && offset <= g.End {
				return g, true, nil
			}
		}
	}
	return pg.StoredSegment{}, false, nil
}

func (s *memoryStore) QueueSettings(_ context.Context, _ uuid.UUID, queue string) (pg.QueueSettings, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settingsRead++
	if s.settingsError != nil {
		return pg.QueueSettings{}, false, s.settingsError
	}
	limit, found := s.limits[queue]
	settings := pg.QueueSettings{MaxSize: limit, EncryptionEnabled: s.encrypted[queue], DedupWindow: 3600}
	if s.repeats[queue] {
		settings.DedupWindow = 0
	}
	return settings, found || s.encrypted[queue] || s.repeats[queue], nil
}

// stored returns the messages of a partition in offset order.
func (s *memoryStore) stored(queue, partition string) []segment.Frame {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.parts[groupKey{tenant: testTenant, queue: queue, partition: partition}]
	if p == nil {
		return nil
	}
	return p.frames
}

func (s *memoryStore) callCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

func (s *memoryStore) settingsReads() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settingsRead
}

// fixture is a running pusher over a memory store.
type fixture struct {
	*Pusher
	store *memoryStore
	slots *admission.Controller
	// stop ends Run and waits for it.
	stop func()
}

func setup(t testing.TB, cfg Config, change ...func(*fixture)) *fixture {
	t.Helper()
	f := &fixture{store: newMemoryStore(), slots: admission.New(admission.Config{PoolSize: 160})}
	for _, c := range change {
		c(f)
	}
	f.Pusher = New(cfg, f.store, f.slots, nil)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	var once sync.Once
	f.stop = func() {
		once.Do(func() {
			cancel()
			require.NoError(t, <-ended)
			require.Zero(t, f.slots.Stats().InFlight, "slots in flight after the stop")
			for _, s := range f.shards {
				require.Empty(t, s.groups, "groups left after the stop")
				require.Nil(t, s.arrivals.first)
				require.Zero(t, s.arrivals.ready)
			}
		})
	}
	t.Cleanup(f.stop)
	return f
}

func item(partition, transactionID, payload string) Item {
	return Item{Queue: "orders", Partition: partition, TransactionID: transactionID, Payload: []byte(payload)}
}

func request(items ...Item) Request { return Request{Tenant: testTenant, Items: items} }

// push pushes and requires an answer.
func (f *fixture) push(t testing.TB, items ...Item) []Verdict {
	t.Helper()
	verdicts, err := f.Push(t.Context(), request(items...))
	require.NoError(t, err)
	require.Len(t, verdicts, len(items))
	for i, v := range verdicts {
		require.Equal(t, v.Status == StatusFailed, v.Err != nil, "item %d: %v, error %v", i, v.Status, v.Err)
		require.NotEmpty(t, v.TransactionID)
	}
	return verdicts
}

func statuses(verdicts []Verdict) []Status {
	s := make([]Status, len(verdicts))
	for i := range verdicts {
		s[i] = verdicts[i].Status
	}
	return s
}
