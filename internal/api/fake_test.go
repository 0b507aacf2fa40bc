package api

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/pop"
	"queenmq/internal/engine/push"
	"queenmq/internal/engine/push/dedup"
	"queenmq/internal/engine/transaction"
	"queenmq/internal/http1"
	"queenmq/internal/pg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A world is a set of fakes behind one server. Zero functions answer the simplest success.
type world struct {
	emptyBroker
	push      func(ctx context.Context, r push.Request) ([]push.Verdict, error)
	pop       func(ctx context.Context, r pop.Request) (popResult, error)
	ack       func(group string, items []ack.Item) []ack.Result
	extend    func(leaseID string, seconds int) (pg.Renewal, error)
	transact  func(operations []transaction.Operation, leases []string) (transaction.Outcome, error)
	configure func(queue, namespace, task string, options json.RawMessage) (json.RawMessage, error)
	remove    func(queue string) (json.RawMessage, error)
	ping      func() error
	checks    []Check
	starting  bool
	stopping  bool
	maxBody   int64
	stall     time.Duration
	inflight  int64
	bodyWait  time.Duration
	log       *slog.Logger

	mu      sync.Mutex
	changed []string
}

var (
	messageID   = uuid.MustParse("0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731")
	partitionID = uuid.MustParse("0199b0c4-6a11-7f3e-8c55-41d0e9a7b2f6")
)

func (f *world) Push(ctx context.Context, r push.Request) ([]push.Verdict, error) {
	if f.push != nil {
		return f.push(ctx, r)
	}
	verdicts := make([]push.Verdict, len(r.Items))
	for i, item := range r.Items {
		verdicts[i] = push.Verdict{Status: push.StatusQueued, MessageID: messageID, TransactionID: item.TransactionID, PartitionID: partitionID}
		if item.TransactionID == "" {
			verdicts[i].TransactionID = messageID.String()
		}
	}
	return verdicts, nil
}

func (f *world) Pop(context.Context, pop.Request) (*pop.Result, error) { return nil, nil }

func (f *world) Ack(_ context.Context, _ uuid.UUID, group string, items []ack.Item) []ack.Result {
	if f.ack != nil {
		return f.ack(group, items)
	}
	results := make([]ack.Result, len(items))
	for i, item := range items {
		results[i] = ack.Result{TransactionID: item.TransactionID, Success: true}
	}
	return results
}

func (f *world) Extend(_ context.Context, _ uuid.UUID, leaseID string, seconds int) (pg.Renewal, error) {
	if f.extend != nil {
		return f.extend(leaseID, seconds)
	}
	return pg.Renewal{}, nil
}

func (f *world) Run(_ context.Context, _ uuid.UUID, _ string, operations []transaction.Operation, leases []string) (transaction.Outcome, error) {
	if f.transact != nil {
		return f.transact(operations, leases)
	}
	return transaction.Outcome{ID: messageID, Results: make([]transaction.Result, len(operations))}, nil
}

func (f *world) Ping(context.Context) error {
	if f.ping != nil {
		return f.ping()
	}
	return nil
}

func (f *world) Stats() pg.PoolStats {
	return pg.PoolStats{Max: 160, Idle: 7, InUse: 2, Total: 9, Waiting: 1}
}

func (f *world) Configure(_ context.Context, _ uuid.UUID, queue, namespace, task string, options pg.QueueOptions) (json.RawMessage, error) {
	if f.configure != nil {
		return f.configure(queue, namespace, task, options)
	}
	return json.RawMessage(`{"configured":true}`), nil
}

func (f *world) DeleteQueue(_ context.Context, _ uuid.UUID, queue string) (json.RawMessage, error) {
	if f.remove != nil {
		return f.remove(queue)
	}
	return json.RawMessage(`{"deleted":true,"existed":true}`), nil
}

func (f *world) server() *Server {
	s := New(Config{Version: "1.0.0", MaxBodyBytes: f.maxBody, StallTimeout: f.stall, MaxInflightBodyBytes: f.inflight, BodyWait: f.bodyWait, Log: f.log}, f.deps())
	if f.pop != nil {
		s.claim = f.pop
	}
	return s
}

// deps are the fakes in their places.
func (f *world) deps() Deps {
	return Deps{
		Pusher: f, Popper: f, Acker: f, Transactor: f, Store: f, Ready: f.checks,
		Browser: f, Replayer: f, Streamer: fakeStreamer{&f.emptyBroker}, Flags: f,
		RefreshStats: func(context.Context) (json.RawMessage, error) { return f.raw() },
		Starting:     func() bool { return f.starting },
		Stopping:     func() bool { return f.stopping },
		Admission:    func() admission.Stats { return admission.Stats{Budget: 12} },
		DedupStats:   func() dedup.Stats { return dedup.Stats{Vouched: 7, Suspected: 2, Evictions: 1, Bytes: 4096} },
		QueueChanged: func(_ uuid.UUID, queue string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.changed = append(f.changed, queue)
		},
	}
}

// A batch is a fake result of a pop.
type batch struct {
	body      string
	released  int
	done      int
	abandoned int
	// sending gets what gives the answer up; nil drops it.
	sending chan func()
}

func (b *batch) Sending(giveUp func()) (sent func()) {
	if b.sending != nil {
		b.sending <- giveUp
	}
	return func() {}
}

func (b *batch) AppendJSON(dst []byte) []byte { return append(dst, b.body...) }
func (b *batch) Messages() int                { return 1 }
func (b *batch) Release()                     { b.released++ }
func (b *batch) Done()                        { b.done++ }
func (b *batch) Abandon(context.Context)      { b.abandoned++ }

// serve starts the server on a loopback port for the time of the test.
func serve(t *testing.T, f *world) *httptest.Server {
	t.Helper()
	return serveHandler(t, f.server())
}

// A managementStore is the part of a Store that the fakes of a test replace.
type managementStore interface {
	PartitionOwner(ctx context.Context, partition uuid.UUID) (tenant uuid.UUID, queue, name string, found bool, err error)
	GroupStore
	StatisticsStore
	DeadLetterStore
	LeaseStore
	TraceStore
	StreamStore
	PurgeQueue(ctx context.Context, tenant uuid.UUID, queue, partition string, options pg.PurgeOptions) (json.RawMessage, error)
}

// A fakeStore is a world with another management part.
type fakeStore struct {
	managementStore
	*world
}

// serveHandler serves as a broker does: busy routes by the fast path, the others by net/http.
func serveHandler(t *testing.T, handler http.Handler) *httptest.Server {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	fast := http1.New(http1.Config{Handler: handler, Takes: Busy, ReadHeaderTimeout: time.Minute, IdleTimeout: time.Minute})
	server := httptest.NewUnstartedServer(handler)
	require.NoError(t, server.Listener.Close())
	server.Listener = elsewhere{fast.Others(), listener.Addr()}
	served := make(chan error, 1)
	go func() { served <- fast.Serve(listener) }()
	server.Start()
	server.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	t.Cleanup(func() {
		server.Client().CloseIdleConnections()
		fast.Close()
		require.NoError(t, fast.Shutdown(context.Background()))
		require.ErrorIs(t, <-served, http.ErrServerClosed)
		server.Close()
	})
	return server
}

// elsewhere is a listener whose connections come to another address.
type elsewhere struct {
	net.Listener
	address net.Addr
}

func (e elsewhere) Addr() net.Addr { return e.address }

// bothWays runs a test of busy routes with the fast path and without.
func bothWays(t *testing.T, test func(t *testing.T, serve func(*testing.T, http.Handler) *httptest.Server)) {
	t.Helper()
	t.Run("FastPath", func(t *testing.T) {
		t.Parallel()
		test(t, serveHandler)
	})
	t.Run("NetHTTP", func(t *testing.T) {
		t.Parallel()
		test(t, func(t *testing.T, handler http.Handler) *httptest.Server {
			server := httptest.NewServer(handler)
			t.Cleanup(server.Close)
			return server
		})
	})
}

// An exchange is one answer, read to its end.
type exchange struct {
	status int
	header http.Header
	body   string
}

func call(t *testing.T, server *httptest.Server, method, path, body string) exchange {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(body))
	require.NoError(t, err)
	answer, err := server.Client().Do(request)
	require.NoError(t, err)
	defer func() { require.NoError(t, answer.Body.Close()) }()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return exchange{answer.StatusCode, answer.Header, string(text)}
}
