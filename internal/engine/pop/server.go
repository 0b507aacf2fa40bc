package pop

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/ready"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// ErrUndecodable says that an auto-ack pop was rolled back because a stored segment could not be read. Nothing was acknowledged.
var ErrUndecodable = errors.New("stored segment cannot be decoded")

// ErrKeyMissing says that the messages are encrypted and this broker has no key at all. Nothing stays leased.
var ErrKeyMissing = errors.New("the messages of the queue are encrypted and this broker has no key: set QUEEN_ENCRYPTION_KEY on every broker")

// An Opener decrypts payloads. It is asked from many requests at a time.
type Opener interface {
	// Open returns the payload inside an envelope. flagged says that the stored message is marked as encrypted; without it the
	// payload is only tried, and comes back as it is when it is no envelope. An error leaves the payload as it was stored.
	Open(payload []byte, flagged bool) ([]byte, error)
}

// answerGrace is how long after a long poll's deadline its last look may still take. Clients give up 5 s after the deadline.
const answerGrace = 3 * time.Second

// Config holds what a Server can be told. The zero value is the default.
type Config struct {
	// DefaultMode is the subscription mode of pops that name none: "all" (default) or "new". It seeds new groups only.
	DefaultMode string
	// Backoff is how long polls wait between looks.
	Backoff Backoff
	// Paused says that pops are switched off for maintenance: all of them are answered empty at once, parked ones as soon as
	// they are woken (ready.Gates.WakeAll). Nil means never.
	Paused func() bool
	// Delivered hears of every leased batch before it is sent, so that the ack of all of it can be recognised. It must not
	// block. Nil tells nobody.
	Delivered func(Delivery)
	// FusedPops is the most pops that claim together, and FusedClaims how many such claims of one group run at a time. Defaults
	// DefaultFusedPops and DefaultFusedClaims; with 1 pop every pop claims alone.
	FusedPops, FusedClaims int
	// DeadLetter files a message that must not be delivered, and tells whether it could. It may wait for the database. Nil files nothing:
	// such messages hold up their partition.
	DeadLetter func(context.Context, DeadLetter) bool
	// KeyMissing tells whether the error of an Opener means that this broker lacks a key that others have, so that the message is not
	// to be given up. It may ask the database. Nil gives all of them up.
	KeyMissing func(context.Context, error) bool
	// Opener decrypts. Nil has no key: encrypted messages are not delivered, see ErrKeyMissing.
	Opener Opener
	// Sniff shows every payload to the opener, not only those marked as encrypted.
	Sniff bool
	// MaxAnswerBytes is how much uncompressed content one answer holds; a claim that has more is shortened to what fits. The first
	// segment (one message, or at most 16 MiB) always fits. 0 is DefaultMaxAnswerBytes.
	MaxAnswerBytes int64
	// MaxInflightBytes is how much memory all answers together take from their claim until they are sent, counted as stored blobs, content and
	// rendered bytes. Pops beyond it wait, or answer less. An answer that needs more than three quarters of it alone is served alone. 0 is
	// DefaultMaxInflightBytes.
	MaxInflightBytes int64
	// Log takes what an operator must know, such as segments that cannot be read. Nil drops it.
	Log *slog.Logger
}

// A Server serves pops. Make one with [New].
type Server struct {
	cfg   Config
	db    Store
	gates *ready.Gates
	hot   *ready.HotList // nil when the database finds the partitions
	slots *admission.Controller
	log   *slog.Logger

	// settings are what pops need of queues that exist.
	settings expiring[queueKey, pg.QueueSettings]
	flights  flights
	fuser    fuser
	repaired map[int64]struct{} // belongs to Repair
	markers  expiring[groupKey, struct{}]
	probes   expiring[groupKey, *probe]
	reads    chan struct{}

	// seeds are groups whose cursors are created in the background; seedDue is told of them.
	seedMu sync.Mutex
	seeds  []groupKey
	seed   chan struct{}

	room *room

	stop    sync.Once
	stopped chan struct{}
	counts  counters
}

// counters are the cumulative figures behind Stats.
type counters struct {
	parked                                                atomic.Int64
	requests, messages, empty, targeted, wildcard, broken atomic.Int64
	sealed, shortened, filed                              atomic.Int64
	fills, fillMicros, fused, handed                      atomic.Int64
	trips                                                 pg.RoundTrips
}

// Stats are figures since the server was made, except Parked.
type Stats struct {
	// Parked is the number of long polls waiting now.
	Parked int64
	// Requests counts pops, Messages what they delivered, Empty those that were answered with nothing.
	Requests, Messages, Empty int64
	// Targeted counts claims of named partitions, Wildcard claims that searched a queue.
	Targeted, Wildcard int64
	// Fused counts pops that a targeted claim was made for together with others or alone; Targeted counts the claims.
	Fused int64
	// Handed counts pops that got their messages from the commit that stored them, without a claim.
	Handed int64
	// Undecodable counts stored segments that could not be read, once per attempt.
	Undecodable int64
	// Undecryptable counts messages that no key opens, once per attempt.
	Undecryptable int64
	// DeadLetters counts messages that were filed instead of being delivered: undecryptable ones and those delivered too often.
	DeadLetters int64
	// Shortened counts claims of which only a part fitted into one answer.
	Shortened int64
	// Fills counts pops that waited for a fuller batch, FillTime how long they did in all.
	Fills    int64
	FillTime time.Duration
	// InflightBytes is the memory that the answers under way take, RoomWaits how many pops waited for some.
	InflightBytes, RoomWaits int64
	// RoundTrips are the claims in the database, by duration.
	RoundTrips pg.RoundTripCounts
}

// New returns a server that claims through db, wakes from gates and takes slots of the Pop and Ack lanes.
func New(cfg Config, db Store, gates *ready.Gates, slots *admission.Controller) *Server {
	cfg.Backoff = cfg.Backoff.withDefaults()
	if cfg.DefaultMode == "" {
		cfg.DefaultMode = modeAll
	}
	if cfg.FusedPops <= 0 {
		cfg.FusedPops = DefaultFusedPops
	}
	if cfg.FusedClaims <= 0 {
		cfg.FusedClaims = DefaultFusedClaims
	}
	if cfg.MaxAnswerBytes <= 0 {
		cfg.MaxAnswerBytes = DefaultMaxAnswerBytes
	}
	if cfg.Paused == nil {
		cfg.Paused = func() bool { return false }
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Server{
		cfg:     cfg,
		db:      db,
		gates:   gates,
		hot:     gates.HotList(),
		slots:   slots,
		log:     log,
		reads:   make(chan struct{}, concurrentReads),
		seed:    make(chan struct{}, 1),
		room:    newRoom(cfg.MaxInflightBytes, cfg.MaxAnswerBytes),
		stopped: make(chan struct{}),
	}
}

// Stop ends every parked long poll with an empty answer and makes all later pops answer empty at once. Claims under way finish.
// Stopping twice is fine.
func (s *Server) Stop() {
	s.stop.Do(func() { close(s.stopped) })
}

// Stats returns the server's figures.
func (s *Server) Stats() Stats {
	return Stats{
		Parked:      s.counts.parked.Load(),
		Requests:    s.counts.requests.Load(),
		Messages:    s.counts.messages.Load(),
		Empty:       s.counts.empty.Load(),
		Targeted:    s.counts.targeted.Load(),
		Wildcard:    s.counts.wildcard.Load(),
		Undecodable: s.counts.broken.Load(),
		Fused:       s.counts.fused.Load(),
		Handed:      s.counts.handed.Load(),
		Fills:       s.counts.fills.Load(),
		FillTime:    time.Duration(s.counts.fillMicros.Load()) * time.Microsecond,

		Undecryptable: s.counts.sealed.Load(),
		Shortened:     s.counts.shortened.Load(),
		InflightBytes: s.room.inUse(),
		RoomWaits:     s.room.waits.Load(),
		RoundTrips:    s.counts.trips.Load(),
		DeadLetters:   s.counts.filed.Load(),
	}
}

// Pop claims messages, waiting for some when the request says so. Nil without an error means that there were none: the queue is
// empty for the group, the deadline passed, pops are paused, or the server is stopping.
//
// Errors are those of the database door; [ErrUndecodable] for an auto-ack pop that met a segment that cannot be read; and ctx's
// own when the caller left, after which nothing stays leased; and [SuspendedError] for a request that asked for it.
func (s *Server) Pop(ctx context.Context, req Request) (*Result, error) {
	s.counts.requests.Add(1)
	return s.goOn(ctx, s.newPoll(&req))
}

// goOn serves a pop, from its beginning or from where it was suspended.
func (s *Server) goOn(ctx context.Context, p *poll) (*Result, error) {
	result, err := s.serveWithin(ctx, p)
	if p.parked {
		return nil, err
	}
	if result == nil && err == nil {
		s.counts.empty.Add(1)
	}
	if result == nil || err != nil {
		return nil, err
	}
	s.counts.messages.Add(int64(result.Messages()))
	if ctx.Err() != nil {
		result.Abandon(ctx)
		return nil, ctx.Err()
	}
	result.announce(s.cfg.Delivered)
	return result, nil
}

// serveWithin serves a pop as soon as there is room for its answer.
func (s *Server) serveWithin(ctx context.Context, p *poll) (*Result, error) {
	l := &p.look
	defer func() { l.room.release() }() // a result has taken it over
	for {
		result, err := s.serve(ctx, p)
		full, noRoom := errors.AsType[*noRoomError](err)
		if !noRoom {
			return result, err
		}
		if err := s.waitForRoom(ctx, l, p.deadline, full.needs); err != nil || s.closed() {
			return nil, err
		}
	}
}

// waitForRoom waits, as long as the pop may, for the room that its claim turned out to need. Nothing is held meanwhile.
func (s *Server) waitForRoom(ctx context.Context, l *look, deadline time.Time, needs int64) error {
	if l.waits {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, deadline.Add(answerGrace), ErrNoRoom)
		defer cancel()
	}
	return s.makeRoom(ctx, l, needs)
}

// makeRoom takes room for the answer of a claim, so many bytes or, with 0, what answers of the queue usually need. A pop that does not
// wait for messages waits for room for a moment only.
func (s *Server) makeRoom(ctx context.Context, l *look, bytes int64) error {
	if bytes == 0 && s.room.enter(&l.room, queueKey{l.Tenant, l.Queue}) {
		return nil
	}
	if !l.waits {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, roomWait, ErrNoRoom)
		defer cancel()
	}
	return s.room.wait(ctx, &l.room, max(bytes, s.room.expects(queueKey{l.Tenant, l.Queue})))
}

// serve looks once, or again and again until something ends the wait.
func (s *Server) serve(ctx context.Context, p *poll) (*Result, error) {
	switch {
	case s.closed() && !p.parked: // one that has waited may have been handed something over
		return nil, nil
	case p.Kind == Queue && s.hot != nil:
		return s.serveReady(ctx, p)
	case p.deadline.IsZero():
		return s.attempt(ctx, &p.look)
	}
	return s.serveSearching(ctx, &p.Request, &p.look, p.deadline)
}

func (s *Server) newLook(req *Request) *look {
	return &look{kind: req.Kind, override: req.LeaseSeconds, waits: req.Wait && req.Timeout > 0, PopRequest: req.claim(newLease(), s.cfg.DefaultMode)}
}

// newLease returns an id for the lease of a pop.
func newLease() string { return segment.NewID().String() }

// serveSearching looks again and again until something ends the wait, letting the database find the partitions.
func (s *Server) serveSearching(ctx context.Context, req *Request, l *look, deadline time.Time) (*Result, error) {
	lookCtx, cancel := context.WithDeadlineCause(ctx, deadline.Add(answerGrace), errLookTooLate)
	defer cancel()
	waiter := s.subscribe(req)
	defer waiter.Release()
	next := schedule{backoff: s.cfg.Backoff}
	for wasWoken := true; ; {
		// Armed before the look: a wake from here on ends the wait below, also one that comes while we look.
		opened, hints := waiter.Arm()
		if next.isDue() {
			hints = nil
		}
		if hints == nil || req.concerns(hints) {
			l.hints, l.byTimer = hints, !wasWoken
			result, err := s.attempt(lookCtx, l)
			if errors.Is(err, errLookTooLate) {
				return nil, nil
			}
			if result != nil || err != nil {
				return result, err
			}
			next.foundNothing(hints == nil, wasWoken)
		} else {
			wasWoken = false // the wake was for others
		}
		left := time.Until(deadline)
		if left <= 0 {
			return nil, nil
		}
		l.room.release()
		switch s.park(ctx, opened, min(time.Until(next.due), left)) {
		case woken:
			wasWoken = true
		case elapsed:
			wasWoken = false
		case callerLeft:
			return nil, ctx.Err()
		case stopping:
			return nil, nil
		}
		if s.closed() {
			return nil, nil
		}
	}
}

// closed says that pops are answered empty without a look.
func (s *Server) closed() bool {
	select {
	case <-s.stopped:
		return true
	default:
		return s.cfg.Paused()
	}
}

func (s *Server) subscribe(req *Request) *ready.Waiter {
	if req.Kind == Discovery {
		return s.gates.SubscribeDiscovery(req.Tenant)
	}
	return s.gates.Subscribe(req.Tenant, req.Queue)
}

// wake is why a wait ended.
type wake int

const (
	woken wake = iota
	elapsed
	callerLeft
	stopping
)

// park waits without holding anything but this goroutine.
func (s *Server) park(ctx context.Context, opened <-chan struct{}, longest time.Duration) wake {
	s.counts.parked.Add(1)
	defer s.counts.parked.Add(-1)
	timer := time.NewTimer(longest)
	defer timer.Stop()
	select {
	case <-opened:
		return woken
	case <-timer.C:
		return elapsed
	case <-ctx.Done():
		return callerLeft
	case <-s.stopped:
		return stopping
	}
}
