package trust

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/test/stack"
)

const (
	keyA   = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	keyB   = "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100"
	secret = "a secret of at least thirty-two bytes"
)

// An answer is one exchange, read to its end.
type answer struct {
	status int
	header http.Header
	body   string
}

// A caller sends every request with the same headers.
type caller struct {
	t      testing.TB
	url    string
	header map[string]string
	client *http.Client
}

func as(t testing.TB, url string, header map[string]string) *caller {
	return &caller{t: t, url: url, header: header, client: http.DefaultClient}
}

func (c *caller) call(method, path, body string) answer {
	c.t.Helper()
	ctx := context.Background()
	live := strings.HasPrefix(path, "/api/v1/messages/tail")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(body))
	require.NoError(c.t, err)
	for name, value := range c.header {
		request.Header.Set(name, value)
	}
	response, err := c.client.Do(request)
	require.NoError(c.t, err)
	defer response.Body.Close()
	if live { // it has no end of its own: its beginning is compared, what comes within a second of its header
		defer time.AfterFunc(time.Second, cancel).Stop()
	}
	text, err := io.ReadAll(response.Body)
	if !live || ctx.Err() == nil {
		require.NoError(c.t, err)
	}
	return answer{response.StatusCode, response.Header, string(text)}
}

type message struct {
	TransactionID string
	PartitionID   string
	Data          json.RawMessage
	ProducerSub   *string
	LeaseID       string
	IsEncrypted   bool
}

// pop pops from a queue without waiting; no messages are none.
func (c *caller) pop(queue, parameters string) []message {
	c.t.Helper()
	return c.popAt("/api/v1/pop/queue/"+queue, parameters)
}

// popAt is pop with a path of its own.
func (c *caller) popAt(path, parameters string) []message {
	c.t.Helper()
	separator := "?"
	if strings.Contains(path, "?") {
		separator = "&"
	}
	a := c.call("GET", path+separator+parameters, "")
	if a.status == http.StatusNoContent {
		return nil
	}
	require.Equal(c.t, http.StatusOK, a.status, a.body)
	var batch struct{ Messages []message }
	require.NoError(c.t, json.Unmarshal([]byte(a.body), &batch))
	return batch.Messages
}

func (c *caller) push(queue, transactionID, payload string) answer {
	c.t.Helper()
	return c.call("POST", "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":%q,"transactionId":%q,"payload":%s}]}`, queue, transactionID, payload))
}

func (c *caller) mustPush(queue, transactionID, payload string) {
	c.t.Helper()
	a := c.push(queue, transactionID, payload)
	require.Equal(c.t, http.StatusCreated, a.status, a.body)
	require.Contains(c.t, a.body, `"status":"queued"`)
}

func (c *caller) configure(queue, options string) {
	c.t.Helper()
	a := c.call("POST", "/api/v1/configure", fmt.Sprintf(`{"queue":%q,"options":%s}`, queue, options))
	require.Equal(c.t, http.StatusOK, a.status, a.body)
}

func token(t testing.TB, claims jwt.MapClaims) string {
	t.Helper()
	text, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(secret))
	require.NoError(t, err)
	return text
}

func bearer(t testing.TB, role string) map[string]string {
	t.Helper()
	return map[string]string{"Authorization": "Bearer " + token(t, jwt.MapClaims{
		"sub": "sub of " + role, "role": role, "exp": time.Now().Add(time.Hour).Unix(),
	})}
}

func tenantHeader(id uuid.UUID) map[string]string {
	return map[string]string{"x-queen-tenant": id.String()}
}

// everything returns all rows of all tables of the schema as one text, blobs decompressed where they are segments.
func everything(t testing.TB, s *stack.Stack) string {
	t.Helper()
	rows, err := s.DB.Query(t.Context(), `SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname LIKE 'queen%' ORDER BY 1`)
	require.NoError(t, err)
	var tables []string
	for rows.Next() {
		var name string
		require.NoError(t, rows.Scan(&name))
		tables = append(tables, name)
	}
	require.NoError(t, rows.Err())
	require.Greater(t, len(tables), 5)
	var all strings.Builder
	for _, table := range tables {
		var text *string
		require.NoError(t, s.DB.QueryRow(t.Context(), `SELECT string_agg(x::text, E'\n') FROM `+table+` x`).Scan(&text))
		if text != nil {
			all.WriteString(*text + "\n")
		}
	}
	return all.String()
}
