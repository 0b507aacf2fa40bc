package spool

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"queenmq/internal/engine/push"
	"queenmq/internal/pg"
)

// A disk fails when told to, and knows what of a file has reached it for good.
type disk struct {
	mu     sync.Mutex
	failIn int // calls until one fails; 0 is never
	files  map[string]*diskedFile
}

type diskedFile struct {
	*os.File
	disk   *disk
	length int64 // written
	synced int64 // of it, on the disk for good
}

// strike says whether this call is the one that fails.
func (d *disk) strike() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failIn == 0 {
		return false
	}
	d.failIn--
	return d.failIn == 0
}

func (d *disk) create(path string) (diskFile, error) {
	if d.strike() {
		return nil, errDisk
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	one := &diskedFile{File: f, disk: d}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files[filepath.Base(path)] = one
	return one, nil
}

func (f *diskedFile) WriteAt(p []byte, offset int64) (int, error) {
	if f.disk.strike() {
		n, _ := f.File.WriteAt(p[:len(p)/2], offset)
		f.length = max(f.length, offset+int64(n))
		return n, errDisk
	}
	n, err := f.File.WriteAt(p, offset)
	f.length = max(f.length, offset+int64(n))
	return n, err
}

func (f *diskedFile) Sync() error {
	if f.disk.strike() {
		return errDisk
	}
	f.synced = f.length
	return nil
}

func (f *diskedFile) Truncate(length int64) error {
	f.length, f.synced = length, min(f.synced, length)
	return f.File.Truncate(length)
}

// powerCut leaves of every file what was forced to the disk and, of the rest, as much as the disk happened to have written.
func (d *disk) powerCut(t *rapid.T, dir string) {
	for name, f := range d.files {
		for _, path := range []string{filepath.Join(dir, name), filepath.Join(dir, name[:len(name)-len(openSuffix)]+completeSuffix)} {
			if _, err := os.Stat(path); err == nil {
				keep := f.synced
				if f.length > f.synced {
					keep += rapid.Int64Range(0, f.length-f.synced).Draw(t, "survives")
				}
				require.NoError(t, os.Truncate(path, keep))
			}
		}
	}
}

// Whatever the disk does, what was answered as kept is found by the next run, in order, and nothing else but what was being answered.
func TestAnsweredRecordsSurviveFailingDisksAndPowerCuts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "spool")
		require.NoError(t, err)
		defer os.RemoveAll(dir)
		db := newDatabase()
		db.fail(errAway)
		answered, tried := map[uuid.UUID]int{}, 0
		for range rapid.IntRange(1, 3).Draw(t, "runs") {
			d := &disk{files: map[string]*diskedFile{}}
			s, err := Open(Config{Dir: dir, RecordsPerFile: rapid.IntRange(1, 6).Draw(t, "per file")})
			require.NoError(t, err)
			s.create = d.create
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan struct{})
			go func() { defer close(ended); _ = s.Run(ctx) }()
			<-s.scanned
			s.Unhealthy() // as the drain finds out
			require.EqualValues(t, len(answered), s.Stats().Pending)
			p := s.NewPusher(db, func() bool { return false }, nil)
			for range rapid.IntRange(0, 12).Draw(t, "pushes") {
				d.mu.Lock()
				d.failIn = rapid.SampledFrom([]int{0, 0, 1, 2, 3}).Draw(t, "fails in")
				d.mu.Unlock()
				items := make([]push.Item, rapid.IntRange(1, 3).Draw(t, "items"))
				for i := range items {
					items[i] = push.Item{Queue: "q", Partition: "p", Payload: []byte(fmt.Sprint(tried))}
					tried++
				}
				verdicts, err := p.Push(context.Background(), push.Request{Tenant: pg.DefaultTenant, Items: items})
				require.NoError(t, err)
				for i, v := range verdicts {
					if v.Status == push.StatusBuffered {
						answered[v.MessageID] = tried - len(items) + i
					} else {
						require.ErrorIs(t, v.Err, ErrWrite)
					}
				}
				require.EqualValues(t, len(answered), s.Stats().Pending)
			}
			d.mu.Lock()
			d.failIn = 0
			d.mu.Unlock()
			cancel()
			<-ended
			d.powerCut(t, dir)
		}
		db.fail(nil)
		s, err := Open(Config{Dir: dir})
		require.NoError(t, err)
		s.recover(context.Background())
		if !s.counted {
			t.Fatal("not counted")
		}
		n, err := s.Drain(context.Background(), db)
		require.NoError(t, err)
		require.Equal(t, len(answered), n)
		require.Zero(t, s.Stats().Pending)
		require.Zero(t, s.Stats().Failed)
		last := -1
		for _, payload := range db.lane("q/p") {
			var i int
			_, err := fmt.Sscan(payload, &i)
			require.NoError(t, err)
			require.Greater(t, i, last)
			last = i
		}
		for id, i := range answered {
			require.Equal(t, fmt.Sprint(i), db.ids[id])
		}
		s.Close()
	})
}
