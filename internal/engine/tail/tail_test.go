package tail

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"queenmq/internal/engine/browse"
	"queenmq/internal/pg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A shelf is a source with messages in it, newest first.
type shelf struct {
	mu    sync.Mutex
	all   []browse.Message
	looks int
	slow  time.Duration
	fault error
}

var lane = uuid.MustParse("0199b0c4-6a11-7f3e-8c55-41d0e9a7b2f6")

func (s *shelf) put(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		offset := int64(len(s.all))
		s.all = append([]browse.Message{{
			MessageEntry: pg.MessageEntry{PartitionID: lane, Offset: offset, CreatedAt: time.Now()},
			Content:      browse.Content{TransactionID: fmt.Sprint(offset)},
		}}, s.all...)
	}
}

// looked is how often somebody has looked.
func (s *shelf) looked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.looks
}

func (s *shelf) List(_ context.Context, _ uuid.UUID, filter pg.MessageFilter) (browse.Page, error) {
	time.Sleep(s.slow)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	var page browse.Page
	for _, m := range s.all {
		from, _ := time.Parse(time.RFC3339Nano, filter.From)
		if len(page.Messages) < filter.Limit && !m.CreatedAt.Before(from) {
			page.Messages = append(page.Messages, m)
		}
	}
	return page, s.fault
}

func names(messages []browse.Message) (ids []string) {
	for _, m := range messages {
		ids = append(ids, m.TransactionID)
	}
	return ids
}

func TestTail(t *testing.T) {
	t.Parallel()

	t.Run("WatchersSeeWhatComesAndNothingThatWasThere", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := &shelf{}
			s.put(3)
			h := New(Config{}, s)
			defer h.Stop()
			w, err := h.Watch(pg.DefaultTenant, "q")
			require.NoError(t, err)
			defer w.Close()
			synctest.Wait()
			s.put(2)
			got, missed, err := w.Next(t.Context())
			require.NoError(t, err)
			require.Zero(t, missed)
			require.Equal(t, []string{"3", "4"}, names(got), "oldest first")
			time.Sleep(time.Minute)
			s.put(1)
			got, _, err = w.Next(t.Context())
			require.NoError(t, err)
			require.Equal(t, []string{"5"}, names(got), "nothing twice")
		})
	})

	t.Run("ManyWatchersOfOneQueueCostAsMuchAsOne", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := &shelf{}
			h := New(Config{MaxWatchers: 50}, s)
			defer h.Stop()
			for range 50 {
				w, err := h.Watch(pg.DefaultTenant, "q")
				require.NoError(t, err)
				defer w.Close()
			}
			time.Sleep(10*time.Second + 500*time.Millisecond)
			require.Equal(t, 11, s.looked(), "one a second")
		})
	})

	t.Run("NobodyLooksForNobody", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := &shelf{}
			h := New(Config{}, s)
			w, err := h.Watch(pg.DefaultTenant, "q")
			require.NoError(t, err)
			synctest.Wait()
			w.Close()
			w.Close()
			before := s.looked()
			time.Sleep(time.Minute)
			require.Equal(t, before, s.looked())
			h.mu.Lock()
			defer h.mu.Unlock()
			require.Empty(t, h.feeds)
			require.Empty(t, h.watchers)
		})
	})

	t.Run("SlowLooksAreFartherApart", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := &shelf{slow: 200 * time.Millisecond}
			h := New(Config{}, s)
			defer h.Stop()
			w, err := h.Watch(pg.DefaultTenant, "q")
			require.NoError(t, err)
			defer w.Close()
			time.Sleep(time.Minute)
			require.LessOrEqual(t, s.looked(), 6, "a look of 0.2 s every 10 s")
		})
	})

	t.Run("TooManyAreRefused", func(t *testing.T) {
		t.Parallel()
		h := New(Config{MaxQueues: 2, MaxWatchers: 3}, &shelf{})
		defer h.Stop()
		other := uuid.New()
		first, err := h.Watch(pg.DefaultTenant, "a")
		require.NoError(t, err)
		_, err = h.Watch(uuid.New(), "b")
		require.NoError(t, err)
		_, err = h.Watch(pg.DefaultTenant, "c")
		require.ErrorIs(t, err, ErrTooMany, "queues")
		for range 2 {
			_, err = h.Watch(pg.DefaultTenant, "a")
			require.NoError(t, err)
		}
		_, err = h.Watch(pg.DefaultTenant, "a")
		require.ErrorIs(t, err, ErrTooMany, "watchers of a tenant")
		_, err = h.Watch(other, "a")
		require.ErrorIs(t, err, ErrTooMany, "the same name of another tenant is another queue")
		first.Close()
		_, err = h.Watch(pg.DefaultTenant, "a")
		require.NoError(t, err, "there is room again")
	})

	t.Run("OneTenantCannotTakeAllQueues", func(t *testing.T) {
		t.Parallel()
		h := New(Config{MaxQueues: 4}, &shelf{})
		defer h.Stop()
		greedy, modest, third := uuid.New(), uuid.New(), uuid.New()
		var taken []*Watcher
		for n := range 4 {
			w, err := h.Watch(greedy, fmt.Sprint(n))
			require.NoError(t, err)
			taken = append(taken, w)
		}
		_, err := h.Watch(greedy, "more")
		require.ErrorIs(t, err, ErrTooMany)
		also, err := h.Watch(greedy, "3")
		require.NoError(t, err)

		_, err = h.Watch(modest, "q")
		require.NoError(t, err, "another tenant has none")
		for _, w := range []*Watcher{taken[3], also} {
			_, _, err = w.Next(t.Context())
			require.ErrorIs(t, err, ErrCrowdedOut, "the newest one goes")
			w.Close()
		}
		_, err = h.Watch(greedy, "3")
		require.ErrorIs(t, err, ErrTooMany, "it has most already")
		_, err = h.Watch(third, "q")
		require.NoError(t, err)
		_, _, err = taken[2].Next(t.Context())
		require.ErrorIs(t, err, ErrCrowdedOut)
		_, err = h.Watch(modest, "p")
		require.ErrorIs(t, err, ErrTooMany, "nobody has two more than it")
		taken[0].Close()
		_, err = h.Watch(modest, "p")
		require.NoError(t, err)
		h.mu.Lock()
		require.Equal(t, map[uuid.UUID]int{greedy: 1, modest: 2, third: 1}, h.watchers)
		require.Len(t, h.feeds, 4)
		h.mu.Unlock()
	})

	t.Run("WhatAWatcherDoesNotTakeIsCounted", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := &shelf{}
			h := New(Config{}, s)
			defer h.Stop()
			w, err := h.Watch(pg.DefaultTenant, "q")
			require.NoError(t, err)
			defer w.Close()
			time.Sleep(time.Second / 2) // between two looks
			for range 5 {
				s.put(pageSize - 1)
				time.Sleep(time.Second)
			}
			got, missed, err := w.Next(t.Context())
			require.NoError(t, err)
			require.Len(t, got, backlog)
			require.Equal(t, 5*(pageSize-1)-backlog, missed)
			require.Equal(t, fmt.Sprint(5*(pageSize-1)-1), got[len(got)-1].TransactionID, "the newest are kept")
		})
	})

	t.Run("AFloodSaysThatThereWasMore", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := &shelf{}
			h := New(Config{}, s)
			defer h.Stop()
			w, err := h.Watch(pg.DefaultTenant, "q")
			require.NoError(t, err)
			defer w.Close()
			synctest.Wait()
			s.put(10 * pageSize)
			got, missed, err := w.Next(t.Context())
			require.NoError(t, err)
			require.Len(t, got, pageSize)
			require.Positive(t, missed)
		})
	})

	t.Run("FaultsPass", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := &shelf{fault: errors.New("away")}
			h := New(Config{}, s)
			defer h.Stop()
			w, err := h.Watch(pg.DefaultTenant, "q")
			require.NoError(t, err)
			defer w.Close()
			time.Sleep(3 * time.Second)
			s.mu.Lock()
			s.fault = nil
			s.mu.Unlock()
			time.Sleep(2 * time.Second)
			s.put(1)
			got, _, err := w.Next(t.Context())
			require.NoError(t, err)
			require.Equal(t, []string{"0"}, names(got))
		})
	})

	t.Run("StopEndsTheWaiting", func(t *testing.T) {
		t.Parallel()
		h := New(Config{}, &shelf{})
		w, err := h.Watch(pg.DefaultTenant, "q")
		require.NoError(t, err)
		ended := make(chan error)
		go func() {
			_, _, err := w.Next(context.Background())
			ended <- err
		}()
		h.Stop()
		require.ErrorIs(t, <-ended, ErrStopped)
		_, err = h.Watch(pg.DefaultTenant, "q")
		require.ErrorIs(t, err, ErrStopped)
		w.Close()
	})

	t.Run("TheCallersContextEndsTheWaiting", func(t *testing.T) {
		t.Parallel()
		h := New(Config{}, &shelf{})
		defer h.Stop()
		w, err := h.Watch(pg.DefaultTenant, "q")
		require.NoError(t, err)
		defer w.Close()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, _, err = w.Next(ctx)
		require.ErrorIs(t, err, context.Canceled)
	})
}
