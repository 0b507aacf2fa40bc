package api

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/browse"
	"queenmq/internal/engine/pop"
	"queenmq/internal/engine/push"
	"queenmq/internal/engine/ready"
	"queenmq/internal/engine/replay"
	"queenmq/internal/engine/stream"
	"queenmq/internal/engine/transaction"
	"queenmq/internal/pg"
	"queenmq/internal/testdb"
)

// liveFlags are the maintenance switches of a database, looked at when somebody asks for them to be fresh.
type liveFlags struct {
	db           *pg.DB
	pushes, pops atomic.Bool
}

func (f *liveFlags) PushesPaused() bool { return f.pushes.Load() }

func (f *liveFlags) PopsPaused() bool { return f.pops.Load() }

func (f *liveFlags) Refresh(ctx context.Context) error {
	pushes, pops, err := f.db.SystemFlags(ctx)
	if err == nil {
		f.pushes.Store(pushes)
		f.pops.Store(pops)
	}
	return err
}

func (f *liveFlags) Set(ctx context.Context, flag pg.SystemFlag, enabled bool) bool {
	return f.db.SetSystemFlag(ctx, flag, enabled) == nil && f.Refresh(ctx) == nil
}

// A stack is everything below the API on a real database.
type stack struct {
	*httptest.Server
	db    *pg.DB
	tasks *replay.Runner
}

// broker starts a stack.
func broker(t *testing.T, database *testdb.Database) *httptest.Server {
	t.Helper()
	return newStack(t, database).Server
}

func newStack(t *testing.T, database *testdb.Database) *stack {
	t.Helper()
	db, err := pg.Open(t.Context(), pg.Options{ConnString: database.ConnString(), MaxConns: 12, AcquireTimeout: time.Second})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	gates := ready.New()
	slots := admission.New(admission.Config{PoolSize: 12, Reserve: 4})
	pusher := push.New(push.Config{}, db, slots, func(tenant uuid.UUID, queue, partition string, _ uuid.UUID, _ int) {
		gates.Wake(tenant, queue, partition)
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = pusher.Run(ctx) })
	flags := &liveFlags{db: db}
	pops := pop.New(pop.Config{Paused: flags.PopsPaused}, db, gates, slots)
	acks := ack.New(ack.Config{}, db, gates, slots)
	server := httptest.NewServer(New(Config{Version: "test"}, Deps{
		Pusher: pusher, Popper: pops, Acker: acks, Transactor: transaction.New(transaction.Config{}, db, acks, gates, slots), Store: db,
		Browser: browse.New(db, nil), Replayer: replay.New(nil, db, gates, slots, replay.Keys{}), Streamer: stream.New(stream.Config{}, db, acks, gates, slots), Flags: flags,
		Admission: slots.Stats, PushStats: pusher.Stats, PopStats: pops.Stats, AckStats: acks.Stats, LongPolls: gates.EachWaiting,
		QueueChanged: func(tenant uuid.UUID, queue string) {
			pusher.ForgetQueue(tenant, queue)
			pops.ForgetQueue(tenant, queue)
		},
		GroupChanged: pops.ForgetGroup,
		Wake:         gates.Wake,
		Brokers: func(ctx context.Context, filter pg.BrokerFilter) (json.RawMessage, error) {
			return db.Brokers(ctx, uuid.Nil, filter)
		},
		RefreshStats: func(ctx context.Context) (json.RawMessage, error) { return db.RefreshStats(ctx, time.Minute) },
	}))
	t.Cleanup(func() {
		pops.Stop()
		server.Close()
		cancel()
		running.Wait()
	})
	return &stack{server, db, replay.NewRunner("test", nil, db, gates, slots, flags.PushesPaused, replay.Keys{})}
}
