package dedup

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/pg"
)

// A Source reads what is stored; *pg.DB is one.
type Source interface {
	WindowHashes(ctx context.Context, partition uuid.UUID, after int64, window time.Duration, each func(*pg.WindowHashes) error) error
}

const (
	// DefaultMaxBytes is the default of [Config.MaxBytes].
	DefaultMaxBytes = 512 << 20
	// DefaultReaders is how many partitions are read at a time by default.
	DefaultReaders = 4
	// DefaultReadTimeout bounds the reading of one partition by default.
	DefaultReadTimeout = 10 * time.Second

	// entryBytes is what an entry costs besides its tables, with names of usual length.
	entryBytes = 400
	// inUse protects an entry from being evicted for so long after its last use.
	inUse = 5 * time.Second
	// warnInterval is how often at most the log says that the cache is too small.
	warnInterval = time.Minute
)

// limits are the numbers that tests make smaller.
type limits struct {
	// followedFromTheStart is how many partitions at most are followed from their first message on. Beyond, a partition
	// must have sparedMessages first: with fewer, the probe is cheaper than an entry.
	followedFromTheStart int
	sparedMessages       int64
	// largeGap is how many messages of other brokers are left to the database's probe before they are read.
	largeGap int64
	// maxPending bounds the messages of this broker behind a gap that an entry keeps until the gap is read.
	maxPending int
}

var usualLimits = limits{followedFromTheStart: 32_768, sparedMessages: 64, largeGap: 256, maxPending: 65_536}

const (
	// suppressed is how long a partition that could not be read is left to the database, and suppressedTooLarge one that did
	// not fit: trying that again costs as much as fits.
	suppressed         = 30 * time.Second
	suppressedTooLarge = 5 * time.Minute
)

// Config tunes a [Cache]. The zero value is the default.
type Config struct {
	// MaxBytes bounds the memory of the cache; default 512 MiB. A message in the window takes about eight bytes.
	MaxBytes int
	// Readers is how many partitions are read from the database at a time; default 4.
	Readers int
	// ReadTimeout bounds one such read; default 10 s.
	ReadTimeout time.Duration
	// Logger takes a line a minute when the cache is too small; default discards.
	Logger *slog.Logger
}

// A Cache vouches for transaction ids; see the package comment. Make one with [New] and end it with Close.
type Cache struct {
	cfg     Config
	limits  limits
	source  Source
	readers chan struct{}
	ctx     context.Context //nolint:containedctx // the life of the background reads, which belong to no request
	cancel  context.CancelFunc
	reading sync.WaitGroup

	// now is the newest time of the database that was seen, in microseconds since 1970.
	now      atomic.Int64
	counters counters

	mu       sync.Mutex
	closed   bool
	entries  map[key]*entry
	newest   *entry // the ends of the order of use
	oldest   *entry
	bytes    int
	warnedAt time.Time
}

type key struct {
	tenant           uuid.UUID
	queue, partition string
}

// An entry is one partition. The fields up to mu are guarded by the cache's mutex, the others by mu.
type entry struct {
	key          key
	older, newer *entry
	usedAt       time.Time
	charged      int
	evicted      bool

	mu        sync.Mutex
	partition uuid.UUID
	window    time.Duration
	// known says that history may be used.
	known   bool
	history history
	// pending are segments of this broker behind a gap, in order; head is the highest offset that is known to exist.
	pending        []run
	pendingHashes  int
	head           int64
	reading        bool
	suppressedTill time.Time
	// epoch changes when the history starts anew; a read that began before is of no use.
	epoch int
}

// A run is one stored segment.
type run struct {
	base, end int64
	created   time.Time
	hashes    []byte
}

// New returns an empty cache.
func New(cfg Config, source Source) *Cache {
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = DefaultMaxBytes
	}
	if cfg.Readers <= 0 {
		cfg.Readers = DefaultReaders
	}
	if cfg.ReadTimeout <= 0 {
		cfg.ReadTimeout = DefaultReadTimeout
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Cache{cfg: cfg, limits: usualLimits, source: source, readers: make(chan struct{}, cfg.Readers), entries: make(map[key]*entry)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Close ends the reads in the background and waits for them. Afterwards the cache still answers, but reads no more.
func (c *Cache) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.reading.Wait()
}

// Verify makes s say what the cache can vouch for. It never waits for the database.
func (c *Cache) Verify(s *pg.Segment) {
	s.Verified, s.VerifiedPartition, s.VerifiedSince = -1, uuid.Nil, time.Time{}
	e := c.use(key{s.Tenant, s.Queue, s.Partition})
	if e == nil {
		c.counters.unknown.Add(1)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.known || e.head-e.history.upto >= c.limits.largeGap {
		c.readLocked(e)
	}
	if !e.known {
		c.counters.unknown.Add(1)
		return
	}
	e.history.expire(c.databaseTime(), e.window)
	for hashes := s.Hashes; len(hashes) >= hashBytes; hashes = hashes[hashBytes:] {
		if e.history.has(hashes) {
			c.counters.suspected.Add(1)
			return // the database decides, and looks at the whole window
		}
	}
	s.Verified, s.VerifiedPartition, s.VerifiedSince = e.history.upto, e.partition, e.history.since
	c.counters.vouched.Add(1)
}

// Stored notes that s was committed as v says, before the next flush of the partition asks.
func (c *Cache) Stored(s *pg.Segment, v *pg.PushVerdict) {
	c.sawTime(v.CreatedAt)
	k := key{s.Tenant, s.Queue, s.Partition}
	if v.Window <= 0 {
		c.forget(k)
		return
	}
	e := c.use(k)
	if e == nil {
		if e = c.follow(k, v); e == nil {
			return
		}
	}
	e.mu.Lock()
	e.storedLocked(s, v, c.limits.maxPending)
	size := e.sizeLocked()
	e.mu.Unlock()
	c.charge(e, size)
}

func (e *entry) storedLocked(s *pg.Segment, v *pg.PushVerdict, maxPending int) {
	if e.partition != v.PartitionID {
		e.restartLocked()
		e.partition = v.PartitionID
		// The first message of a new partition: there is nothing that is not known.
		e.known, e.history, e.head = v.BaseOffset == 0, history{upto: -1}, -1
	}
	if v.Window > e.window && !e.history.since.IsZero() {
		e.restartLocked() // what is kept does not reach back far enough
	}
	e.window = v.Window
	end := v.BaseOffset + int64(s.Count) - 1
	e.head = max(e.head, end)
	switch {
	case e.known && v.BaseOffset == e.history.upto+1:
		e.history.add(end, v.CreatedAt, e.window, s.Hashes)
	case e.known && v.BaseOffset <= e.history.upto:
		e.restartLocked() // offsets were given twice: the database was set back
	case e.known || e.reading:
		if e.pendingHashes+s.Count > maxPending {
			e.dropPendingLocked()
		}
		e.pending = append(e.pending, run{v.BaseOffset, end, v.CreatedAt, append([]byte(nil), s.Hashes...)})
		e.pendingHashes += s.Count
	}
}

// restartLocked forgets the history; the next Verify has it read again.
func (e *entry) restartLocked() {
	e.known, e.history = false, history{}
	e.dropPendingLocked()
	e.epoch++
}

func (e *entry) dropPendingLocked() { e.pending, e.pendingHashes = nil, 0 }

// drainLocked appends the pending segments that the history has caught up with.
func (e *entry) drainLocked() {
	for len(e.pending) > 0 {
		r := e.pending[0]
		switch {
		case r.base > e.history.upto+1:
			return
		case r.base == e.history.upto+1:
			e.history.add(r.end, r.created, e.window, r.hashes)
		}
		e.pendingHashes -= len(r.hashes) / hashBytes
		e.pending[0] = run{}
		e.pending = e.pending[1:]
	}
	e.dropPendingLocked()
}

func (e *entry) sizeLocked() int {
	return entryBytes + len(e.key.queue) + len(e.key.partition) + e.history.size() + hashBytes*e.pendingHashes + 64*len(e.pending)
}

// databaseTime is the newest time of the database that was seen. It never runs ahead of its clock.
func (c *Cache) databaseTime() time.Time { return time.UnixMicro(c.now.Load()) }

func (c *Cache) sawTime(t time.Time) {
	now := t.UnixMicro()
	for {
		seen := c.now.Load()
		if now <= seen || c.now.CompareAndSwap(seen, now) {
			return
		}
	}
}

// follow makes an entry for a partition that is worth one, or returns nil.
func (c *Cache) follow(k key, v *pg.PushVerdict) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || v.BaseOffset < c.limits.sparedMessages && (v.BaseOffset > 0 || len(c.entries) >= c.limits.followedFromTheStart) {
		return nil
	}
	if e := c.entries[k]; e != nil {
		return e
	}
	// The names may be slices of a larger text, of a request for example.
	k.queue, k.partition = strings.Clone(k.queue), strings.Clone(k.partition)
	e := &entry{key: k, usedAt: time.Now()}
	c.entries[k] = e
	c.linkLocked(e)
	return e
}

// use looks an entry up and makes it the last one to be evicted.
func (c *Cache) use(k key) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[k]
	if e != nil {
		e.usedAt = time.Now()
		if c.newest != e {
			c.unlinkLocked(e)
			c.linkLocked(e)
		}
	}
	return e
}

func (c *Cache) forget(k key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[k]; e != nil {
		c.evictLocked(e)
	}
}

// charge accounts for the size of e and makes room: other partitions that were not used for a while go first. Without such,
// e itself starts anew and is left to the database for a while: reading it again and again would cost more than the probes
// that it saves.
func (c *Cache) charge(e *entry, size int) {
	c.mu.Lock()
	if e.evicted {
		c.mu.Unlock()
		return
	}
	c.bytes += size - e.charged
	e.charged = size
	for c.bytes > c.cfg.MaxBytes && c.oldest != nil && c.oldest != e && time.Since(c.oldest.usedAt) > inUse {
		c.evictLocked(c.oldest)
	}
	tooMuch := c.bytes > c.cfg.MaxBytes
	if tooMuch {
		c.bytes -= e.charged - entryBytes
		e.charged = entryBytes
		c.warnLocked()
	}
	c.mu.Unlock()
	if tooMuch {
		e.mu.Lock()
		e.restartLocked()
		e.suppressedTill = time.Now().Add(suppressedTooLarge)
		e.mu.Unlock()
	}
}

func (c *Cache) warnLocked() {
	c.counters.suppressions.Add(1)
	if now := time.Now(); now.Sub(c.warnedAt) > warnInterval {
		c.warnedAt = now
		c.cfg.Logger.Warn("the dedup cache is full and pushes to some partitions are slower; it needs about 8 bytes x messages per second x window in seconds",
			slog.Int("bytes", c.cfg.MaxBytes), slog.Int("partitions", len(c.entries)))
	}
}

func (c *Cache) evictLocked(e *entry) {
	delete(c.entries, e.key)
	c.unlinkLocked(e)
	c.bytes -= e.charged
	e.evicted = true
	c.counters.evictions.Add(1)
}

func (c *Cache) linkLocked(e *entry) {
	e.older, e.newer = c.newest, nil
	if c.newest != nil {
		c.newest.newer = e
	} else {
		c.oldest = e
	}
	c.newest = e
}

func (c *Cache) unlinkLocked(e *entry) {
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		c.oldest = e.newer
	}
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		c.newest = e.older
	}
	e.older, e.newer = nil, nil
}
