package stack

import (
	"context"
	"runtime"
	"sync"
	"syscall"
	"time"
)

const (
	probeWork  = 8 * time.Millisecond  // of processor time
	probePause = 60 * time.Millisecond // so that probing costs little
)

// A Slowness measures how much longer than on a quiet machine work takes now, because others want the processors too. Limits of time that are
// multiplied by it mean the same on every machine. Its methods are safe for concurrent use.
type Slowness struct {
	stop  func()
	ended sync.WaitGroup

	mu        sync.Mutex
	wall, cpu time.Duration
}

// MeasureSlowness begins to measure. End must be called.
func MeasureSlowness() *Slowness {
	ctx, stop := context.WithCancel(context.Background())
	s := &Slowness{stop: stop}
	s.ended.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for ctx.Err() == nil {
			s.probe()
			select {
			case <-ctx.Done():
			case <-time.After(probePause):
			}
		}
	})
	return s
}

// probe works for a while and notes how long that took.
func (s *Slowness) probe() {
	began, first := time.Now(), threadTime()
	work := 0
	for threadTime()-first < probeWork {
		for i := range 10_000 {
			work ^= i
		}
	}
	runtime.KeepAlive(work)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wall += time.Since(began)
	s.cpu += threadTime() - first
}

// Now returns the time that work took so far, divided by the processor time that it got: 1 on a quiet machine, never less.
func (s *Slowness) Now() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cpu <= 0 {
		return 1
	}
	return max(1, float64(s.wall)/float64(s.cpu))
}

// End ends measuring and returns what Now does.
func (s *Slowness) End() float64 {
	s.stop()
	s.ended.Wait()
	return s.Now()
}

// threadTime is the processor time of this thread.
func threadTime() time.Duration {
	const ofThisThread = 1 // RUSAGE_THREAD
	var used syscall.Rusage
	_ = syscall.Getrusage(ofThisThread, &used) // every Linux has it
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
