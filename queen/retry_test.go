package queen

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// scripted is a broker that answers as a test says: one answer per request, the last one for all that follow.
type scripted struct {
	*httptest.Server
	answers []func(http.ResponseWriter)
	asked   atomic.Int64
}

func script(t *testing.T, answers ...func(http.ResponseWriter)) *scripted {
	t.Helper()
	s := &scripted{answers: answers}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := int(s.asked.Add(1))
		s.answers[min(n, len(s.answers))-1](w)
	}))
	t.Cleanup(s.Close)
	return s
}

func status(code int, header, body string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		if header != "" {
			w.Header().Set("Retry-After", header)
		}
		w.WriteHeader(code)
		_, _ = fmt.Fprint(w, body)
	}
}

func pushed(words ...string) func(http.ResponseWriter) {
	body := "["
	for i, word := range words {
		if i > 0 {
			body += ","
		}
		body += `{"status":"` + word + `","message_id":"m","code":"` + map[string]string{"failed": "QUEUE_FULL"}[word] + `"}`
	}
	return status(http.StatusCreated, "", body+"]")
}

// cut breaks the connection after the request arrived.
func cut(http.ResponseWriter) { panic(http.ErrAbortHandler) }

// patient replaces the pauses of a client by a record of them.
type patient struct {
	mu     sync.Mutex
	pauses []time.Duration
}

func (p *patient) pause(ctx context.Context, d time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pauses = append(p.pauses, d)
	return ctx.Err()
}

func connectTo(t *testing.T, urls string, options ...Option) (*Client, *patient) {
	t.Helper()
	c, err := Connect(urls, options...)
	require.NoError(t, err)
	p := &patient{}
	c.pause = p.pause
	t.Cleanup(c.Close)
	return c, p
}

var one = Item{Queue: "q", Payload: []byte("1")}

func TestRepeating(t *testing.T) {
	t.Parallel()

	t.Run("WaitsAsLongAsTheBrokerAsks", func(t *testing.T) {
		t.Parallel()
		s := script(t, status(429, "3", `{"error":"slow down","code":"rate_limited"}`), status(503, "", `{"error":"away","code":"database_unavailable"}`), pushed("queued"))
		c, p := connectTo(t, s.URL)
		results, err := c.Push(t.Context(), one)
		require.NoError(t, err)
		require.Equal(t, Queued, results[0].Status)
		require.Len(t, p.pauses, 2)
		require.Equal(t, 3*time.Second, p.pauses[0])
		require.Less(t, p.pauses[1], time.Second)
	})

	t.Run("EndsWithTheBudget", func(t *testing.T) {
		t.Parallel()
		s := script(t, status(429, "3", `{"error":"slow down","code":"rate_limited"}`))
		c, p := connectTo(t, s.URL, WithRetryBudget(2*time.Second))
		_, err := c.Push(t.Context(), one)
		require.ErrorIs(t, err, ErrRateLimited)
		refused := new(Error)
		require.ErrorAs(t, err, &refused)
		require.Equal(t, 3*time.Second, refused.RetryAfter)
		require.Empty(t, p.pauses, "three seconds would be too long")
	})

	t.Run("PausesGrow", func(t *testing.T) {
		t.Parallel()
		s := script(t, status(503, "", "{}"), status(503, "", "{}"), status(503, "", "{}"), status(503, "", "{}"), status(503, "", "{}"), status(503, "", "{}"), pushed("queued"))
		c, p := connectTo(t, s.URL)
		_, err := c.Push(t.Context(), one)
		require.NoError(t, err)
		require.Len(t, p.pauses, 6)
		require.Greater(t, p.pauses[5], 10*p.pauses[0])
	})

	t.Run("OnlyWhatFailedIsSentAgain", func(t *testing.T) {
		t.Parallel()
		s := script(t, pushed("queued", "failed", "duplicate", "failed"), pushed("queued", "failed"), pushed("queued"))
		c, p := connectTo(t, s.URL)
		results, err := c.Push(t.Context(), one, one, one, one)
		require.NoError(t, err)
		require.Equal(t, Duplicate, results[2].Status)
		require.EqualValues(t, 3, s.asked.Load())
		require.Len(t, p.pauses, 2)
	})

	t.Run("RefusalsAreFinal", func(t *testing.T) {
		t.Parallel()
		for code, kind := range map[int]error{400: ErrInvalid, 401: ErrUnauthenticated, 403: ErrForbidden, 413: ErrInvalid} {
			s := script(t, status(code, "", `{"error":"no"}`))
			c, _ := connectTo(t, s.URL)
			_, err := c.Push(t.Context(), one)
			require.ErrorIs(t, err, kind)
			require.EqualValues(t, 1, s.asked.Load())
		}
	})

	t.Run("PopThatAcknowledgesIsNotRepeatedBlindly", func(t *testing.T) {
		t.Parallel()
		s := script(t, cut, status(204, "", ""))
		c, _ := connectTo(t, s.URL)
		_, err := c.Pop(t.Context(), "q", PopOptions{AutoAck: true})
		require.ErrorIs(t, err, ErrUnknownOutcome)
		require.ErrorIs(t, err, ErrUnavailable)
		_, err = c.Pop(t.Context(), "q", PopOptions{})
		require.NoError(t, err)
		s = script(t, cut, status(204, "", ""))
		c, _ = connectTo(t, s.URL)
		_, err = c.Pop(t.Context(), "q", PopOptions{})
		require.NoError(t, err, "one under a lease is")
	})

	t.Run("LostAnswerOfATransaction", func(t *testing.T) {
		t.Parallel()
		duplicate := status(200, "", `{"success":false,"error":"QDUP duplicate messages in queue \"q\"","code":"transaction_failed","results":[]}`)
		c, _ := connectTo(t, script(t, cut, duplicate).URL)
		result, err := c.Transaction().Push(one).Ack(Ack{TransactionID: "t"}).Commit(t.Context())
		require.NoError(t, err, "our own id is there: the first attempt was committed")
		require.Len(t, result.Pushed, 1)
		require.Len(t, result.Acked, 1)

		named := one
		named.TransactionID = "named"
		c, _ = connectTo(t, script(t, cut, duplicate).URL)
		_, err = c.Transaction().Push(one, named).Commit(t.Context())
		require.ErrorIs(t, err, ErrUnknownOutcome, "somebody else may have stored the id")
	})

	t.Run("AnswersOfStrangersAreErrors", func(t *testing.T) {
		t.Parallel()
		for _, answer := range []func(http.ResponseWriter){
			status(200, "", "hello"), status(200, "", "[]"), status(302, "", ""), status(404, "", "<html>"),
		} {
			c, _ := connectTo(t, script(t, answer).URL)
			_, err := c.Push(t.Context(), one)
			require.Error(t, err)
		}
	})
}

func TestSeveralBrokers(t *testing.T) {
	t.Parallel()
	dead := httptest.NewServer(http.NotFoundHandler())
	dead.Close()

	t.Run("TheOthersServeForOneThatIsAway", func(t *testing.T) {
		t.Parallel()
		alive := script(t, pushed("queued"))
		for _, balance := range []Balance{Affinity, RoundRobin} {
			c, p := connectTo(t, dead.URL+", "+alive.URL, WithBalance(balance), WithRetryBudget(0))
			for i := range 20 {
				_, err := c.Push(t.Context(), Item{Queue: fmt.Sprint("q", i), Payload: []byte("1")})
				require.NoError(t, err)
			}
			require.Empty(t, p.pauses, "at once")
		}
	})

	t.Run("TransactionGoesOnWhereNothingWasSent", func(t *testing.T) {
		t.Parallel()
		alive := script(t, status(200, "", `{"success":true,"results":[]}`))
		c, _ := connectTo(t, dead.URL+","+alive.URL, WithBalance(RoundRobin))
		for range 4 {
			_, err := c.Transaction().Commit(t.Context())
			require.NoError(t, err)
		}
	})

	t.Run("AllAwayIsUnavailable", func(t *testing.T) {
		t.Parallel()
		c, p := connectTo(t, dead.URL, WithRetryBudget(time.Second))
		_, err := c.Push(t.Context(), one)
		require.ErrorIs(t, err, ErrUnavailable)
		require.NotEmpty(t, p.pauses)
	})

	t.Run("AQueueStaysWithOneBroker", func(t *testing.T) {
		t.Parallel()
		a, b := script(t, pushed("queued")), script(t, pushed("queued"))
		for range 2 { // two clients agree
			c, _ := connectTo(t, a.URL+","+b.URL)
			for range 10 {
				_, err := c.Push(t.Context(), one)
				require.NoError(t, err)
			}
		}
		require.EqualValues(t, 20, max(a.asked.Load(), b.asked.Load()))
		used := map[*server]bool{}
		s := &servers{}
		s.add("http://a")
		s.add("http://b")
		s.add("http://c")
		for i := range 50 {
			chosen, more := s.choose(time.Now(), fmt.Sprint(i), nil, nil)
			used[chosen] = true
			require.True(t, more)
		}
		require.Len(t, used, 3, "queues are spread")
	})

	t.Run("ABrokerThatFailedIsAvoidedForAWhile", func(t *testing.T) {
		t.Parallel()
		s := &servers{}
		s.add("http://a")
		s.add("http://b")
		now := time.Now()
		first, _ := s.choose(now, "q", nil, nil)
		first.down(now)
		second, _ := s.choose(now, "q", nil, nil)
		require.NotSame(t, first, second)
		preferred, _ := s.choose(now, "q", first, nil)
		require.Same(t, second, preferred, "whoever asks")
		later, _ := s.choose(now.Add(firstAvoidance*2), "q", nil, nil)
		require.Same(t, first, later)
		for range 20 {
			first.down(now)
		}
		require.LessOrEqual(t, first.avoidedUntil().Sub(now), longestAvoidance*5/4)
		first.up()
		require.True(t, first.avoidedUntil().IsZero())
	})
}

func TestConnectRefusesNonsense(t *testing.T) {
	t.Parallel()
	for _, urls := range []string{"", "localhost:6632", "ftp://host", "http://user:secret@host", "http://host?x=1", "http://a,,http://b", "http://%zz"} {
		_, err := Connect(urls)
		require.Error(t, err, urls)
		require.NotContains(t, err.Error(), "secret")
	}
	_, err := Connect("http://host", WithRetryBudget(-1))
	require.Error(t, err)
	_, err = Connect("http://host", WithRequestTimeout(0))
	require.Error(t, err)
}

func TestHeadersGoWithEveryRequest(t *testing.T) {
	t.Parallel()
	seen := make(chan http.Header, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header
		w.WriteHeader(204)
	}))
	defer s.Close()
	c, _ := connectTo(t, s.URL, WithToken("token"), WithTenant("tenant"), WithHeader("X-More", "more"))
	_, err := c.Pop(t.Context(), "q", PopOptions{})
	require.NoError(t, err)
	got := <-seen
	require.Equal(t, "Bearer token", got.Get("Authorization"))
	require.Equal(t, "tenant", got.Get("X-Queen-Tenant"))
	require.Equal(t, "more", got.Get("X-More"))

	broken := errors.New("no token today")
	c, _ = connectTo(t, s.URL, WithTokenSource(func(context.Context) (string, error) { return "", broken }))
	_, err = c.Pop(t.Context(), "q", PopOptions{})
	require.ErrorIs(t, err, broken)
}
