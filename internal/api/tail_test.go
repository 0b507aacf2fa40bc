package api

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/browse"
	"queenmq/internal/engine/tail"
	"queenmq/internal/testdb"
)

// nextEvent reads a stream until an event of a kind comes, and returns its data.
func nextEvent(t *testing.T, lines *bufio.Scanner, kind string) string {
	t.Helper()
	for lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok && name == kind {
			require.True(t, lines.Scan())
			data, ok := strings.CutPrefix(lines.Text(), "data: ")
			require.True(t, ok)
			return data
		}
	}
	t.Fatalf("the stream ended without %s: %v", kind, lines.Err())
	return ""
}

func TestTailShowsMessagesAsTheyCome(t *testing.T) {
	t.Parallel()
	s := newStack(t, testdb.New(t))
	hub := tail.New(tail.Config{Interval: 20 * time.Millisecond, MaxWatchers: 2}, browse.New(s.db, nil))
	t.Cleanup(hub.Stop)
	s.Config.Handler.(*Server).deps.Tail = hub

	require.Equal(t, 400, call(t, s.Server, "GET", "/api/v1/messages/tail", "").status)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	open := func(query string) (*http.Response, *bufio.Scanner) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/api/v1/messages/tail?"+query, nil)
		require.NoError(t, err)
		answer, err := s.Client().Do(request)
		require.NoError(t, err)
		return answer, bufio.NewScanner(answer.Body)
	}
	push := func(partition, id, payload string) {
		answer := call(t, s.Server, "POST", "/api/v1/push", `{"items":[{"queue":"q","partition":"`+partition+`","transactionId":"`+id+`","payload":`+payload+`}]}`)
		require.Equal(t, 201, answer.status, answer.body)
	}
	push("a", "before", "1")
	all, allLines := open("queue=q")
	defer all.Body.Close()
	require.Equal(t, "text/event-stream", all.Header.Get("Content-Type"))
	one, oneLines := open("queue=q&partition=b")
	defer one.Body.Close()
	refused, _ := open("queue=other")
	require.Equal(t, 429, refused.StatusCode, "each tenant has so many and no more")
	require.NoError(t, refused.Body.Close())

	// A first look that has not come yet takes what is pushed meanwhile for old: push until one is seen.
	seen := make(chan string, 1)
	go func() { seen <- nextEvent(t, allLines, "message") }()
	exact := "{ \"n\":12345678901234567890,\r\n\t\"s\":\"\\u0000\" }"
	for i := 0; ; i++ {
		push("a", "id-"+strings.Repeat("x", i), exact)
		select {
		case data := <-seen:
			var m struct{ TransactionID, Partition, PayloadText, Status string }
			require.NoError(t, json.Unmarshal([]byte(data), &m))
			require.Equal(t, []string{"a", exact, "pending"}, []string{m.Partition, m.PayloadText, m.Status})
			require.NotEqual(t, "before", m.TransactionID)
		case <-time.After(50 * time.Millisecond):
			require.Less(t, i, 600)
			continue
		}
		break
	}
	push("b", "only this", "2")
	require.Contains(t, nextEvent(t, oneLines, "message"), `"transactionId":"only this"`)
	hub.Stop()
	require.JSONEq(t, `{"reason":"stopping"}`, nextEvent(t, oneLines, "end"))
	require.Equal(t, 503, call(t, s.Server, "GET", "/api/v1/messages/tail?queue=q", "").status)
}
