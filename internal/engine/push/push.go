package push

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// A Store is what the pusher needs of the database; *pg.DB is one. The store bounds every call with its statement timeout
// and repeats by itself what rolled back because of a conflict or a lock.
type Store interface {
	PushMulti(ctx context.Context, segments []pg.Segment, options pg.PushOptions) ([]pg.PushVerdict, error)
	SegmentAt(ctx context.Context, partition uuid.UUID, offset int64) (pg.StoredSegment, bool, error)
	QueueSettings(ctx context.Context, tenant uuid.UUID, queue string) (pg.QueueSettings, bool, error)
}

// A Verifier vouches for transaction ids, so that the database looks at fewer stored hashes. It is asked once per segment
// of a flush and told about every stored segment before the next flush of the partition starts. Claiming too little costs
// time; claiming too much stores duplicates. Implementations must be safe for concurrent use, return without waiting for
// anything, and keep neither s nor its slices after the call.
type Verifier interface {
	// Verify sets s.Verified and the fields that say what it is about; -1 when in doubt.
	Verify(s *pg.Segment)
	// Stored reports that s was committed as v says.
	Stored(s *pg.Segment, v *pg.PushVerdict)
}

// A StoredFunc hears of every committed segment: n messages for one partition. It is called from the flush before the
// requests are answered, also when their callers have left; it must not block.
type StoredFunc func(tenant uuid.UUID, queue, partition string, partitionID uuid.UUID, n int)

// An Item is one message to be stored.
type Item struct {
	Queue     string
	Partition string
	// TransactionID is the de-duplication key inside the partition, at most segment.MaxTransactionIDBytes; empty takes the
	// text of the message id.
	TransactionID string
	TraceID       uuid.NullUUID
	// Context is the span that pushed the message, zero when there was none.
	Context segment.TraceContext
	// Payload is stored byte for byte. It is not copied; see [Pusher.Push] for how long it stays in use.
	Payload []byte
}

// A Request is the items of one caller, in its order.
type Request struct {
	Tenant uuid.UUID
	// ProducerSub is the authenticated subject of the caller; empty when there is none.
	ProducerSub string
	Items       []Item
}

// A Status is what became of an item.
type Status string

// The statuses of the wire contract. No other value exists: newer clients take an unknown one for a failure.
const (
	// StatusQueued: committed.
	StatusQueued Status = "queued"
	// StatusDuplicate: the transaction id is already stored, or came earlier in the same request; nothing was written.
	StatusDuplicate Status = "duplicate"
	// StatusBuffered: on the broker's disk, to be committed later.
	StatusBuffered Status = "buffered"
	// StatusFailed: not stored as far as this broker knows; Verdict.Err says why.
	StatusFailed Status = "failed"
)

// A Verdict is the answer for one item.
type Verdict struct {
	Status Status
	// MessageID is the stored message: for a duplicate the original's id, or the nil UUID when that cannot be read any more.
	MessageID uuid.UUID
	// TransactionID is the key actually used.
	TransactionID string
	// PartitionID is the partition that decided; the nil UUID when none did.
	PartitionID uuid.UUID
	// Err is set exactly when Status is StatusFailed: a [*QueueFullError], one of this package's sentinels, or an error of
	// package pg or segment.
	Err error
	// Depth (after the request), Limit and Remaining describe a bounded queue in messages; Limit is 0 for unbounded ones.
	Depth, Limit, Remaining int64
}

// Defaults and bounds of [Config].
const (
	DefaultShards      = 1
	DefaultMaxInFlight = 4
	DefaultBundleMax   = 256
	DefaultHold        = 3 * time.Millisecond

	// MaxSegmentMessages and MaxSegmentBytes (uncompressed) bound one segment: every pop of one of its messages has to
	// decompress all of it. A single larger message is a segment of its own.
	MaxSegmentMessages = 10_000
	MaxSegmentBytes    = 16 << 20
	// maxBundleBytes bounds what one call carries, so that many partitions with full segments do not become one statement of
	// gigabytes.
	maxBundleBytes = 32 << 20
)

// A Sealer encrypts payloads. It is asked from several flushes at a time.
type Sealer interface {
	// Seal returns the envelope of a payload and does not keep the payload.
	Seal(payload []byte) []byte
}

// Config tunes a [Pusher]. The zero value is the default.
type Config struct {
	// Shards is the number of partition owners; default 1. More shards use more cores and fuse less: messages of different
	// shards never share a commit. One shard takes in several hundred thousand requests a second.
	Shards int
	// MaxInFlight is the most flushes one shard runs at a time; default 4. Beside another flush only a bundle starts that is
	// large enough to pay for a commit of its own.
	MaxInFlight int
	// BundleMax is the most partitions one commit carries; default 256.
	BundleMax int
	// Hold is how often a shard looks again that waits for a slot, or for company for a small bundle; default 3 ms. It is a
	// backstop: the end of another flush comes first, unless that one is slow.
	Hold time.Duration
	// Packer compresses; default is segment.DefaultPacker.
	Packer *segment.Packer
	// Verifier vouches for hashes; default is to claim nothing.
	Verifier Verifier
	// Sealer encrypts the payloads of queues that demand it. Nil cannot: their messages are refused.
	Sealer Sealer
	// Handover finds pops that wait for the messages of segments about to be stored, and what the commit is to lease to them. conclude is
	// called exactly once after onStored, or with nil verdicts when the commit failed; nil when nobody waits. Default finds none.
	Handover func(segments []pg.Segment) (leases []pg.Handover, conclude func(context.Context, []pg.PushVerdict))
	// Logger takes the few lines a flush may write; default discards.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Shards <= 0 {
		c.Shards = DefaultShards
	}
	if c.MaxInFlight <= 0 {
		c.MaxInFlight = DefaultMaxInFlight
	}
	if c.BundleMax <= 0 {
		c.BundleMax = DefaultBundleMax
	}
	if c.Hold <= 0 {
		c.Hold = DefaultHold
	}
	if c.Packer == nil {
		c.Packer = segment.DefaultPacker()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// A Pusher stores messages. Make one with [New], keep it going with Run, and call Push from any goroutine.
type Pusher struct {
	cfg      Config
	db       Store
	slots    *admission.Controller
	onStored StoredFunc
	settings *settingsCache
	shards   []*shard
	seed     maphash.Seed
	counters counters

	mu         sync.Mutex
	running    bool
	stopped    bool
	submitting sync.WaitGroup // callers between the stopped check and their last send to a shard
}

// New returns a pusher that stores through db under push slots. onStored may be nil.
func New(cfg Config, db Store, slots *admission.Controller, onStored StoredFunc) *Pusher {
	cfg = cfg.withDefaults()
	if onStored == nil {
		onStored = func(uuid.UUID, string, string, uuid.UUID, int) {}
	}
	p := &Pusher{cfg: cfg, db: db, slots: slots, onStored: onStored, settings: newSettingsCache(db), seed: maphash.MakeSeed()}
	p.shards = make([]*shard, cfg.Shards)
	for i := range p.shards {
		p.shards[i] = newShard(p)
	}
	return p
}

// Run owns the shards until ctx ends. Then new pushes are refused, everything taken is committed or failed, and Run
// returns nil; that takes as long as the database needs, bounded by the store's statement timeouts. A pusher runs once.
func (p *Pusher) Run(ctx context.Context) error {
	p.mu.Lock()
	if p.running {
		p.mu.Unlock()
		return errors.New("push: a pusher runs only once")
	}
	p.running = true
	p.mu.Unlock()

	// Flushes outlive ctx on purpose: what was taken is committed.
	flushing := context.WithoutCancel(ctx)
	stop := make(chan struct{})
	var shards sync.WaitGroup
	for _, s := range p.shards {
		shards.Go(func() { s.run(flushing, stop) })
	}
	<-ctx.Done()
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	p.submitting.Wait() // the shards still receive
	close(stop)
	shards.Wait()
	p.settings.wait()
	return nil
}

// Push stores the items and returns one verdict for each, in order. It waits for the commits.
//
// It fails as a whole only with [ErrStopped] (nothing was taken) or when ctx ends: then the items may or may not be stored,
// and the flush goes on for the others. After such an error the payloads stay in use until that flush is finished: the
// caller must leave their memory to the garbage collector instead of reusing it.
func (p *Pusher) Push(ctx context.Context, r Request) ([]Verdict, error) {
	if len(r.Items) == 0 {
		return []Verdict{}, nil
	}
	p.counters.requests.Add(1)
	p.counters.items.Add(uint64(len(r.Items)))
	c := newCall(r)
	if err := p.submit(ctx, c); err != nil {
		return nil, err
	}
	select {
	case <-c.done:
		c.resolveFollowers()
		return c.verdicts, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("push: %w", ctx.Err())
	}
}

// submit hands the parts of c to their shards.
func (p *Pusher) submit(ctx context.Context, c *call) error {
	p.mu.Lock()
	if p.stopped {
		p.mu.Unlock()
		return ErrStopped
	}
	p.submitting.Add(1)
	p.mu.Unlock()
	defer p.submitting.Done()

	deliveries, err := p.route(ctx, c)
	if err != nil {
		return err
	}
	for _, d := range deliveries {
		select {
		case p.shards[d.shard].inbox <- d.units:
		case <-ctx.Done():
			// The parts that were sent go on without a caller; the rest is not stored.
			return fmt.Errorf("push: %w", ctx.Err())
		}
	}
	return nil
}

// A delivery is what one call sends to one shard, in one message.
type delivery struct {
	shard int
	units []unit
}

// route decides for every part of c where it goes: to its partition's group, or, when its queue is bounded, together with
// the call's other parts for that queue.
func (p *Pusher) route(ctx context.Context, c *call) ([]delivery, error) {
	if len(c.parts) == 1 {
		bounded, err := p.settings.bounded(ctx, c.tenant, c.parts[0].queue)
		if err != nil {
			return nil, err
		}
		u := unit{key: keyOf(c.parts[0], bounded), parts: c.parts}
		return []delivery{{shard: p.shardOf(u.key), units: []unit{u}}}, nil
	}
	deliveries := make([]delivery, 0, min(len(p.shards), len(c.parts)))
	slot := make([]int, len(p.shards)) // 1 + index into deliveries
	add := func(u unit) {
		n := p.shardOf(u.key)
		if slot[n] == 0 {
			deliveries = append(deliveries, delivery{shard: n})
			slot[n] = len(deliveries)
		}
		d := &deliveries[slot[n]-1]
		d.units = append(d.units, u)
	}
	var boundedUnits map[string][]*part
	queue, bounded := "", false
	for i, pt := range c.parts {
		if i == 0 || pt.queue != queue {
			var err error
			if bounded, err = p.settings.bounded(ctx, c.tenant, pt.queue); err != nil {
				return nil, err
			}
			queue = pt.queue
		}
		if !bounded {
			add(unit{key: keyOf(pt, false), parts: c.parts[i : i+1 : i+1]})
			continue
		}
		if boundedUnits == nil {
			boundedUnits = make(map[string][]*part)
		}
		boundedUnits[queue] = append(boundedUnits[queue], pt)
	}
	for _, parts := range boundedUnits {
		add(unit{key: keyOf(parts[0], true), parts: parts})
	}
	return deliveries, nil
}

func (p *Pusher) shardOf(k groupKey) int {
	var h maphash.Hash
	h.SetSeed(p.seed)
	_, _ = h.Write(k.tenant[:])
	_, _ = h.WriteString(k.queue)
	_ = h.WriteByte(0x1f) // names hold no control characters
	_, _ = h.WriteString(k.partition)
	return int(h.Sum64() % uint64(len(p.shards))) //nolint:gosec // below the number of shards
}

// Encrypts reports whether the queue demands encrypted payloads, as far as is known here: the database has the last word, and
// refuses plain ones. It fails only with ctx's error.
func (p *Pusher) Encrypts(ctx context.Context, tenant uuid.UUID, queue string) (bool, error) {
	if _, err := p.settings.bounded(ctx, tenant, queue); err != nil {
		return false, err
	}
	return p.settings.encrypts(tenant, queue), nil
}

// LastKnown returns what the settings of the queue were when they were last read. It asks nobody.
func (p *Pusher) LastKnown(tenant uuid.UUID, queue string) Options {
	return p.settings.lastKnown(tenant, queue)
}

// ForgetQueue drops what the pusher remembers of a queue's options; call it after they were changed or the queue was
// deleted. Without the call they are at most five seconds old.
func (p *Pusher) ForgetQueue(tenant uuid.UUID, queue string) { p.settings.forget(tenant, queue) }
