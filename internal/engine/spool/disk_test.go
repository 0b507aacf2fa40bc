package spool

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"queenmq/internal/engine/push"
	"queenmq/internal/pg"
)

// A script is what clients and the database do over the life of a directory, and what the clients were answered.
type script struct {
	disk     *memoryDisk
	db       *database
	answered map[uuid.UUID]int // by message id: the number that the message carries
	failures []error
	pushed   int
	powerCut bool
}

func newScript() *script {
	s := &script{disk: newMemoryDisk(), db: newDatabase(), answered: map[uuid.UUID]int{}}
	s.db.gone = s.disk.dead // a process that has ended reaches nothing
	return s
}

// A process is one run of a spool in a script. It may fail to start.
type process struct {
	*script
	spool  *Spool
	pusher *Pusher
	stop   func()
}

func (s *script) begin(perFile int) (*process, error) {
	spool, err := Open(Config{Dir: "/spool", RecordsPerFile: perFile, files: s.disk})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = spool.Run(ctx) }()
	p := &process{s, spool, spool.NewPusher(s.db, func() bool { return false }, nil), sync.OnceFunc(func() { cancel(); <-ended })}
	if err := spool.Tie(ctx, home, "home"); err != nil {
		p.stop()
		return nil, err
	}
	<-spool.scanned
	return p, nil
}

// push sends messages of one partition, each with the next number.
func (p *process) push(t require.TestingT, n int) {
	items := make([]push.Item, n)
	for i := range items {
		items[i] = push.Item{Queue: "q", Partition: "p", Payload: []byte(fmt.Sprint(p.pushed))}
		p.pushed++
	}
	verdicts, err := p.pusher.Push(context.Background(), push.Request{Tenant: pg.DefaultTenant, Items: items})
	require.NoError(t, err)
	if p.disk.dead() {
		return // nobody was answered
	}
	for i, v := range verdicts {
		switch v.Status {
		case push.StatusBuffered, push.StatusQueued:
			p.answered[v.MessageID] = p.pushed - n + i
		default:
			require.ErrorIs(t, v.Err, ErrWrite)
			p.failures = append(p.failures, v.Err)
		}
	}
}

// drain stores what it can and returns when there is nothing left, or the disk is in the way.
func (p *process) drain() {
	for range 2 * readAttempts {
		if _, err := p.spool.Drain(context.Background(), p.db); err == nil && p.spool.Stats().Pending == 0 {
			return
		}
	}
}

// finish is the last run of a script, on a disk that works: everything that was answered is stored, in order, once.
func (s *script) finish(t require.TestingT) {
	s.db.fail(nil)
	p, err := s.begin(10)
	require.NoError(t, err)
	p.drain()
	stats := p.spool.Stats()
	p.stop()
	require.Zero(t, stats.Pending)
	require.Zero(t, stats.Bytes)
	for _, path := range s.disk.holding(completeSuffix) {
		// A push that was being written when the power went, and was answered to nobody, may look damaged. Nothing else is there.
		require.Contains(t, path, failedDir)
		require.True(t, s.powerCut)
	}
	require.Empty(t, s.disk.holding(openSuffix))
	require.Empty(t, s.disk.holding(placeSuffix))
	last := -1
	for _, payload := range s.db.lane("q/p") {
		var i int
		_, err := fmt.Sscan(payload, &i)
		require.NoError(t, err)
		require.Greater(t, i, last)
		last = i
	}
	for id, i := range s.answered {
		require.Equal(t, fmt.Sprint(i), s.db.ids[id])
	}
}

// work is a morning in the life of a spool: files fill up, are stored in part and wholly, while more comes, over a restart.
func (s *script) work(t require.TestingT) {
	s.db.fail(errAway)
	p, err := s.begin(3)
	if err != nil {
		return
	}
	for n := range 4 {
		p.push(t, 1+n%3)
	}
	s.db.fail(nil)
	p.drain()
	p.push(t, 1)
	s.db.fail(errAway)
	p.spool.Unhealthy()
	p.push(t, 2)
	p.push(t, 3)
	p.stop()
	if p, err = s.begin(3); err != nil {
		return
	}
	p.push(t, 1)
	p.spool.Unhealthy()
	p.push(t, 2)
	s.db.fail(nil)
	p.drain()
	p.stop()
}

// callsOfWork is how often an undisturbed morning calls the disk.
func callsOfWork(t *testing.T) (calls int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		s.work(t)
		require.Empty(t, s.failures)
		calls = s.disk.calls
		s.finish(t)
	})
	require.Greater(t, calls, 100)
	return calls
}

// A broker that ends between any two things that it does to its disk loses nothing that it answered for, with or without a power cut.
func TestEndAtAnyCallLosesNothing(t *testing.T) {
	t.Parallel()
	for cut := range 6 { // the first leaves the power on
		power := cut > 0
		for at := range 1 + callsOfWork(t) {
			synctest.Test(t, func(t *testing.T) {
				s := newScript()
				defer func() {
					if t.Failed() {
						t.Logf("power cut: %v, ended at call %d: %s", power, at+1, strings.Join(s.disk.trace[max(0, at-8):at+1], ", "))
					}
				}()
				s.disk.dieAt = at + 1
				s.work(t)
				if s.powerCut = power; power {
					s.disk.powerCut(rand.New(rand.NewPCG(uint64(at), uint64(cut))))
				}
				s.disk.heal()
				s.finish(t)
			})
			if t.Failed() {
				t.FailNow()
			}
		}
	}
}

// A disk that fails once, at any call, costs at most the push that met it, and nothing after it.
func TestFailureOfAnyCallIsGotOver(t *testing.T) {
	t.Parallel()
	for at := range 1 + callsOfWork(t) {
		synctest.Test(t, func(t *testing.T) {
			s := newScript()
			defer func() {
				if t.Failed() {
					t.Logf("failed at call %d: %s", at+1, strings.Join(s.disk.trace[max(0, at-8):at+1], ", "))
				}
			}()
			s.disk.failAt = at + 1
			s.work(t)
			require.LessOrEqual(t, len(s.failures), 3, "one push")
			s.disk.heal()
			s.finish(t)
		})
		if t.Failed() {
			t.FailNow()
		}
	}
}

// A full disk takes whole pushes or nothing of them, and takes them again when there is room.
func TestFullDiskKeepsWholePushesOrNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		s.disk.failWith = syscall.ENOSPC
		s.db.fail(errAway)
		p, err := s.begin(100)
		require.NoError(t, err)
		p.push(t, 2)
		for room := 900; room < 2500; room += 37 {
			s.disk.mu.Lock()
			s.disk.room = room
			s.disk.mu.Unlock()
			p.push(t, 3)
			require.EqualValues(t, len(s.answered), p.spool.Stats().Pending)
		}
		require.NotEmpty(t, s.failures)
		s.disk.heal()
		before := len(s.answered)
		p.push(t, 2)
		require.Len(t, s.answered, before+2)
		p.stop()
		s.finish(t)
		require.Len(t, s.db.ids, len(s.answered), "nothing else is stored")
	})
}

// A broker that starts with a full disk stores what lies there, and keeps nothing before the directory is tied to its database.
func TestStartWithAFullDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		s.disk.failWith = syscall.ENOSPC
		s.db.fail(errAway)
		p, err := s.begin(100)
		require.NoError(t, err)
		p.push(t, 3)
		p.stop()
		delete(s.disk.files, filepath.Join("/spool", tieName)) // as an earlier version left it
		s.disk.room = 1
		p, err = s.begin(100)
		require.NoError(t, err)
		p.spool.Unhealthy()
		p.push(t, 1)
		require.Len(t, s.failures, 1)
		require.Empty(t, s.disk.holding(tieName))
		s.disk.heal()
		p.push(t, 1)
		require.Len(t, s.disk.holding(tieName), 1)
		p.stop()
		s.finish(t)
	})
}

// Whatever the disk does, over several runs, what was answered as kept is stored, in order.
func TestAnsweredRecordsSurviveFailingDisksAndPowerCuts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(*testing.T) {
			s := newScript()
			for range rapid.IntRange(1, 3).Draw(rt, "runs") {
				s.db.fail(errAway)
				p, err := s.begin(rapid.IntRange(1, 6).Draw(rt, "per file"))
				require.NoError(rt, err)
				p.spool.Unhealthy() // as the drain finds out
				for range rapid.IntRange(0, 12).Draw(rt, "pushes") {
					s.disk.mu.Lock()
					s.disk.failAt = s.disk.calls + rapid.SampledFrom([]int{0, 0, 1, 2, 3, 7}).Draw(rt, "fails in")
					s.disk.mu.Unlock()
					if rapid.IntRange(0, 5).Draw(rt, "drains") == 0 {
						s.db.fail(nil)
						p.drain()
						s.db.fail(errAway)
						p.spool.Unhealthy()
					}
					p.push(rt, rapid.IntRange(1, 3).Draw(rt, "items"))
				}
				s.disk.mu.Lock()
				s.disk.failAt = 0
				if rapid.Bool().Draw(rt, "killed") {
					s.disk.dieAt = s.disk.calls
				}
				s.disk.mu.Unlock()
				p.stop()
				if rapid.Bool().Draw(rt, "power cut") {
					s.powerCut = true
					s.disk.powerCut(rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "survives"), 7)))
				}
				s.disk.heal()
			}
			s.finish(rt)
		})
	})
}

// A stop in the middle of storing a file repeats nothing at the next start, also where repeats would be stored.
func TestStopWhileStoringRepeatsNothing(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	db.fail(errAway)
	dir := t.TempDir()
	f := start(t, dir, db, func(c *Config) { c.Sync = SyncNever })
	const n = 3*chunkRecords + 10
	items := make([]push.Item, n)
	for i := range items {
		items[i] = named("free", "p", "x", fmt.Sprint(i)) // without de-duplication, and each repeats the id
		require.Equal(t, push.StatusBuffered, f.pushAll(t, items[i])[0].Status)
	}
	db.fail(nil)
	for stops := 1; ; stops++ {
		ctx, cancel := context.WithCancel(t.Context())
		stored := 0
		_, err := f.Drain(ctx, storeFunc(func(ctx context.Context, messages []push.Accepted) ([]push.Verdict, error) {
			cancel() // while it is being stored
			require.NoError(t, ctx.Err())
			stored += len(messages)
			return db.Replay(ctx, messages)
		}))
		cancel()
		require.LessOrEqual(t, stored, chunkRecords)
		require.ErrorIs(t, err, context.Canceled)
		f.stop()
		f = start(t, dir, db)
		<-f.scanned
		require.EqualValues(t, max(n-stops*chunkRecords, 0), f.Stats().Pending)
		if f.Stats().Pending == 0 {
			break
		}
	}
	got := db.lane("free/p")
	require.Len(t, got, n)
	for i, payload := range got {
		require.Equal(t, fmt.Sprint(i), payload)
	}
}

type storeFunc func(ctx context.Context, messages []push.Accepted) ([]push.Verdict, error)

func (f storeFunc) Replay(ctx context.Context, messages []push.Accepted) ([]push.Verdict, error) {
	return f(ctx, messages)
}

// Producers that push faster than messages are stored wait for their turn: the line gets shorter while they go on.
func TestProducersDoNotOutrunTheDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		s.db.fail(errAway)
		p, err := s.begin(10_000)
		require.NoError(t, err)
		p.push(t, 2*holdPending)
		s.db.fail(nil)
		p.spool.recovered()
		ctx, stop := context.WithCancel(t.Context())
		var loops sync.WaitGroup
		loops.Go(func() {
			for ctx.Err() == nil {
				_, _ = p.spool.Drain(ctx, storeFunc(func(ctx context.Context, messages []push.Accepted) ([]push.Verdict, error) {
					<-time.After(20 * time.Millisecond)
					return s.db.Replay(ctx, messages)
				}))
				<-time.After(time.Millisecond)
			}
		})
		pushed := 0
		var mu sync.Mutex
		for range 20 {
			loops.Go(func() {
				for ctx.Err() == nil {
					_, err := p.pusher.Push(ctx, push.Request{Tenant: pg.DefaultTenant, Items: slices.Repeat([]push.Item{named("q", "p", "", "1")}, 50)})
					if err != nil {
						return
					}
					mu.Lock()
					pushed++
					mu.Unlock()
				}
			})
		}
		began := time.Now()
		for p.spool.Stats().Pending > holdPending {
			<-time.After(10 * time.Millisecond)
			require.Less(t, time.Since(began), time.Minute, "%d messages wait", p.spool.Stats().Pending)
		}
		stop()
		loops.Wait()
		t.Logf("%d pushes in %s", pushed, time.Since(began))
		require.Greater(t, pushed, 20, "they go on meanwhile")
		p.stop()
	})
}

// A file that cannot be read any more does not hold up what is behind it for ever, is reported and stays for the next start.
func TestUnreadableFileHoldsNothingUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		s.db.fail(errAway)
		p, err := s.begin(2)
		require.NoError(t, err)
		p.push(t, 2)
		p.push(t, 2)
		require.NoError(t, p.spool.rotateNow(t.Context()))
		files := s.disk.holding(completeSuffix)
		require.Len(t, files, 2)
		first := s.disk.files[files[0]]
		delete(s.disk.files, files[0])
		s.db.fail(nil)
		p.drain()
		require.Equal(t, []string{"2", "3"}, s.db.lane("q/p"))
		stats := p.spool.Stats()
		require.EqualValues(t, 2, stats.Pending, "they are not stored")
		require.EqualValues(t, 1, stats.Failed)
		began := time.Now()
		p.push(t, 1)
		require.Less(t, time.Since(began), holdTime, "there is nothing to wait for")
		p.drain()
		p.stop()
		s.disk.files[files[0]] = first
		p, err = s.begin(2)
		require.NoError(t, err)
		p.drain()
		require.Equal(t, []string{"2", "3", "4", "0", "1"}, s.db.lane("q/p"))
		p.stop()
	})
}

// What was set aside survives a power cut that comes after its file was deleted.
func TestWhatWasSetAsideSurvivesAPowerCut(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			s := newScript()
			s.db.fail(errAway)
			p, err := s.begin(10)
			require.NoError(t, err)
			p.push(t, 1)
			s.db.fail(nil)
			s.db.refuse["0"] = pg.ErrBadData
			p.drain()
			p.stop()
			s.disk.powerCut(rand.New(rand.NewPCG(seed, 7)))
			kept := 0
			for _, path := range s.disk.holding(completeSuffix) {
				data, err := s.disk.readFile(path)
				require.NoError(t, err)
				ids, faults, _ := read(data, true)
				require.Zero(t, faults)
				kept += len(ids)
			}
			require.Positive(t, kept)
		})
	}
}
