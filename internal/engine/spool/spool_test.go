package spool

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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

var errAway = fmt.Errorf("push: %w", pg.ErrUnavailable)

func TestPushesAreKeptWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	f := start(t, t.TempDir(), db)
	require.Equal(t, push.StatusQueued, f.push(t, "q", "p", "0").Status)
	db.fail(errAway)
	kept := map[uuid.UUID]string{}
	for i := 1; i <= 3; i++ {
		v := f.push(t, "q", "p", fmt.Sprint(i))
		require.Equal(t, push.StatusBuffered, v.Status)
		require.NotEqual(t, uuid.Nil, v.MessageID)
		require.Equal(t, v.MessageID.String(), v.TransactionID)
		kept[v.MessageID] = fmt.Sprint(i)
	}
	stats := f.Stats()
	require.EqualValues(t, 3, stats.Pending)
	require.False(t, stats.Healthy)
	require.Equal(t, 1, stats.Files)
	_, err := f.Drain(context.Background(), db)
	require.ErrorIs(t, err, pg.ErrUnavailable)
	require.EqualValues(t, 3, f.Stats().Pending)

	db.fail(nil)
	require.Equal(t, 3, f.drain(t))
	require.Equal(t, []string{"0", "1", "2", "3"}, db.lane("q/p"))
	for id, payload := range kept {
		require.Equal(t, payload, db.ids[id], "the id that was answered is the id that is stored")
	}
	require.Equal(t, Stats{Healthy: true}, f.Stats())
	require.Equal(t, push.StatusQueued, f.push(t, "q", "p", "4").Status)
}

func TestFreshPushesNeverOvertakeKeptOnes(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	f := start(t, t.TempDir(), db)
	db.fail(errAway)
	f.push(t, "q", "p", "1")
	db.fail(nil)
	// The database is back, but nothing has drained yet: the partition is kept, and nothing knows yet that others could be stored.
	require.Equal(t, push.StatusBuffered, f.push(t, "q", "p", "2").Status)
	f.recovered()
	verdicts := f.pushAll(t,
		push.Item{Queue: "q", Partition: "p", Payload: []byte("3")},
		push.Item{Queue: "q", Partition: "other", Payload: []byte("1")})
	require.Equal(t, push.StatusBuffered, verdicts[0].Status)
	require.Equal(t, push.StatusQueued, verdicts[1].Status)
	require.Equal(t, 3, f.drain(t))
	require.Equal(t, []string{"1", "2", "3"}, db.lane("q/p"))
}

// A partition that is pushed to without end leaves the disk all the same: pushes wait a moment for what is being drained.
func TestBusyPartitionLeavesTheDisk(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	f := start(t, t.TempDir(), db)
	db.fail(errAway)
	f.push(t, "q", "p", "0")
	db.fail(nil)
	ctx, stop := context.WithCancel(context.Background())
	var draining sync.WaitGroup
	draining.Go(func() {
		for ctx.Err() == nil {
			_, _ = f.Drain(ctx, db)
			select {
			case <-f.Work():
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	n := 1
	require.Eventually(t, func() bool {
		v := f.push(t, "q", "p", fmt.Sprint(n))
		n++
		return v.Status == push.StatusQueued
	}, limit, time.Microsecond)
	stop()
	draining.Wait()
	stored := db.lane("q/p")
	require.Len(t, stored, n)
	for i, payload := range stored {
		require.Equal(t, fmt.Sprint(i), payload)
	}
}

func TestMaintenanceKeepsEverything(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	f := start(t, t.TempDir(), db)
	f.pause = true
	verdicts := f.pushAll(t,
		push.Item{Queue: "q", Partition: "p", TransactionID: "a", Payload: []byte("1")},
		push.Item{Queue: "q", Partition: "p", TransactionID: "a", Payload: []byte("2")},
		push.Item{Queue: "q", Partition: "r", TransactionID: "a", Payload: []byte("3")},
		push.Item{Queue: strings.Repeat("q", 256), Payload: []byte("4")},
		push.Item{Queue: "secret", Payload: []byte("5")},
	)
	require.Equal(t, push.StatusBuffered, verdicts[0].Status)
	require.Equal(t, push.StatusDuplicate, verdicts[1].Status, "the first of a repeated id leads")
	require.Equal(t, verdicts[0].MessageID, verdicts[1].MessageID)
	require.Equal(t, push.StatusBuffered, verdicts[2].Status, "another partition")
	require.ErrorIs(t, verdicts[3].Err, ErrInvalid)
	require.ErrorIs(t, verdicts[4].Err, push.ErrEncryptionRequired)
	require.EqualValues(t, 2, f.Stats().Pending)
	f.pause = false
	require.Equal(t, 2, f.drain(t))
	require.Equal(t, []string{"1"}, db.lane("q/p"))
	require.Empty(t, f.lanes)
}

// sealer marks what it has encrypted.
type sealer struct{}

func (sealer) Seal(payload []byte) []byte { return []byte(`"sealed ` + string(payload) + `"`) }

func TestPayloadsThatMayBeSecretAreEncryptedOnDisk(t *testing.T) {
	t.Parallel()
	db, dir := newDatabase(), t.TempDir()
	f := start(t, dir, db)
	f.pusher.sealer = sealer{}
	db.fail(errAway)
	for _, queue := range []string{"secret", "unknown", "open"} {
		require.Equal(t, push.StatusBuffered, f.push(t, queue, "", `7777`).Status)
	}
	f.stop()
	files, err := filepath.Glob(filepath.Join(dir, "*.buf"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	text, err := os.ReadFile(files[0])
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), `"payload":7777`), "that of the queue which is known to be open")
	require.Equal(t, 2, strings.Count(string(text), `"encrypted":true,"payload":"sealed 7777"`))
}

func TestOnlyPassingFailuresAreKept(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	f := start(t, t.TempDir(), db)
	for _, passing := range []error{pg.ErrUnavailable, pg.ErrTimeout, pg.ErrPoolTimeout, pg.ErrLockTimeout, pg.ErrSerialization} {
		db.fail(fmt.Errorf("push: %w", passing))
		require.Equal(t, push.StatusBuffered, f.push(t, "q", "p", "1").Status, passing)
		db.fail(nil)
		f.drain(t)
	}
	for _, final := range []error{pg.ErrBadData, &push.QueueFullError{}, push.ErrEncryptionRequired, push.ErrInternal, segment.ErrTooLarge} {
		db.fail(final)
		v := f.push(t, "q", "p", "1")
		require.Equal(t, push.StatusFailed, v.Status)
		require.ErrorIs(t, v.Err, final)
	}
	require.Zero(t, f.Stats().Pending)
}

func TestFullSpoolSaysSo(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	f := start(t, t.TempDir(), db, func(c *Config) { c.MaxBytes = 2000 })
	db.fail(errAway)
	kept := 0
	var v push.Verdict
	for v = f.push(t, "q", "p", "1"); v.Status == push.StatusBuffered; v = f.push(t, "q", "p", "1") {
		kept++
	}
	require.ErrorIs(t, v.Err, ErrFull)
	require.Greater(t, kept, 2)
	require.LessOrEqual(t, f.Stats().Bytes, int64(2000))
	require.EqualValues(t, kept, f.Stats().Pending)
	db.fail(nil)
	require.Equal(t, kept, f.drain(t))
	require.Zero(t, f.Stats().Bytes)
	require.Equal(t, push.StatusQueued, f.push(t, "q", "p", "1").Status)
}

func TestNextRunStoresWhatTheLastLeft(t *testing.T) {
	t.Parallel()
	db, dir := newDatabase(), t.TempDir()
	db.fail(errAway)
	for run := range 3 {
		f := start(t, dir, db, func(c *Config) { c.RecordsPerFile = 4 })
		f.Unhealthy() // as the drain finds out
		require.Eventually(t, func() bool { return f.Stats().Pending == int64(10*run) }, limit, time.Millisecond)
		for i := range 10 {
			require.Equal(t, push.StatusBuffered, f.push(t, "q", "p", fmt.Sprint(10*run+i)).Status)
		}
		f.stop()
		v := f.push(t, "q", "p", "late")
		require.ErrorIs(t, v.Err, ErrWrite)
	}
	db.fail(nil)
	f := start(t, dir, db)
	require.Equal(t, 30, f.drain(t))
	for i, payload := range db.lane("q/p") {
		require.Equal(t, fmt.Sprint(i), payload)
	}
	f.stop()
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 3, "the lock, the tie and the directory of failed files")
}

// Nobody knows which partitions wait until the files are counted: pushes join them.
func TestPushesWaitBehindFilesThatAreNotCountedYet(t *testing.T) {
	t.Parallel()
	db, dir := newDatabase(), t.TempDir()
	db.fail(errAway)
	f := start(t, dir, db)
	f.push(t, "q", "p", "1")
	f.stop()
	db.fail(nil)
	s, err := Open(Config{Dir: dir})
	require.NoError(t, err)
	require.True(t, s.Stats().Recovering)
	require.NoError(t, s.Tie(t.Context(), home, "home"))
	p := s.NewPusher(db, func() bool { return false }, nil)
	ctx, cancel := context.WithCancel(context.Background())
	writing := make(chan struct{})
	go func() { defer close(writing); s.write(ctx) }() // without recovery
	verdicts, err := p.Push(ctx, push.Request{Tenant: pg.DefaultTenant, Items: []push.Item{{Queue: "q", Partition: "p", Payload: []byte("2")}}})
	require.NoError(t, err)
	require.Equal(t, push.StatusBuffered, verdicts[0].Status)
	n, err := s.Drain(ctx, db)
	require.NoError(t, err)
	require.Zero(t, n, "what is older comes first")
	s.recover(ctx)
	n, err = s.Drain(ctx, db)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, []string{"1", "2"}, db.lane("q/p"))
	cancel()
	<-writing
	s.Close()
}

func TestDirectoryBelongsToOneBroker(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := start(t, dir, newDatabase())
	_, err := Open(Config{Dir: dir})
	require.ErrorIs(t, err, ErrInUse)
	f.stop()
	s, err := Open(Config{Dir: dir})
	require.NoError(t, err)
	s.Close()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = Open(Config{Dir: filepath.Join(file, "below")})
	require.Error(t, err)
}

func TestNamesSortInOrderWhateverTheClockDoes(t *testing.T) {
	t.Parallel()
	d := &directory{}
	now := time.Now()
	last := ""
	for _, moment := range []time.Time{now, now, now.Add(-time.Hour), now.Add(time.Second), now} {
		next, err := d.next(moment)
		require.NoError(t, err)
		require.Greater(t, next, last)
		_, ok := parseName(next)
		require.True(t, ok)
		last = next
	}
	d.passed([]string{"queen-9999999999998-00000007.3", "nonsense"})
	next, err := d.next(now)
	require.NoError(t, err)
	require.Equal(t, "queen-9999999999998-00000008", next)
	// A file with the last name there could be leaves no room behind it: what would not be found again is not written.
	d.passed([]string{"queen-9999999999998-99999999"})
	next, err = d.next(now)
	require.NoError(t, err)
	require.Equal(t, "queen-9999999999999-00000000", next)
	d.passed([]string{"queen-9999999999999-99999999"})
	_, err = d.next(now)
	require.ErrorIs(t, err, errNamesEnd)
}

// Many producers and a drain under a database that comes and goes: every partition is stored in the order of its producer.
func TestOrderStandsWhileTheDatabaseComesAndGoes(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	f := start(t, t.TempDir(), db, func(c *Config) { c.RecordsPerFile, c.Sync = 50, SyncNever })
	ctx, stop := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	loops.Go(func() {
		for ctx.Err() == nil {
			_, _ = f.Drain(ctx, db)
			select {
			case <-f.Work():
			case <-time.After(time.Millisecond):
			}
		}
	})
	loops.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			if i%2 == 0 {
				db.fail(errAway)
			} else {
				db.fail(nil)
			}
			select {
			case <-time.After(time.Duration(1+i%7) * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	const producers, each = 8, 300
	var producing sync.WaitGroup
	for p := range producers {
		producing.Go(func() {
			for i := range each {
				v := f.push(t, "q", fmt.Sprint(p), fmt.Sprint(i))
				if v.Status == push.StatusFailed {
					panic(v.Err)
				}
			}
		})
	}
	producing.Wait()
	stop()
	loops.Wait()
	db.fail(nil)
	f.drain(t)
	for p := range producers {
		stored := db.lane(fmt.Sprint("q/", p))
		require.Len(t, stored, each)
		for i, payload := range stored {
			require.Equal(t, fmt.Sprint(i), payload)
		}
	}
	require.Equal(t, Stats{Healthy: true}, f.Stats())
}
