package api

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hostileTexts are texts that no parameter should have, or only one of a certain kind.
var hostileTexts = []string{
	"", " ", "\x00", "a\x00b", "\xff\xfe", "\ufeff", "\r\nX-Evil: 1", "..", "/", "%00", "%", "'; DROP TABLE queen.queues; --", `"`, `\`, "*", "a,b", "{}", "[]", "null",
	strings.Repeat("x", 256), strings.Repeat("x", 70_000), strings.Repeat("😀", 255), "__QUEUE_MODE__", "__retry__",
	"-1", "0", "1", "1e9", "1e400", "NaN", "Infinity", "-0", "0x10", "1.5", "2147483647", "2147483648", "-2147483649", "9223372036854775807", "9223372036854775808", "99999999999999999999999",
	"true", "TRUE", "yes", "2", "infinity", "-infinity", "now", "today", "epoch", "0000-00-00T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "294277-01-01T00:00:00Z",
	"2026-02-30T00:00:00Z", "2026-01-01T25:61:61Z", "2026-01-01T00:00:00+99:99", "2026-01-01", "-4713-01-01T00:00:00Z", "1 day",
	"00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", "0199B0C4-7BE2-4C04-A1D9-5E2C8F0B6731", "{0199b0c4-7be2-4c04-a1d9-5e2c8f0b6731}", "asc", "desc", "name",
	"eyJhIjoxfQ", "eyJhIjoxfQ==", "W10", "bnVsbA",
}

// hostileValues are JSON values, and texts that are none, in the place of a member.
var hostileValues = func() []string {
	values := []string{
		"null", "true", "false", "0", "-1", "1", "1.5", "-0", "1e999", "1e-999", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "2147483648", "1e19", "01", "NaN", ".5", "",
		"[]", "{}", "[null]", "[[]]", "[1,2]", `{"a":1}`, `[{}]`, `{"":null}`, `"\u0000"`, `"\ud800"`, `"\udc00\ud800"`, `"\x"`, "\"\xff\"", `"unclosed`, "'a'", "[1,]", `{"a":1,"a":2}`,
		strings.Repeat("[", 20_000), strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000), strings.Repeat(`{"a":`, 20_000) + "1" + strings.Repeat("}", 20_000),
		"[" + strings.TrimSuffix(strings.Repeat(`"x",`, 11_000), ",") + "]", strings.Repeat("9", 5000),
	}
	for _, text := range hostileTexts {
		if quoted, err := json.Marshal(text); err == nil {
			values = append(values, string(quoted))
		}
	}
	return values
}()

// An attempt is one request of a hostile client.
type attempt struct{ method, path, body string }

func (a attempt) String() string {
	short := func(text string) string {
		if len(text) > 300 {
			return fmt.Sprintf("%.300q… (%d bytes)", text, len(text))
		}
		return fmt.Sprintf("%q", text)
	}
	return a.method + " " + short(a.path) + " " + short(a.body)
}

// mark stands in a document for the value that is put in its place.
const mark = "\u0001here"

// places returns the document once for each of its members and elements, with the mark in their place, and as a whole.
func places(document any) (marked []any) {
	marked = append(marked, mark)
	switch document := document.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(document)) {
			for _, inner := range places(document[name]) {
				changed := maps.Clone(document)
				changed[name] = inner
				marked = append(marked, changed)
			}
		}
	case []any:
		for i := range document {
			for _, inner := range places(document[i]) {
				changed := slices.Clone(document)
				changed[i] = inner
				marked = append(marked, changed)
			}
		}
	}
	return marked
}

// hostile makes the attempts on one route: each parameter of the path, of the query and of the body with each value.
func (l *lived) hostile(r *route) (attempts []attempt) {
	known := strings.NewReplacer("{queue}", "shop.orders", "{partition}", "p1", "{group}", "billing", "{leaseId}", "l", "{partitionId}", l.partition, "{transactionId}", "m1",
		"{id}", l.dead, "{traceId}", pipelineID, "{traceName}", "order-1")
	path := known.Replace(r.path)
	bodies := l.goodBodies(r)
	first := ""
	if len(bodies) > 0 {
		text, err := json.Marshal(bodies[0])
		require.NoError(l.t, err)
		first = string(text)
	}
	for _, segment := range strings.Split(r.path, "/") {
		if !strings.HasPrefix(segment, "{") {
			continue
		}
		for _, text := range hostileTexts {
			escaped := strings.ReplaceAll(url.PathEscape(text), ".", "%2E")
			attempts = append(attempts, attempt{r.method, known.Replace(strings.Replace(r.path, segment, escaped, 1)), first})
		}
	}
	for _, parameter := range strings.Fields(r.query) {
		name, _, _ := strings.Cut(parameter, ":")
		for _, text := range hostileTexts {
			query := name + "=" + url.QueryEscape(text)
			if name != "timeout" {
				query += "&timeout=20"
			} else {
				query += "&wait=false"
			}
			attempts = append(attempts, attempt{r.method, path + "?" + query, first}, attempt{r.method, path + "?" + query + "&" + query, first})
		}
		attempts = append(attempts, attempt{r.method, path + "?" + name + "=%zz&" + name, first}, attempt{r.method, path + "?" + name + "[]=1&;" + name, first})
	}
	for _, document := range bodies {
		for _, place := range places(document) {
			text, err := json.Marshal(place)
			require.NoError(l.t, err)
			before, after, found := strings.Cut(string(text), `"\u0001here"`)
			require.True(l.t, found)
			for _, value := range hostileValues {
				attempts = append(attempts, attempt{r.method, path, before + value + after})
			}
		}
	}
	return attempts
}

// goodBodies are bodies that the route takes: made from its shape, and by hand where that says too little.
func (l *lived) goodBodies(r *route) []any {
	by := map[string][]string{
		"/api/v1/transaction": {
			`{"operations":[{"type":"push","items":[{"queue":"shop.new","partition":"p","payload":{"a":[1]},"transactionId":"t","traceId":"` + pipelineID + `"}]}],"requiredLeases":["l"]}`,
			`{"operations":[{"type":"ack","transactionId":"m1","partitionId":"` + l.partition + `","status":"completed","consumerGroup":"audit","leaseId":"l"}]}`,
		},
		"/api/v1/configure": {`{"queue":"shop.orders","namespace":"n","task":"t","mode":"merge","strict":true,"options":{"leaseTime":60,"priority":1,"maxSize":5,"retentionSeconds":10,"deadLetterQueue":true,
			"dedupWindowSeconds":60,"windowBuffer":1,"redeliveryDelayMs":5,"maxDeliveries":3,"dlqRetentionSeconds":9,"delayedProcessing":0,"encryptionEnabled":false,"maxWaitTimeSeconds":0,"retryLimit":1}}`},
	}[r.path]
	if by == nil && r.body != "" {
		text, err := json.Marshal(l.exampleOf(r.body))
		require.NoError(l.t, err)
		by = []string{string(text)}
	}
	documents := make([]any, len(by))
	for i, text := range by {
		require.NoError(l.t, json.Unmarshal([]byte(text), &documents[i]))
	}
	return documents
}

// exampleOf makes a document of a shape.
func (l *lived) exampleOf(s shape) any {
	var document any
	require.NoError(l.t, json.Unmarshal([]byte(s), &document))
	known := map[string]any{
		"queue": "shop.orders", "partition": "p1", "partitionId": l.partition, "partition_id": l.partition, "transactionId": "m1", "consumerGroup": "billing", "consumer_group": "billing", "status": "completed",
		"kind": "replay", "type": "push", "source_queue": "shop.orders", "sink_queue": "shop.sink", "timestamp": "2026-01-01T00:00:00Z",
	}
	var example func(name string, of any) any
	example = func(name string, of any) any {
		switch of := of.(type) {
		case map[string]any:
			made := map[string]any{}
			for inner, shape := range of {
				inner = strings.TrimSuffix(strings.TrimSuffix(inner, "?"), "|null")
				if inner != "*" {
					made[inner] = example(inner, shape)
				}
			}
			return made
		case []any:
			return []any{example(name, of[0])}
		}
		if value, ok := known[name]; ok {
			return value
		}
		switch kind, _, _ := strings.Cut(fmt.Sprint(of), "|"); kind {
		case "int", "number":
			return 1
		case "bool":
			return true
		case "uuid":
			return pipelineID
		}
		return "x"
	}
	return example("", document)
}

// try makes a request and returns what is wrong with the answer, "" when nothing is.
func (l *lived) try(a attempt) string {
	before := l.stored()
	ctx, cancel := context.WithTimeout(l.t.Context(), 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, a.method, l.Server.URL+a.path, strings.NewReader(a.body))
	if err != nil {
		return err.Error()
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	if response.Header.Get("Content-Type") == "text/event-stream" {
		return "" // has no end
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	switch {
	case strings.Contains(string(text), "Replay push was rejected"): // 500 by the contract: a full queue, for example
		return ""
	case response.StatusCode >= 500:
		return fmt.Sprintf("%d %.300s", response.StatusCode, text)
	case response.StatusCode < 400:
		if response.Header.Get("Content-Type") == "application/json" && len(text) > 0 && !json.Valid(text) {
			return fmt.Sprintf("%d with what is no JSON: %.300s", response.StatusCode, text)
		}
		return ""
	}
	var fault struct{ Error, Code string }
	if json.Unmarshal(text, &fault) != nil || fault.Error == "" || fault.Code == "" {
		return fmt.Sprintf("%d without words or code: %.300s", response.StatusCode, text)
	}
	if _, ok := errorRows[code(fault.Code)]; !ok {
		return "unknown code " + fault.Code
	}
	if after := l.stored(); after != before {
		return fmt.Sprintf("%d, and yet it stored something: %s, before %s", response.StatusCode, after, before)
	}
	return ""
}

// stored says how much is stored.
func (l *lived) stored() (text string) {
	require.NoError(l.t, l.pool.QueryRow(l.t.Context(), `SELECT concat_ws(' ', (SELECT count(*) FROM queen.queues), (SELECT count(*) FROM queen.log_partitions), (SELECT count(*) FROM queen.log_segments),
		(SELECT sum(committed) FROM queen.log_consumers), (SELECT count(*) FROM queen.log_dlq), (SELECT count(*) FROM queen.message_traces), (SELECT count(*) FROM queen_streams.queries))`).Scan(&text))
	return text
}

// allHostile makes every attempt, which takes minutes, instead of some of each route.
var allHostile = flag.Bool("hostile.all", false, "try every hostile value in every place of every route")

// hostileAttempts is how many attempts on a route are made otherwise.
const hostileAttempts = 40

// Whatever a client sends, it is answered soon, never with a fault of the broker's, and what is refused is refused with words and a code and
// changes nothing. Repeat with all attempts: go test ./internal/api -run TestHostileRequests -args -hostile.all
func TestHostileRequests(t *testing.T) {
	t.Parallel()
	l := newLived(t)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range routes {
		attempts := l.hostile(&routes[i])
		random.Shuffle(len(attempts), func(i, j int) { attempts[i], attempts[j] = attempts[j], attempts[i] })
		if !*allHostile {
			attempts = attempts[:min(len(attempts), hostileAttempts)]
		}
		for _, a := range attempts {
			if wrong := l.try(a); wrong != "" {
				t.Errorf("%s\n\t%s", a, wrong)
			}
		}
	}
}
