package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"queenmq/internal/pg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const second = time.Second

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// An air carries what is sent to every session that listens, as the server does.
type air struct {
	mu       sync.Mutex
	sessions map[*airSession]struct{}
	sends    []time.Time
	usage    float64
	down     bool
	deaf     bool // sessions open and hear nothing
}

type airSession struct {
	air    *air
	heard  chan pg.Notification
	broken chan struct{}
}

// airTransport is one broker's end of the air.
type airTransport struct {
	*air
	process uint32
}

var errDown = errors.New("the server is away")

func (a airTransport) Listen(context.Context) (Session, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down {
		return nil, errDown
	}
	s := &airSession{a.air, make(chan pg.Notification, 10_000), make(chan struct{})}
	a.sessions[s] = struct{}{}
	return s, nil
}

func (s *airSession) Wait(ctx context.Context) (pg.Notification, error) {
	select {
	case <-ctx.Done():
		return pg.Notification{}, ctx.Err()
	case <-s.broken:
		return pg.Notification{}, errDown
	case n := <-s.heard:
		return n, nil
	}
}

func (s *airSession) Close() {
	s.air.mu.Lock()
	defer s.air.mu.Unlock()
	delete(s.air.sessions, s)
}

func (a airTransport) Send(_ context.Context, payloads []string) (float64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down {
		return 0, errDown
	}
	a.sends = append(a.sends, time.Now())
	for s := range a.sessions {
		for _, text := range payloads {
			if !a.deaf {
				s.heard <- pg.Notification{Sender: a.process, Payload: text}
			}
		}
	}
	return a.usage, nil
}

func (a airTransport) Close() {}

// breakAll ends the open sessions; with down none can be opened until it is called again.
func (a *air) breakAll(down bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.down = down
	for s := range a.sessions {
		close(s.broken)
		delete(a.sessions, s)
	}
}

// A member is one broker with what it was told.
type member struct {
	*Mesh
	log strings.Builder

	mu  sync.Mutex
	saw []string
}

func (m *member) note(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.saw = append(m.saw, fmt.Sprintf(format, args...))
}

// told returns what was seen since the last call.
func (m *member) told() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	saw := m.saw
	m.saw = nil
	return saw
}

func join(ctx context.Context, a *air, id string, running *sync.WaitGroup) *member {
	m := &member{}
	a.mu.Lock()
	process := uint32(len(a.sends) + 1 + int(id[0]))
	a.mu.Unlock()
	m.Mesh = New(Config{
		Instance: uuid.NewSHA1(uuid.Nil, []byte(id)), ServerID: id, Version: "test", Address: func() string { return id + ":1" },
		DefaultTenant: defaultTenant, Log: slog.New(slog.NewTextHandler(&m.log, nil)),
		Receiver: Receiver{
			Messages: func(tenant uuid.UUID, queue, partition string) {
				m.note("messages %d %s/%s", tenant[15], queue, partition)
			},
			Released: func(tenant uuid.UUID, queue, partition, group string) {
				m.note("released %d %s/%s by %s", tenant[15], queue, partition, group)
			},
			QueueChanged: func(tenant uuid.UUID, queue string) { m.note("queue %d %s", tenant[15], queue) },
			GroupChanged: func(tenant uuid.UUID, queue, group string) { m.note("group %d %s/%s", tenant[15], queue, group) },
			Flags:        func(context.Context) error { m.note("flags"); return nil },
			Missed:       func(context.Context) error { m.note("missed"); return nil },
		},
	}, airTransport{a, process})
	running.Go(func() { _ = m.Run(ctx) })
	return m
}

// inAir runs two brokers in a bubble in which time moves when everybody waits.
func inAir(t *testing.T, test func(t *testing.T, a *air, here, there *member)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := &air{sessions: map[*airSession]struct{}{}}
		ctx, stop := context.WithCancel(context.Background())
		var running sync.WaitGroup
		t.Cleanup(func() { stop(); running.Wait() })
		here, there := join(ctx, a, "a", &running), join(ctx, a, "b", &running)
		time.Sleep(200 * time.Millisecond) // of the bubble: the heartbeats have crossed
		synctest.Wait()
		require.Equal(t, []string{"missed"}, here.told(), "a session that begins has missed everything before")
		require.Equal(t, []string{"missed"}, there.told())
		test(t, a, here, there)
	})
}

func TestHintsReachTheOtherBrokerOnce(t *testing.T) {
	t.Parallel()
	inAir(t, func(t *testing.T, _ *air, here, there *member) {
		began := time.Now()
		for range 3 {
			here.Available(defaultTenant, "q", "p")
			here.Available(otherTenant, "q", "")
		}
		here.Released(otherTenant, "q", "p", "g")
		here.QueueChanged(defaultTenant, "q")
		here.QueueChanged(defaultTenant, "old")
		here.GroupChanged(otherTenant, "", "g")
		here.FlagsChanged()
		time.Sleep(flushInterval * 2)
		synctest.Wait()
		require.ElementsMatch(t, []string{
			"messages 1 q/p", "messages 2 q/", "released 2 q/p by g", "queue 1 q", "queue 1 old", "group 2 /g", "flags",
		}, there.told())
		require.Less(t, time.Since(began), 20*time.Millisecond)
		require.Empty(t, here.told(), "nobody follows his own hints")
	})
}

func TestFlushesAreFiveMillisecondsApart(t *testing.T) {
	t.Parallel()
	inAir(t, func(t *testing.T, a *air, here, there *member) {
		a.mu.Lock()
		before := len(a.sends)
		a.mu.Unlock()
		for i := range 100 {
			here.Available(defaultTenant, "q", fmt.Sprint(i%7))
			time.Sleep(time.Millisecond)
		}
		time.Sleep(flushInterval * 2)
		synctest.Wait()
		a.mu.Lock()
		sends := a.sends[before:]
		a.mu.Unlock()
		require.Greater(t, len(sends), 5)
		for i := range len(sends) - 1 {
			require.GreaterOrEqual(t, sends[i+1].Sub(sends[i]), flushInterval)
		}
		require.Subset(t, there.told(), []string{"messages 1 q/0", "messages 1 q/6"})
	})
}

func TestManyPartitionsStayBelowWhatReceiversAccept(t *testing.T) {
	t.Parallel()
	inAir(t, func(t *testing.T, _ *air, here, there *member) {
		for i := range 4000 {
			here.Available(defaultTenant, "q", fmt.Sprint(i%500))
			if i%4 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		here.Available(defaultTenant, "q", "last")
		time.Sleep(second)
		synctest.Wait()
		require.Zero(t, there.Stats().Dropped)
		require.Contains(t, there.told(), "messages 1 q/last")
	})
}

func TestChangesDoNotWaitForMessages(t *testing.T) {
	t.Parallel()
	inAir(t, func(t *testing.T, _ *air, here, there *member) {
		for here.Stats().Partial == 0 { // far too many: queues stand for them, and the next messages gather for a second
			for i := range 100_000 {
				here.Available(defaultTenant, "q", fmt.Sprint("partition", i))
			}
			time.Sleep(flushInterval * 2)
			synctest.Wait()
		}
		require.Contains(t, there.told(), "messages 1 q/")
		here.Available(defaultTenant, "other", "p")
		here.QueueChanged(defaultTenant, "other")
		time.Sleep(flushInterval * 2)
		synctest.Wait()
		require.Equal(t, []string{"queue 1 other"}, there.told())
		time.Sleep(2 * partialPause)
		synctest.Wait()
		require.True(t, slices.ContainsFunc(there.told(), func(what string) bool { return strings.HasPrefix(what, "messages 1 other/") }))
	})
}

func TestLostSessionIsReplacedAndEverythingCountsAsMissed(t *testing.T) {
	t.Parallel()
	inAir(t, func(t *testing.T, a *air, here, there *member) {
		a.breakAll(true)
		here.Available(defaultTenant, "q", "lost")
		here.QueueChanged(defaultTenant, "q")
		time.Sleep(30 * second)
		synctest.Wait()
		require.Empty(t, there.told())
		require.False(t, there.Stats().Listening)
		a.breakAll(false)
		time.Sleep(5 * second)
		synctest.Wait()
		require.Equal(t, []string{"missed"}, here.told())
		require.Contains(t, there.told(), "missed")
		here.Available(defaultTenant, "q", "p")
		time.Sleep(flushInterval * 2)
		synctest.Wait()
		require.Equal(t, []string{"messages 1 q/p"}, there.told())
		require.True(t, there.Stats().Proven)
		require.Equal(t, 1, strings.Count(there.log.String(), "not heard"), "a fault that lasts is logged once a minute")
	})
}

func TestSessionThatHearsNothingIsReported(t *testing.T) {
	t.Parallel()
	inAir(t, func(t *testing.T, a *air, here, there *member) {
		require.True(t, here.Stats().Proven)
		a.mu.Lock()
		a.deaf = true
		a.mu.Unlock()
		time.Sleep(2 * beatInterval)
		synctest.Wait()
		require.False(t, here.Stats().Proven)
		require.True(t, here.Stats().Listening)
		require.Contains(t, here.log.String(), "QUEEN_LISTEN_URL")
	})
}

func TestPeersDieOfSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &air{sessions: map[*airSession]struct{}{}}
		ctx, stop := context.WithCancel(context.Background())
		var running sync.WaitGroup
		t.Cleanup(func() { stop(); running.Wait() })
		here := join(ctx, a, "a", &running)
		leaving, leave := context.WithCancel(ctx)
		var other sync.WaitGroup
		join(leaving, a, "b", &other)
		time.Sleep(second)
		synctest.Wait()
		peers := here.Stats().Peers
		require.Len(t, peers, 1)
		require.Equal(t, "b", peers[0].ServerID)
		require.Equal(t, "b:1", peers[0].Address)
		require.True(t, peers[0].Alive)
		require.True(t, here.hasPeers())
		leave()
		other.Wait()
		time.Sleep(deadAfter + second)
		require.False(t, here.Stats().Peers[0].Alive)
		require.False(t, here.hasPeers(), "nobody is left to tell")
		here.OthersRegistered(true)
		require.True(t, here.hasPeers(), "somebody is there who is not heard")
		here.OthersRegistered(false)
		here.Available(defaultTenant, "q", "p")
		c, _ := here.outbox.take(true)
		require.Empty(t, c.queues)
		time.Sleep(forgottenAfter)
		require.Empty(t, here.Stats().Peers)
	})
}

func TestCrowdedServerGetsNoHintsAboutMessages(t *testing.T) {
	t.Parallel()
	inAir(t, func(t *testing.T, a *air, here, there *member) {
		a.mu.Lock()
		a.usage = 0.6
		a.mu.Unlock()
		here.FlagsChanged()
		time.Sleep(second)
		there.told()
		here.Available(defaultTenant, "q", "p")
		here.QueueChanged(defaultTenant, "q")
		time.Sleep(second)
		synctest.Wait()
		require.Equal(t, []string{"queue 1 q"}, there.told())
		require.EqualValues(t, 1, here.Stats().Suppressed)
		a.mu.Lock()
		a.usage = 0.1
		a.mu.Unlock()
		time.Sleep(2 * beatInterval)
		here.Available(defaultTenant, "q", "p")
		time.Sleep(flushInterval * 2)
		synctest.Wait()
		require.Equal(t, []string{"messages 1 q/p"}, there.told())
	})
}

func TestFloodOfOneSenderIsDropped(t *testing.T) {
	t.Parallel()
	inAir(t, func(t *testing.T, a *air, here, there *member) {
		forger := airTransport{a, 666}
		text := testSender()
		text.server, text.instance = "forger", uuid.New()
		for range 3 * allowedRate {
			_, _ = forger.Send(context.Background(), []string{text.bare(kindFlags)})
			if len(a.sends)%1000 == 0 {
				synctest.Wait()
			}
		}
		_, _ = forger.Send(context.Background(), []string{"nonsense"})
		here.Available(defaultTenant, "q", "p")
		time.Sleep(lookInterval * 3)
		synctest.Wait()
		require.Greater(t, there.Stats().Dropped, uint64(allowedRate))
		told := there.told()
		require.Contains(t, told, "messages 1 q/p", "others are heard all the same")
		require.LessOrEqual(t, len(told), 5, "and the switches are read a few times only")
	})
}
