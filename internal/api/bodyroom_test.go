package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/push"
)

func TestBodiesTakeRoomAndGiveItBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		room := newBodyRoom(8<<20, 5*time.Second) // 2 MiB for small bodies, 6 MiB for the others
		var first, second, small, alone bodyHold
		require.NoError(t, room.announce(t.Context(), &first, 4<<20))

		began := time.Now()
		err := room.announce(t.Context(), &second, 3<<20)
		require.Equal(t, codeOverloaded, classify(err, "").code)
		require.Equal(t, 5*time.Second, time.Since(began))
		require.Zero(t, second.bytes)

		require.NoError(t, room.announce(t.Context(), &small, 64<<10), "small bodies do not wait for large ones")
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, room.announce(gone, &second, 3<<20), context.Canceled)

		done := make(chan error, 1)
		go func() { done <- room.announce(t.Context(), &second, 3<<20) }()
		time.Sleep(time.Second)
		first.release()
		first.release()
		require.NoError(t, <-done)
		second.release()

		require.NoError(t, room.announce(t.Context(), &alone, 1<<30), "a body larger than everything is served alone")
		require.Error(t, room.announce(t.Context(), &first, 1<<20))
		alone.release()
		require.NoError(t, room.announce(t.Context(), &first, 6<<20), "nothing was lost")
		first.release()
		small.release()
	})
}

// A line whose deadline in the past ends its read.
type line struct{ ended chan struct{} }

func (l line) SetReadDeadline(at time.Time) error {
	if !at.IsZero() && at.Before(time.Now()) {
		close(l.ended)
	}
	return nil
}

// A body that comes too slowly keeps its room as long as nobody waits for it, and not longer. One that comes as fast as may be asked keeps it.
func TestSlowBodiesGiveWayToThoseThatWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		room := newBodyRoom(8<<20, 5*time.Second)
		over := make(chan struct{})
		var reading sync.WaitGroup
		body := func(size int64, rate float64) line {
			hold, line := new(bodyHold), line{make(chan struct{})}
			require.NoError(t, room.announce(t.Context(), hold, size))
			began := time.Now()
			reading.Go(func() {
				defer hold.release()
				for {
					hold.next(int(rate*time.Since(began).Seconds()), time.Now().Add(time.Minute), line)
					select {
					case <-line.ended:
						hold.end(false)
						return
					case <-over:
						hold.end(true)
						return
					case <-time.After(100 * time.Millisecond):
					}
				}
			})
			return line
		}
		slowLine := body(3<<20, 10)
		fastLine := body(3<<20, 60<<10) // 51.2 KiB a second are 3 MiB in a minute
		time.Sleep(time.Minute)
		requireOpen := func(l line, what string) {
			select {
			case <-l.ended:
				t.Fatal(what)
			default:
			}
		}
		requireOpen(slowLine, "nobody waits")
		var waiting bodyHold
		began := time.Now()
		require.NoError(t, room.announce(t.Context(), &waiting, 1<<20))
		require.Less(t, time.Since(began), time.Second)
		<-slowLine.ended
		requireOpen(fastLine, "it comes fast enough")

		// Who has only just begun is not slow yet.
		lateLine := body(2<<20, 0)
		var patient bodyHold
		began = time.Now()
		require.NoError(t, room.announce(t.Context(), &patient, 1<<20))
		require.GreaterOrEqual(t, time.Since(began), bodyGrace)
		<-lateLine.ended
		close(over)
		reading.Wait()
		requireOpen(fastLine, "it has come whole")
		for _, hold := range []*bodyHold{&waiting, &patient} {
			hold.end(true)
			hold.release()
		}
		require.Empty(t, room.large.arrive)
	})
}

func TestBodyOfUnknownLengthIsCountedAsItGrows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		room := newBodyRoom(8<<20, time.Second)
		var hold, other bodyHold
		require.NoError(t, room.announce(t.Context(), &hold, -1))
		for read, want := range map[int64]int64{1: 0, 64 << 10: 0} {
			require.NoError(t, room.grow(t.Context(), &hold, read))
			require.Equal(t, want, hold.bytes)
		}
		for _, step := range []struct{ read, holds int64 }{{70 << 10, 1 << 20}, {1 << 20, 1 << 20}, {1<<20 + 1, 2 << 20}, {5 << 20, 5 << 20}} {
			require.NoError(t, room.grow(t.Context(), &hold, step.read))
			require.Equal(t, step.holds, hold.bytes)
		}
		require.NoError(t, room.announce(t.Context(), &other, 1<<20))
		require.Equal(t, codeOverloaded, classify(room.grow(t.Context(), &hold, 6<<20), "").code)
		other.release()
		require.NoError(t, room.grow(t.Context(), &hold, 100<<20), "all there is is enough")
		require.EqualValues(t, 6<<20, hold.bytes)
		hold.release()
	})
}

// Many large pushes at once: no more of them are in memory than there is room for, and those that waited too long are told to repeat.
func TestPushesBeyondTheRoomAreRefused(t *testing.T) {
	t.Parallel()
	for _, chunked := range []bool{false, true} {
		t.Run(fmt.Sprintf("chunked %t", chunked), func(t *testing.T) {
			t.Parallel()
			entered, leave := make(chan struct{}, 10), make(chan struct{})
			server := serve(t, &world{inflight: 4 << 20, bodyWait: 50 * time.Millisecond, push: func(_ context.Context, r push.Request) ([]push.Verdict, error) {
				entered <- struct{}{}
				<-leave
				return make([]push.Verdict, len(r.Items)), nil
			}})
			send := func(bytes int) (int, string, string) {
				text := fmt.Sprintf(`{"items":[{"queue":"q","payload":"%s"}]}`, strings.Repeat("x", bytes))
				var body io.Reader = strings.NewReader(text)
				if chunked {
					body = io.MultiReader(body) // hides the length
				}
				request, err := http.NewRequestWithContext(t.Context(), "POST", server.URL+"/api/v1/push", body)
				if err != nil {
					return 0, "", err.Error()
				}
				response, err := server.Client().Do(request)
				if err != nil {
					return 0, "", err.Error()
				}
				defer func() { _ = response.Body.Close() }()
				answer, _ := io.ReadAll(response.Body)
				return response.StatusCode, response.Header.Get("Retry-After"), string(answer)
			}
			var working sync.WaitGroup
			const body = 1<<20 - 100
			for range 3 { // 3 MiB are there for large bodies
				working.Go(func() {
					if status, _, answer := send(body); status != http.StatusCreated {
						t.Error(status, answer)
					}
				})
				<-entered
			}
			status, retryAfter, answer := send(body)
			require.Equal(t, http.StatusServiceUnavailable, status, answer)
			require.Equal(t, "1", retryAfter)
			require.Contains(t, answer, `"code":"overloaded"`)

			working.Go(func() {
				if status, _, answer := send(10); status != http.StatusCreated {
					t.Error(status, answer)
				}
			})
			<-entered // small requests go on
			close(leave)
			working.Wait()
			status, _, answer = send(2 << 20)
			require.Equal(t, http.StatusCreated, status, answer)
		})
	}
}
