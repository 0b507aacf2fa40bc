package spool

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/push"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

func named(queue, partition, transaction, payload string) push.Item {
	return push.Item{Queue: queue, Partition: partition, TransactionID: transaction, Payload: []byte(payload)}
}

// A client that repeats a push which waits on the disk is answered the id that waits, and nothing is kept or stored twice.
func TestRepeatedPushIsAnsweredTheIDThatWaits(t *testing.T) {
	t.Parallel()
	db, dir := newDatabase(), t.TempDir()
	db.fail(errAway)
	f := start(t, dir, db)
	first := f.pushAll(t, named("q", "p", "x", "1"))[0]
	require.Equal(t, push.StatusBuffered, first.Status)
	again := func(where string) {
		t.Helper()
		bytes := f.Stats().Bytes
		v := f.pushAll(t, named("q", "p", "x", "1"), named("q", "p", "x", "1"), named("q", "other", "x", "2"))
		require.Equal(t, first, v[0], where)
		require.Equal(t, push.StatusDuplicate, v[1].Status, where)
		require.Equal(t, first.MessageID, v[1].MessageID, where)
		require.NotEqual(t, first.MessageID, v[2].MessageID, where)
		if where != "while the database is away" { // the message of the other partition is kept once, too
			require.Equal(t, bytes, f.Stats().Bytes, where)
		}
		require.EqualValues(t, 2, f.Stats().Pending, where)
	}
	again("while the database is away")
	db.fail(nil)
	f.Unhealthy()
	again("when it is back and nobody knows")
	f.stop()
	f = start(t, dir, db)
	<-f.scanned
	f.Unhealthy() // pushes do not wait for what is being stored
	again("after a restart")
	require.Equal(t, 2, f.drain(t))
	require.Equal(t, []string{"1"}, db.lane("q/p"))
	require.Equal(t, "1", db.ids[first.MessageID])
	require.Empty(t, f.ids.young)
	require.Empty(t, f.ids.old)
}

// What de-duplication would do in the database it does on the disk.
func TestRepeatsFollowTheOptionsOfTheQueue(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	db.fail(errAway)
	f := start(t, t.TempDir(), db)
	both := func(queue string) (first, second push.Verdict) {
		return f.pushAll(t, named(queue, "p", "x", "1"))[0], f.pushAll(t, named(queue, "p", "x", "2"))[0]
	}
	first, second := both("free") // of de-duplication
	require.NotEqual(t, first.MessageID, second.MessageID)
	first, second = both("unknown")
	require.Equal(t, first.MessageID, second.MessageID)
	require.EqualValues(t, 4, f.Stats().Pending, "nothing is lost of a queue that may take repeats")
	db.fail(nil)
	require.Equal(t, 4, f.drain(t))
	require.Equal(t, []string{"1", "2"}, db.lane("free/p"))
	require.Equal(t, []string{"1"}, db.lane("unknown/p"))
}

// slowDisk holds every write of a record until it is told how the write ends.
type slowDisk struct {
	osFiles
	begun chan struct{}
	end   chan error
}

type slowFile struct {
	diskFile
	*slowDisk
}

func (d *slowDisk) create(path string) (diskFile, error) {
	f, err := d.osFiles.create(path)
	return &slowFile{f, d}, err
}

func (d *slowFile) WriteAt(p []byte, offset int64) (int, error) {
	if offset > 0 {
		d.begun <- struct{}{}
		if err := <-d.end; err != nil {
			return 0, err
		}
	}
	return d.diskFile.WriteAt(p, offset)
}

// A repeat that comes while the first one is being written is answered when that is known to be on the disk, or failed with it.
func TestRepeatedPushWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	for _, outcome := range []error{nil, errDisk} {
		synctest.Test(t, func(t *testing.T) { repeatDuringWrite(t, outcome) })
	}
}

func repeatDuringWrite(t *testing.T, outcome error) {
	db := newDatabase()
	db.fail(errAway)
	disk := &slowDisk{begun: make(chan struct{}), end: make(chan error)}
	s, err := Open(Config{Dir: t.TempDir(), files: disk})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Run(ctx) }()
	p := s.NewPusher(db, func() bool { return false }, nil)
	var pushing sync.WaitGroup
	verdicts := make([]push.Verdict, 3)
	try := func(i int) {
		pushing.Go(func() {
			v, _ := p.Push(ctx, push.Request{Tenant: pg.DefaultTenant, Items: []push.Item{named("q", "p", "x", "1")}})
			verdicts[i] = v[0]
		})
	}
	try(0)
	<-disk.begun
	try(1)
	try(2)
	synctest.Wait()
	require.Empty(t, verdicts[1].Status, "nothing is answered before it is on the disk")
	disk.end <- outcome
	pushing.Wait()
	for _, v := range verdicts {
		if outcome == nil {
			require.Equal(t, verdicts[0], v)
			require.Equal(t, push.StatusBuffered, v.Status)
		} else {
			require.ErrorIs(t, v.Err, ErrWrite)
		}
	}
	if outcome == nil {
		require.EqualValues(t, 1, s.Stats().Pending)
	} else {
		require.Zero(t, s.Stats().Pending)
		require.Empty(t, s.ids.young, "it may come again")
	}
	cancel()
	<-ended
}

// Memory is bounded however many ids wait: the oldest are forgotten, and their repeats are dropped when they come to be stored.
func TestIndexForgetsTheOldestIDs(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	db.fail(errAway)
	f := start(t, t.TempDir(), db, func(c *Config) { c.Sync = SyncNever })
	f.ids.generation = 8
	const n = 100
	var answered [n]push.Verdict
	for i := range n {
		answered[i] = f.pushAll(t, named("q", "p", fmt.Sprint(i), fmt.Sprint(i)))[0]
		require.LessOrEqual(t, len(f.ids.young)+len(f.ids.old), 16)
	}
	for i := range n {
		v := f.pushAll(t, named("q", "p", fmt.Sprint(n-1-i), fmt.Sprint(n-1-i)))[0]
		if i < 8 {
			require.Equal(t, answered[n-1-i].MessageID, v.MessageID)
		} else if i >= 16 {
			require.NotEqual(t, answered[n-1-i].MessageID, v.MessageID)
		}
	}
	db.fail(nil)
	f.drain(t)
	stored := db.lane("q/p")
	require.Len(t, stored, n)
	for i, payload := range stored {
		require.Equal(t, fmt.Sprint(i), payload)
	}
}

// Keys tell apart what names and ids spell together, and differ between two runs.
func TestKeysOfIDsAreUnambiguous(t *testing.T) {
	t.Parallel()
	x := newIDIndex()
	tenant := segment.NewID()
	seen := map[idKey]bool{}
	for _, parts := range [][3]string{{"ab", "c", "d"}, {"a", "bc", "d"}, {"a", "b", "cd"}, {"abc", "", "d"}, {"", "abcd", ""}} {
		key := x.key(laneKey{tenant, parts[0], parts[1]}, parts[2])
		require.False(t, seen[key])
		seen[key] = true
	}
	require.NotEqual(t, x.key(laneKey{tenant, "q", "p"}, "x"), newIDIndex().key(laneKey{tenant, "q", "p"}, "x"))
	require.NotEqual(t, x.key(laneKey{tenant, "q", "p"}, "x"), x.key(laneKey{pg.DefaultTenant, "q", "p"}, "x"))
}

// While the files of an earlier run are being counted nobody knows which ids wait: a push that may repeat one waits, others do not.
func TestPushesThatMayRepeatWaitForTheCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir, db := t.TempDir(), newDatabase()
		db.fail(errAway)
		f := start(t, dir, db)
		first := f.pushAll(t, named("q", "p", "x", "1"))[0]
		f.stop()
		s, err := Open(Config{Dir: dir})
		require.NoError(t, err)
		s.Unhealthy()
		ctx, cancel := context.WithCancel(t.Context())
		var loops sync.WaitGroup
		loops.Go(func() { s.write(ctx) }) // without recovery
		p := s.NewPusher(db, func() bool { return false }, nil)
		push1 := func(transaction string) push.Verdict {
			verdicts, err := p.Push(ctx, push.Request{Tenant: pg.DefaultTenant, Items: []push.Item{named("q", "p", transaction, "1")}})
			require.NoError(t, err)
			return verdicts[0]
		}
		require.Equal(t, push.StatusBuffered, push1("").Status)
		var second push.Verdict
		loops.Go(func() { second = push1("x") })
		synctest.Wait()
		require.Empty(t, second.Status)
		s.recover(ctx)
		synctest.Wait()
		require.Equal(t, first, second)
		cancel()
		loops.Wait()
		s.Close()
	})
}
