package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"queenmq/internal/engine/pop"
)

// FuzzScanAckAndTransaction checks that the other scanners accept nothing that is not JSON, whatever the members say, and that
// what they hand to the engine is UTF-8.
func FuzzScanAckAndTransaction(f *testing.F) {
	for _, seed := range []string{
		`{"consumerGroup":"g","acknowledgments":[{"transactionId":"a","partitionId":"p","status":"retry","leaseId":"l","error":"\ud800"}]}`,
		`{"transactionId":"\u0061","partitionId":null,"status":1}`,
		`{"operations":[{"items":[{"queue":"q","payload":[1]},{"queue":"q","data":{}}],"type":"push"},{"type":"ack","consumerGroup":"g"}],"requiredLeases":["a",null]}`,
		`{"operations":[{"type":"push","queue":"q","items":null,"payload":1,"payload":2}],"operations":[]}`,
		`{"operations":[{"type":"p\u0075sh","queue":"q"}]} x`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		valid := utf8.Valid(body) && json.Valid(body)
		for _, scan := range []func(*ackScan, []byte) error{(*ackScan).scanSingle, (*ackScan).scanBatch} {
			var acks ackScan
			if err := scan(&acks, body); err != nil {
				require.NotEmpty(t, badBody(body, err).text)
				continue
			}
			require.True(t, valid, "accepted %q", body)
			for _, item := range acks.items {
				require.True(t, utf8.ValidString(item.TransactionID+item.PartitionID+item.LeaseID+item.Error+item.Status))
			}
		}
		var transaction transactionScan
		if err := transaction.scan(body); err != nil {
			require.NotEmpty(t, badBody(body, err).text)
			return
		}
		require.True(t, valid, "accepted %q", body)
		for _, operation := range transaction.operations {
			if item := operation.Push; item != nil {
				require.NotEmpty(t, item.Queue)
				require.True(t, json.Valid(item.Payload))
			} else {
				require.NotNil(t, operation.Ack)
			}
		}
	})
}

func TestAppendStringReadsBackAsTheSameText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		var back string
		require.NoError(t, json.Unmarshal(appendString(nil, text), &back))
		require.Equal(t, text, back)
	})
}

// discard is an answer that nobody reads.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Flush()                      {}

// ackBody acknowledges n messages of one batch.
func ackBody(n int) []byte {
	body := []byte(`{"consumerGroup":"g","acknowledgments":[`)
	for i := range n {
		if i > 0 {
			body = append(body, ',')
		}
		body = fmt.Appendf(body, `{"transactionId":"0199b0c4-7be2-7c04-a1d9-%012d","partitionId":"%s","leaseId":"%s","status":"completed"}`, i, partitionID, messageID)
	}
	return append(body, `]}`...)
}

// An acknowledged message costs its text and its place in the answer; the rest of its memory is used again.
func TestAckAllocatesOnceAMessage(t *testing.T) { // not parallel: the counter is the process's
	s := (&world{}).server()
	body, request, w := bytes.NewReader(nil), httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1/ack/batch", nil), &discard{header: http.Header{}}
	cost := func(text []byte) float64 {
		request.ContentLength = int64(len(text))
		return testing.AllocsPerRun(200, func() {
			body.Reset(text)
			request.Body = io.NopCloser(body)
			s.ServeHTTP(w, request)
		})
	}
	require.LessOrEqual(t, (cost(ackBody(1000))-cost(ackBody(100)))/900, 1.1)
}

// BenchmarkHandlers measures what the API itself costs: the engine below answers from memory.
func BenchmarkHandlers(b *testing.B) {
	answer := strings.Repeat("x", 30_000)
	f := &world{pop: func(context.Context, pop.Request) (popResult, error) { return &batch{body: answer}, nil }}
	s := f.server()
	for _, bench := range []struct {
		name, method, path string
		body               []byte
	}{
		{"push/1", "POST", "/api/v1/push", benchmarkBody(1)},
		{"push/100", "POST", "/api/v1/push", benchmarkBody(100)},
		{"ack/100", "POST", "/api/v1/ack/batch", ackBody(100)},
		{"pop", "GET", "/api/v1/pop/queue/orders?batch=100&wait=true&timeout=1000&consumerGroup=g", nil},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			body := bytes.NewReader(nil)
			request := httptest.NewRequestWithContext(b.Context(), bench.method, bench.path, body)
			request.ContentLength = int64(len(bench.body))
			w := &discard{header: http.Header{}}
			for b.Loop() {
				body.Reset(bench.body)
				request.Body = io.NopCloser(body)
				s.ServeHTTP(w, request)
			}
		})
	}
}
