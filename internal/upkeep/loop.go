package upkeep

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// minPause lies between two passes of a loop whose pass takes longer than its interval.
	minPause = 250 * time.Millisecond
	// mostBackoff is the longest pause of a loop that fails, unless its interval is longer.
	mostBackoff = time.Minute
	// complaintInterval is how often a loop that goes on failing says so.
	complaintInterval = time.Minute
)

// A Loop calls a pass over and over, whatever becomes of it. It is part of every loop of this package.
type Loop struct {
	name     string
	interval time.Duration
	first    time.Duration
	pass     func(context.Context) error
	log      *slog.Logger

	mu     sync.Mutex
	status LoopStatus
	since  time.Time // when Run began
	pause  time.Duration
}

// LoopStatus is how a loop fares.
type LoopStatus struct {
	// Name names the loop in logs, metrics and readiness.
	Name string
	// Passes and Failures count since the start.
	Passes, Failures int64
	// LastSuccess is the zero time before the first one.
	LastSuccess time.Time
	// Running tells that Run is under way.
	Running bool
}

func newLoop(name string, interval, first time.Duration, log *slog.Logger, pass func(context.Context) error) *Loop {
	return &Loop{name: name, interval: interval, first: first, pass: pass, log: log, status: LoopStatus{Name: name}}
}

// Run makes the first pass after a moment and then one per interval, counted from the start of a pass, until ctx ends, and
// returns nil. A pass that fails or panics is repeated with growing pauses.
func (l *Loop) Run(ctx context.Context) error {
	l.mu.Lock()
	l.since, l.status.Running = time.Now(), true
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.status.Running = false
		l.mu.Unlock()
	}()
	timer := time.NewTimer(jitter(l.first))
	defer timer.Stop()
	failures := 0
	var complained time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		began := time.Now()
		err := l.once(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			failures++
			if complained.IsZero() || time.Since(complained) >= complaintInterval {
				complained = time.Now()
				l.log.WarnContext(ctx, "a background pass failed and will be repeated",
					slog.String("loop", l.name), slog.Int("failures_in_a_row", failures), slog.Any("error", err))
			}
		} else {
			failures, complained = 0, time.Time{}
		}
		timer.Reset(max(l.next(failures)-time.Since(began), minPause))
	}
}

// once makes one pass and remembers how it went.
func (l *Loop) once(ctx context.Context) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.status.Passes++
		switch {
		case err == nil:
			l.status.LastSuccess = time.Now()
		case ctx.Err() == nil:
			l.status.Failures++
		}
	}()
	return l.pass(ctx)
}

// next is the time from the start of one pass to the start of the next.
func (l *Loop) next(failures int) time.Duration {
	pause := max(l.interval, l.stretched())
	if failures > 0 {
		pause = min(pause<<min(failures-1, 6), max(pause, mostBackoff))
	}
	return jitter(pause)
}

// stretch makes the pauses at least d from now on.
func (l *Loop) stretch(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pause = d
}

func (l *Loop) stretched() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pause
}

// jitter takes up to a tenth off, so that brokers that start together do not work together.
func jitter(d time.Duration) time.Duration {
	return d - rand.N(d/10+1) //nolint:gosec // spreading, not secrecy
}

// Status returns how the loop fares.
func (l *Loop) Status() LoopStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status
}

// Check returns an error when the loop should have succeeded for some time and has not: a condition for whoever watches the
// broker. The text holds no detail of the failure, which is in the log.
func (l *Loop) Check(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.status.Running {
		return fmt.Errorf("%s is not running", l.name)
	}
	last := l.since
	if l.status.LastSuccess.After(last) {
		last = l.status.LastSuccess
	}
	if silent := time.Since(last); silent > l.first+3*max(l.interval, l.pause)+mostBackoff {
		return fmt.Errorf("%s has not succeeded for %s", l.name, silent.Round(time.Second))
	}
	return nil
}
