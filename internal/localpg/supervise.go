package localpg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

const (
	// A server that stayed up this long has recovered; what ended it is taken for a new cause.
	settledAfter = time.Minute
	// attemptsBeforeGivingUp bounds the restarts in a row of a server that does not settle: with the pauses below, about
	// half a minute, after which whoever runs the broker should see it fail.
	attemptsBeforeGivingUp = 6
	firstRestartPause      = 200 * time.Millisecond
	longestRestartPause    = 10 * time.Second
)

// supervise owns the server until it is gone for good: it starts it again when it ends by itself.
func (s *Server) supervise() {
	defer close(s.done)
	defer s.lock.Close()
	failures := 0
	for {
		started := time.Now()
		<-s.process.exited
		if s.isStopping() {
			return
		}
		if time.Since(started) > settledAfter {
			failures = 0
		}
		cause := errors.New(s.process.lastWords())
		s.log.Error("private postgresql ended by itself, starting it again", slog.Any("error", cause))
		for {
			if failures++; failures > attemptsBeforeGivingUp {
				s.err = fmt.Errorf("private PostgreSQL does not stay up: %w", cause)
				return
			}
			if !s.pause(min(firstRestartPause<<(failures-1), longestRestartPause)) {
				return
			}
			cause = s.restart()
			if s.isStopping() {
				return
			}
			if cause == nil {
				s.log.Info("private postgresql is up again", slog.Int("pid", s.process.pid()))
				break
			}
			s.log.Error("private postgresql could not be started again", slog.Any("error", cause))
		}
	}
}

func (s *Server) isStopping() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}

// pause waits and tells whether to go on.
func (s *Server) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-s.stopping:
		return false
	case <-timer.C:
		return true
	}
}

// restart starts a new server after the processes of the old one are gone. A Stop meanwhile ends it.
func (s *Server) restart() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-s.stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := s.cluster.endLeftovers(ctx, s.log); err != nil {
		return err
	}
	p, err := s.cluster.start(ctx, s.log)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.process = p
	s.mu.Unlock()
	// A Stop that came before the assignment signalled the old process; the new one is stopped here.
	if s.isStopping() {
		p.kill()
		<-p.exited
	}
	return nil
}
