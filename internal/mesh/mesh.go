package mesh

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/pg"
)

// Channel is where the brokers of a database meet.
const Channel = "queen_mesh"

// A Session hears what is sent on the channel. Its methods are for one goroutine.
type Session interface {
	// Wait returns the next notification. After an error the session is of no use.
	Wait(ctx context.Context) (pg.Notification, error)
	Close()
}

// A Transport is the channel. Listen and Send are called by one goroutine each.
type Transport interface {
	Listen(ctx context.Context) (Session, error)
	// Send sends payloads and returns how full the queue of notifications is, from 0 to 1.
	Send(ctx context.Context, payloads []string) (usage float64, err error)
	// Close ends the sending session; the next Send opens another. It is called where Send is.
	Close()
}

// A Receiver is what hints of other brokers do. All fields are required. The first four must not block; calls come one at a time, except
// that Flags and Missed may run beside the others.
type Receiver struct {
	// Messages tells that a partition has messages, or with partition "" that some partition of the queue has.
	Messages func(tenant uuid.UUID, queue, partition string)
	// Released tells that the lease of a group on a partition ended before its time, so that its messages can be claimed again.
	Released func(tenant uuid.UUID, queue, partition, group string)
	// QueueChanged tells that a queue was configured or deleted.
	QueueChanged func(tenant uuid.UUID, queue string)
	// GroupChanged tells that a group was moved or deleted; "" is every queue, and every group.
	GroupChanged func(tenant uuid.UUID, queue, group string)
	// Flags reads the maintenance switches from the database: what a hint says about them is not believed.
	Flags func(ctx context.Context) error
	// Missed does what is to be done when anything may have changed unheard.
	Missed func(ctx context.Context) error
}

// Config is how a broker takes part.
type Config struct {
	// Instance is of this run of the broker, ServerID the name the operator knows. Version is its build.
	Instance          uuid.UUID
	ServerID, Version string
	// Address returns the host:port that others would reach it at, "" while it is not known.
	Address func() string
	// DefaultTenant is left out of payloads.
	DefaultTenant uuid.UUID
	Receiver      Receiver
	// Log takes what is wrong with the channel. Required.
	Log *slog.Logger
}

// Times of the mesh.
const (
	// flushInterval is the shortest time between two commits that notify.
	flushInterval = 5 * time.Millisecond
	// partialPause is how long messages gather after queues had to stand for partitions: receivers walk the queues then.
	partialPause = time.Second
	// beatInterval is how often a broker says that it lives.
	beatInterval = 5 * time.Second
	// lookInterval is the shortest time between two looks at the database on behalf of hints.
	lookInterval = 100 * time.Millisecond
	// Back-off of both sessions: the longest pause and the discovery of a dead session stay below five seconds together.
	minBackoff = 50 * time.Millisecond
	maxBackoff = 1500 * time.Millisecond
	// complaintInterval is how often a fault that lasts is logged.
	complaintInterval = time.Minute
	// crowded is how full the server's queue of notifications may be until hints about messages stop.
	crowded = 0.5
)

// A Mesh sends this broker's hints and follows those of others. Make it with [New] and run it with Run; the methods that tell may be
// called at any time and never block.
type Mesh struct {
	cfg       Config
	transport Transport
	sender    sender
	ownHead   string // what this broker's payloads begin with
	outbox    *outbox
	peers     peers
	begun     time.Time

	beatNow chan struct{} // a heartbeat is wanted at once
	due     due

	others    atomic.Bool  // brokers are registered that were perhaps not heard yet
	listening atomic.Bool  // the session that hears is open
	unheard   atomic.Int64 // when the oldest heartbeat was sent that did not come back, in ns since begun; 0 is none
	heardSelf atomic.Bool  // a heartbeat of ours came back over the session that is open
	suspect   atomic.Bool  // the session that hears broke since the last flush: the one that sends may be no better
	count     counters
}

// counters are cumulative.
type counters struct {
	sent, received, failed, dropped, malformed, suppressed, partial, sessions atomic.Uint64
	usage                                                                     atomic.Uint64 // in millionths
}

// New returns a mesh that does nothing until it is run.
func New(cfg Config, transport Transport) *Mesh {
	cfg.ServerID = signature(cfg.ServerID)
	s := sender{server: cfg.ServerID, instance: cfg.Instance, defaultTenant: cfg.DefaultTenant}
	head := s.bare("")
	return &Mesh{
		cfg: cfg, transport: transport, sender: s, ownHead: strings.TrimSuffix(head, `"}`), outbox: newOutbox(),
		peers: peers{heard: make(map[uuid.UUID]heard)}, begun: time.Now(), beatNow: make(chan struct{}, 1), due: newDue(),
	}
}

// Available tells the others that a partition has messages, or with partition "" that some partition of the queue has. Nothing is kept
// while there is nobody to tell.
func (m *Mesh) Available(tenant uuid.UUID, queue, partition string) {
	if m.hasPeers() {
		m.outbox.available(queueKey{tenant, queue}, partition)
	}
}

// Released tells the others that the lease of a group on a partition ended before its time. Nothing is kept while there is nobody to tell.
func (m *Mesh) Released(tenant uuid.UUID, queue, partition, group string) {
	if m.hasPeers() {
		m.outbox.leaseEnded(queueKey{tenant, queue}, partition, group)
	}
}

// QueueChanged tells the others that a queue was configured or deleted.
func (m *Mesh) QueueChanged(tenant uuid.UUID, queue string) {
	m.outbox.changed(change{kind: kindQueue, key: queueKey{tenant, queue}})
}

// GroupChanged tells the others that a group was moved or deleted; "" is every queue, and every group.
func (m *Mesh) GroupChanged(tenant uuid.UUID, queue, group string) {
	m.outbox.changed(change{kind: kindGroup, key: queueKey{tenant, queue}, group: group})
}

// FlagsChanged tells the others to read the maintenance switches.
func (m *Mesh) FlagsChanged() { m.outbox.flagsTurned() }

// OthersRegistered notes whether other brokers are registered in the database, be they heard or not.
func (m *Mesh) OthersRegistered(any bool) { m.others.Store(any) }

// hasPeers tells whether hints are worth sending. A broker that has just begun to listen has not heard anybody yet.
func (m *Mesh) hasPeers() bool {
	return m.others.Load() || time.Since(m.begun) < deadAfter || m.peers.anyAlive(time.Now())
}

// Run takes part until ctx ends, and returns nil.
func (m *Mesh) Run(ctx context.Context) error {
	defer m.transport.Close()
	var loops sync.WaitGroup
	loops.Go(func() { m.listen(ctx) })
	loops.Go(func() { m.send(ctx) })
	loops.Go(func() { m.look(ctx) })
	loops.Wait()
	return nil
}

// backoff spreads brokers that lost the same server.
type backoff struct{ next time.Duration }

func (b *backoff) reset() { b.next = 0 }

// pause waits, longer each time, and returns false when ctx ended.
func (b *backoff) pause(ctx context.Context) bool { return sleep(ctx, b.delay()) }

func (b *backoff) delay() time.Duration {
	b.next = min(max(2*b.next, minBackoff), maxBackoff)
	return b.next/2 + rand.N(b.next/2) //nolint:gosec // spreading, not secrecy
}

// sleep returns true after d, or false when ctx ends earlier.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// complaint limits how often a lasting fault is logged. For one goroutine.
type complaint struct{ last time.Time }

func (c *complaint) due() bool {
	if !c.last.IsZero() && time.Since(c.last) < complaintInterval {
		return false
	}
	c.last = time.Now()
	return true
}
