package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// A counted store numbers the answers about groups.
type countedStore struct {
	*world
	calls atomic.Int64
	fail  atomic.Bool
	gate  chan struct{}
}

func (c *countedStore) ConsumerGroups(_ context.Context, tenant uuid.UUID) (json.RawMessage, error) {
	n := c.calls.Add(1)
	if c.gate != nil {
		<-c.gate
	}
	if c.fail.Load() {
		return nil, errors.New("away")
	}
	return json.RawMessage(fmt.Sprintf(`[{"n":%d,"tenant":%q}]`, n, tenant)), nil
}

func TestSharedAnswers(t *testing.T) {
	t.Parallel()
	setup := func() (*countedStore, *Server) {
		store := &countedStore{world: &world{}}
		deps := store.deps()
		deps.Store = store
		return store, New(Config{Tenancy: true}, deps)
	}
	const path = "/api/v1/consumer-groups"
	body := func(t *testing.T, answer *http.Response) string {
		t.Helper()
		var rows []struct{ N int }
		require.NoError(t, json.NewDecoder(answer.Body).Decode(&rows))
		return fmt.Sprint(rows[0].N)
	}

	t.Run("ThoseWhoTakeAnOlderOneShareIt", func(t *testing.T) {
		t.Parallel()
		store, s := setup()
		for range 5 {
			answer := ask(t, s, "GET", path, "Cache-Control", "max-age=30")
			require.Equal(t, 200, answer.StatusCode)
			require.Equal(t, "0", answer.Header.Get("Age"))
			require.Equal(t, "application/json", answer.Header.Get("Content-Type"))
			require.Equal(t, "1", body(t, answer))
		}
		require.EqualValues(t, 1, store.calls.Load())
	})
	t.Run("OthersGetOneOfTheirOwn", func(t *testing.T) {
		t.Parallel()
		store, s := setup()
		ask(t, s, "GET", path, "Cache-Control", "max-age=30")
		for _, header := range []string{"", "no-cache", "max-age=0", "max-age=x", "max-age=-1"} {
			before := store.calls.Load()
			answer := ask(t, s, "GET", path, "Cache-Control", header)
			require.Empty(t, answer.Header.Get("Age"), header)
			require.Equal(t, before+1, store.calls.Load(), header)
		}
	})
	t.Run("TenantsAndQueriesAreKeptApart", func(t *testing.T) {
		t.Parallel()
		store, s := setup()
		for _, tenant := range []string{"", uuid.NewString(), uuid.NewString()} {
			headers := []string{"Cache-Control", "max-age=30"}
			if tenant != "" {
				headers = append(headers, "x-queen-tenant", tenant)
			}
			ask(t, s, "GET", path, headers...)
			ask(t, s, "GET", path+"?x=1", headers...)
			ask(t, s, "GET", path, headers...)
		}
		require.EqualValues(t, 6, store.calls.Load())
	})
	t.Run("FailuresAreNotShared", func(t *testing.T) {
		t.Parallel()
		store, s := setup()
		store.fail.Store(true)
		require.Equal(t, 500, ask(t, s, "GET", path, "Cache-Control", "max-age=30").StatusCode)
		store.fail.Store(false)
		require.Equal(t, 200, ask(t, s, "GET", path, "Cache-Control", "max-age=30").StatusCode)
		require.Zero(t, len(s.shared.entries)-1)
	})
	t.Run("ManyAddressesAreNotAllKept", func(t *testing.T) {
		t.Parallel()
		store, s := setup()
		const asked = maxSharedAnswers + 20
		for n := range asked {
			require.Equal(t, 200, ask(t, s, "GET", fmt.Sprintf("%s?n=%d", path, n), "Cache-Control", "max-age=30").StatusCode)
		}
		require.EqualValues(t, asked, store.calls.Load())
		require.Len(t, s.shared.entries, maxSharedAnswers)
		kept := 0
		for key, one := range s.shared.entries {
			kept += one.size(key)
		}
		require.Equal(t, kept, s.shared.bytes)
	})
	t.Run("ThoseWhoComeMeanwhileWaitForIt", func(t *testing.T) {
		t.Parallel()
		store, s := setup()
		store.gate = make(chan struct{})
		answers := make(chan string, 8)
		for range 8 {
			go func() { answers <- body(t, ask(t, s, "GET", path, "Cache-Control", "max-age=30")) }()
		}
		close(store.gate)
		for range 8 {
			require.Equal(t, "1", <-answers)
		}
		require.EqualValues(t, 1, store.calls.Load())
	})
	t.Run("WritesAndStreamsAreNeverShared", func(t *testing.T) {
		t.Parallel()
		for i := range routes {
			r := &routes[i]
			if r.isShared() {
				require.Equal(t, "GET", r.method)
				require.NotContains(t, r.path, "/v1/pop")
				require.NotContains(t, r.path, "/tail")
			}
		}
	})
	t.Run("RolesAreCheckedAllTheSame", func(t *testing.T) {
		t.Parallel()
		store := &countedStore{world: &world{}}
		deps := store.deps()
		deps.Store, deps.Verifier = store, doorkeeper{}
		s := New(Config{}, deps)
		require.Equal(t, 200, ask(t, s, "GET", path, "Cache-Control", "max-age=30", "Authorization", "ro").StatusCode)
		require.Equal(t, 401, ask(t, s, "GET", path, "Cache-Control", "max-age=30").StatusCode)
		require.Equal(t, 403, ask(t, s, "GET", path, "Cache-Control", "max-age=30", "Authorization", "wo").StatusCode)
	})
}
