package spool

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/push"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

const limit = 30 * time.Second

// A database stands for the pusher and what is behind it: it stores what it is given, in order, or is away.
type database struct {
	mu     sync.Mutex
	err    error            // of every item while it is not nil
	refuse map[string]error // by payload
	stored map[string][]string
	ids    map[uuid.UUID]string
	seen   map[string]bool
	before func() // called by each Push before it looks at the items
	gone   func() bool
}

func newDatabase() *database {
	return &database{stored: map[string][]string{}, ids: map[uuid.UUID]string{}, seen: map[string]bool{}, refuse: map[string]error{}}
}

func (d *database) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

// store decides one message.
func (d *database) store(tenant uuid.UUID, it *push.Item, id uuid.UUID) push.Verdict {
	v := push.Verdict{MessageID: id, TransactionID: it.TransactionID}
	if v.TransactionID == "" {
		v.TransactionID = id.String()
	}
	key := fmt.Sprint(tenant, it.Queue, it.Partition, v.TransactionID)
	switch {
	case d.gone != nil && d.gone():
		v.Status, v.Err = push.StatusFailed, errAway
	case d.err != nil:
		v.Status, v.Err = push.StatusFailed, d.err
	case d.refuse[string(it.Payload)] != nil:
		v.Status, v.Err = push.StatusFailed, d.refuse[string(it.Payload)]
	case d.seen[key] && !strings.HasPrefix(it.Queue, "free"):
		v.Status = push.StatusDuplicate
	default:
		v.Status = push.StatusQueued
		d.seen[key] = true
		d.ids[id] = string(it.Payload)
		lane := it.Queue + "/" + it.Partition
		d.stored[lane] = append(d.stored[lane], string(it.Payload))
	}
	return v
}

func (d *database) Push(ctx context.Context, r push.Request) ([]push.Verdict, error) {
	if d.before != nil {
		d.before()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	verdicts := make([]push.Verdict, len(r.Items))
	for i := range r.Items {
		verdicts[i] = d.store(r.Tenant, &r.Items[i], segment.NewID())
	}
	return verdicts, ctx.Err()
}

func (d *database) Replay(_ context.Context, messages []push.Accepted) ([]push.Verdict, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	verdicts := make([]push.Verdict, len(messages))
	for i := range messages {
		verdicts[i] = d.store(messages[i].Tenant, &messages[i].Item, messages[i].ID)
	}
	return verdicts, nil
}

func (d *database) LastKnown(_ uuid.UUID, queue string) push.Options {
	return push.Options{
		Encrypted: strings.HasPrefix(queue, "secret"), Known: !strings.HasPrefix(queue, "unknown"), Repeats: strings.HasPrefix(queue, "free"),
	}
}

func (d *database) lane(name string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.stored[name]...)
}

// home is the identity of the database of the tests.
var home = uuid.MustParse("0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731")

// A logBuffer keeps what goroutines log, for a test that reads it while they run.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// fixture is one run of a spool in front of a database.
type fixture struct {
	*Spool
	pusher *Pusher
	db     *database
	pause  bool
	log    logBuffer
	stop   func()
}

func start(t *testing.T, dir string, db *database, change ...func(*Config)) *fixture {
	t.Helper()
	f := &fixture{db: db}
	cfg := Config{Dir: dir, Log: slog.New(slog.NewTextHandler(&f.log, nil))}
	for _, c := range change {
		c(&cfg)
	}
	s, err := Open(cfg)
	require.NoError(t, err)
	require.NoError(t, s.Tie(t.Context(), home, "the database of the tests"))
	f.Spool = s
	f.pusher = s.NewPusher(db, func() bool { return f.pause }, nil)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Run(ctx)
	}()
	f.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	t.Cleanup(f.stop)
	return f
}

// push sends one item and returns its verdict.
func (f *fixture) push(t *testing.T, queue, partition, payload string) push.Verdict {
	t.Helper()
	return f.pushAll(t, push.Item{Queue: queue, Partition: partition, Payload: []byte(payload)})[0]
}

func (f *fixture) pushAll(t *testing.T, items ...push.Item) []push.Verdict {
	t.Helper()
	verdicts, err := f.pusher.Push(context.Background(), push.Request{Tenant: pg.DefaultTenant, Items: items})
	require.NoError(t, err)
	require.Len(t, verdicts, len(items))
	return verdicts
}

func (f *fixture) drain(t *testing.T) int {
	t.Helper()
	<-f.scanned
	n, err := f.Drain(context.Background(), f.db)
	require.NoError(t, err)
	return n
}
