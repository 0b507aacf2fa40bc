package spool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/push"
)

// Sync is when records are forced to the disk.
type Sync string

// The policies.
const (
	// SyncAlways answers a push when its records would survive a power cut.
	SyncAlways Sync = "always"
	// SyncInterval answers when the operating system has the records, and forces them to the disk once in FlushInterval. What was
	// answered since survives the end of the broker, but not that of the machine.
	SyncInterval Sync = "interval"
	// SyncNever leaves it to the operating system when records reach the disk.
	SyncNever Sync = "never"
)

// Defaults of [Config].
const (
	DefaultFlushInterval  = 100 * time.Millisecond
	DefaultMaxBatch       = 100
	DefaultRecordsPerFile = 10_000
	// fileBytes completes a file before it has RecordsPerFile: a file is read as a whole.
	fileBytes = 64 << 20
	// batchBytes bounds what one commit writes, unless a single push is larger.
	batchBytes = 8 << 20
)

// Config tunes a spool. Zero fields are the defaults.
type Config struct {
	// Dir is the directory. Required.
	Dir string
	// Sync is when records are forced to the disk. Default SyncAlways.
	Sync Sync
	// FlushInterval is how often SyncInterval does. Default 100 ms.
	FlushInterval time.Duration
	// MaxBatch is how many records one commit carries, unless a single push has more. Default 100.
	MaxBatch int
	// RecordsPerFile is how many records complete a file. Default 10,000.
	RecordsPerFile int
	// MaxBytes bounds the files that wait, together. 0 is unbounded.
	MaxBytes int64
	// Log takes what is wrong with files. Nil drops it.
	Log *slog.Logger

	files fileSystem // that of the machine, but in tests
}

func (c Config) withDefaults() Config {
	if c.Sync == "" {
		c.Sync = SyncAlways
	}
	if c.FlushInterval <= 0 {
		c.FlushInterval = DefaultFlushInterval
	}
	if c.MaxBatch <= 0 {
		c.MaxBatch = DefaultMaxBatch
	}
	if c.RecordsPerFile <= 0 {
		c.RecordsPerFile = DefaultRecordsPerFile
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.files == nil {
		c.files = osFiles{}
	}
	return c
}

var (
	// ErrFull says that the spool has reached Config.MaxBytes. Nothing was kept.
	ErrFull = errors.New("the database is away or in maintenance, and the file buffer of this broker is full (FILE_BUFFER_MAX_BYTES)")
	// ErrWrite says that records could not be written. Nothing was kept.
	ErrWrite = errors.New("the database is away or in maintenance, and the file buffer of this broker cannot be written")
	// ErrInvalid says that a message would be refused when it comes to be stored.
	ErrInvalid = errors.New("the message cannot be buffered")
)

// A laneKey names a partition.
type laneKey struct {
	tenant           uuid.UUID
	queue, partition string
}

// A lane is a partition with records that are not stored yet, or that are being written.
type lane struct {
	records int
	drained chan struct{} // closed when there are none left
}

// A Spool is a directory of records that wait. Make one with [Open] and keep it going with Run. Its methods are safe for concurrent use,
// but for [Spool.Drain].
type Spool struct {
	cfg      Config
	dir      *directory
	requests chan *batch
	rotate   chan chan struct{}
	scanned  chan struct{} // closed when the files of an earlier run are counted
	stopped  chan struct{} // closed when nothing is written any more
	work     chan struct{} // has a value when there may be something to drain
	// inherited tells that there were files of an earlier run.
	inherited bool

	// quiet tells that nothing waits and the database answers: pushes need not ask further.
	quiet   atomic.Bool
	healthy atomic.Bool

	mu       sync.Mutex
	trouble  chan struct{} // closed while the database does not answer
	lanes    map[laneKey]*lane
	ids      *idIndex
	pending  int64 // records, those being written included
	bytes    int64 // of the files, and of what is being written
	failed   int64 // records set aside, of this and earlier runs
	complete []file
	stuck    []file   // complete but for their new name
	lost     int      // files that could not be read: their records stay in the account until the next start
	earlier  []string // files of an earlier run that are not counted yet, with their suffix
	counted  bool     // scanned is closed

	tie tie

	carry carry

	stored     int64         // messages that left the disk
	paced      int64         // of them, for how many pushes have waited so far
	storedMore chan struct{} // closed when stored grows

	progress progress // of the caller that drains
}

// A file is complete and waits to be stored.
type file struct {
	base  string
	bytes int64
	place int // everything before it is stored
}

// Open takes the directory and returns a spool that does nothing until it is run. It repairs nothing yet, so that the start does not wait.
// It fails with [ErrInUse], or when the directory cannot be written.
func Open(cfg Config) (*Spool, error) {
	cfg = cfg.withDefaults()
	dir, err := openDirectory(cfg.files, cfg.Dir)
	if err != nil {
		return nil, err
	}
	s := &Spool{
		cfg: cfg, dir: dir, requests: make(chan *batch, 256), rotate: make(chan chan struct{}), scanned: make(chan struct{}),
		stopped: make(chan struct{}), work: make(chan struct{}, 1), trouble: make(chan struct{}), lanes: make(map[laneKey]*lane), ids: newIDIndex(), storedMore: make(chan struct{}),
	}
	s.healthy.Store(true)
	for _, suffix := range []string{openSuffix, completeSuffix} {
		bases, strange, err := dir.list("", suffix)
		if err != nil {
			dir.close()
			return nil, err
		}
		if len(strange) > 0 {
			cfg.Log.Warn("files of the directory of the file buffer have names that are not its own: they are left alone",
				slog.String("directory", cfg.Dir), slog.Any("files", strange))
		}
		dir.passed(bases)
		for _, base := range bases {
			s.earlier = append(s.earlier, base+suffix)
		}
	}
	slices.Sort(s.earlier)
	s.inherited = len(s.earlier) > 0
	if len(s.earlier) == 0 {
		s.counted = true
		close(s.scanned)
	}
	s.settleQuietLocked() // nobody else has it yet
	return s, nil
}

// Close gives the directory up. It is for a spool that was never run.
func (s *Spool) Close() { s.dir.close() }

// Run writes what is appended, and first counts what an earlier run left, until ctx ends. Then the open file is completed, the directory is
// free for another broker, and Run returns nil. Appends fail from then on.
func (s *Spool) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	loops.Go(func() { s.recover(ctx) })
	s.write(ctx)
	loops.Wait()
	close(s.stopped)
	stats := s.Stats()
	if stats.Pending > 0 {
		s.cfg.Log.WarnContext(ctx, "messages wait in the file buffer until the next start", slog.Int64("messages", stats.Pending),
			slog.String("directory", s.cfg.Dir))
	}
	s.dir.close()
	return nil
}

// Stats describe a spool at one moment.
type Stats struct {
	// Pending messages are answered and not stored. Failed ones were set aside.
	Pending, Failed int64
	// Files wait to be stored, the open one included, with their size.
	Files int
	Bytes int64
	// Healthy tells that the database answered when it was asked last.
	Healthy bool
	// Recovering tells that the files of an earlier run are still being counted.
	Recovering bool
}

// Stats returns the account.
func (s *Spool) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := Stats{Pending: s.pending, Failed: s.failed, Files: len(s.complete) + len(s.earlier), Bytes: s.bytes, Healthy: s.healthy.Load(), Recovering: !s.counted}
	waiting := int64(0)
	for _, f := range s.complete {
		waiting += f.bytes
	}
	if s.counted && s.bytes > waiting {
		stats.Files++
	}
	return stats
}

// Work has a value after something was written.
func (s *Spool) Work() <-chan struct{} { return s.work }

func (s *Spool) kick() {
	select {
	case s.work <- struct{}{}:
	default: // whoever looks finds this too
	}
}

// Unhealthy notes that the database does not answer: pushes are buffered at once until it does.
func (s *Spool) Unhealthy() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.healthy.CompareAndSwap(true, false) {
		close(s.trouble)
	}
	s.settleQuietLocked()
}

// recovered notes that the database answers.
func (s *Spool) recovered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.healthy.CompareAndSwap(false, true) {
		s.trouble = make(chan struct{})
	}
	s.settleQuietLocked()
}

// settleQuietLocked keeps quiet true to the account. The caller holds the mutex.
func (s *Spool) settleQuietLocked() {
	s.quiet.Store(s.counted && s.pending == 0 && s.healthy.Load())
}

// enterLocked counts n records of a partition.
func (s *Spool) enterLocked(key laneKey, n int) {
	l := s.lanes[key]
	if l == nil {
		l = &lane{drained: make(chan struct{})}
		s.lanes[key] = l
	}
	l.records += n
	s.pending += int64(n)
}

// leaveLocked counts n records of a partition less.
func (s *Spool) leaveLocked(key laneKey, n int) {
	l := s.lanes[key]
	if l == nil {
		return
	}
	l.records -= n
	s.pending -= int64(n)
	if l.records <= 0 {
		delete(s.lanes, key)
		close(l.drained)
	}
}

func keyOf(m *push.Accepted) laneKey { return laneKey{m.Tenant, m.Queue, m.Partition} }

// hasOwnID says that the client gave the message its transaction id, so that it may come again.
func hasOwnID(m *push.Accepted) bool { return m.TransactionID != m.ID.String() }

// A batch is what one call appends: all or nothing.
type batch struct {
	records int
	bytes   []byte
	done    chan error
}

// append writes messages in order and returns when they are on disk, as far as the policy says. The caller has entered them into the
// account; when append fails it must take them out.
func (s *Spool) append(messages []push.Accepted) error {
	b := &batch{records: len(messages), done: make(chan error, 1)}
	size := 0
	for i := range messages {
		size += len(messages[i].Payload) + len(messages[i].TransactionID) + 256
	}
	b.bytes = make([]byte, 0, size)
	for i := range messages {
		b.bytes = appendRecord(b.bytes, &messages[i])
	}
	n := int64(len(b.bytes))
	s.mu.Lock()
	if s.cfg.MaxBytes > 0 && s.bytes+n > s.cfg.MaxBytes {
		s.mu.Unlock()
		return ErrFull
	}
	s.bytes += n
	s.mu.Unlock()
	err := s.submit(b)
	if err != nil {
		s.mu.Lock()
		s.bytes -= n
		s.mu.Unlock()
	}
	return err
}

func (s *Spool) submit(b *batch) error {
	select {
	case s.requests <- b:
	case <-s.stopped:
		return fmt.Errorf("%w: %w", ErrWrite, push.ErrStopped)
	}
	select {
	case err := <-b.done:
		return err
	case <-s.stopped:
		select {
		case err := <-b.done: // decided before the end
			return err
		default:
			return fmt.Errorf("%w: %w", ErrWrite, push.ErrStopped)
		}
	}
}
