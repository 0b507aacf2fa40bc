package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
)

// queen is this repository's broker, built from the source tree and spoken to through HTTP.
type queen struct {
	options  options
	database *database
	broker   *child
	base     string
}

func (q *queen) start(ctx context.Context, dir string) (string, error) {
	var err error
	if q.database, err = startDatabase(ctx, dir); err != nil {
		return "", err
	}
	// Built in its own module: the other peers' modules must not choose its dependencies.
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "queenmq").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("find the source tree (start this program in its own directory): %w: %s", err, root)
	}
	binary := filepath.Join(dir, "queen")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/queen")
	build.Dir = strings.TrimSpace(string(root))
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the broker: %w: %s", err, out)
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	q.base = fmt.Sprintf("http://127.0.0.1:%d", port)
	settings := []string{"DATABASE_URL=" + q.database.server.ConnString(), fmt.Sprintf("PORT=%d", port), "QUEEN_BIND_ADDR=127.0.0.1", "LOG_LEVEL=warn"}
	q.broker, err = startServer(ctx, settings, q.ready, binary, "serve")
	return "this source tree on " + q.database.version, err
}

func (q *queen) ready(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, q.base+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

func (q *queen) programs() []program {
	return []program{q.broker.program("queen"), q.database.program()}
}

func (q *queen) stop() {
	q.broker.stop()
	q.database.stop()
}

func (q *queen) open(_ context.Context, name string, w workload) (queue, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true}}
	return &queenQueue{base: q.base, name: name, client: client, keys: w.keys, partitions: q.options.partitions, claims: q.options.claims}, nil
}

type queenQueue struct {
	base, name string
	client     *http.Client
	keys       int
	// partitions is how many partitions messages without a key are spread over, one partition a request.
	partitions int
	// claims is how many partitions a pop takes at most.
	claims int
	next   atomic.Int64
}

func (q *queenQueue) producer(context.Context) (produce, error) {
	var body []byte
	return func(ctx context.Context, messages []message) error {
		lane := int(q.next.Add(1)) % q.partitions
		body = append(body[:0], `{"items":[`...)
		for k, m := range messages {
			if k > 0 {
				body = append(body, ',')
			}
			if m.key >= 0 {
				lane = m.key
			}
			body = fmt.Appendf(body, `{"queue":%q,"partition":"lane-%d","transactionId":"t-%d","payload":`, q.name, lane, m.sequence)
			body = append(append(body, m.body...), '}')
		}
		body = append(body, "]}"...)
		answer, status, err := q.call(ctx, http.MethodPost, "/api/v1/push", body)
		if err != nil {
			return err
		}
		if n := bytes.Count(answer, []byte(`"queued"`)); status != http.StatusCreated || n != len(messages) {
			return fmt.Errorf("push answered %d with %d of %d queued: %.300s", status, n, len(messages), answer)
		}
		return nil
	}, nil
}

func (q *queenQueue) consumer(context.Context, int) (consume, error) {
	claims := q.claims
	if q.keys > 0 {
		claims = fetch
	}
	path := fmt.Sprintf("/api/v1/pop/queue/%s?batch=%d&partitions=%d&consumerGroup=bench&subscriptionMode=all&wait=true&timeout=%d", q.name, fetch, claims, idle.Milliseconds())
	return func(ctx context.Context, handle func(sequence int64)) error {
		answer, status, err := q.call(ctx, http.MethodGet, path, nil)
		if err != nil || status == http.StatusNoContent {
			return err
		}
		if status != http.StatusOK {
			return fmt.Errorf("pop answered %d: %.300s", status, answer)
		}
		return q.acknowledge(ctx, answer, handle)
	}, nil
}

// acknowledge reads the addresses out of a pop answer without decoding its payloads, which would make the load dearer than
// the broker. It relies on the order of the fields in an answer and on payloads without such keys; a miss shows as a failed
// acknowledgment.
func (q *queenQueue) acknowledge(ctx context.Context, answer []byte, handle func(sequence int64)) error {
	_, rest, _ := bytes.Cut(answer, []byte(`"messages":[`))
	body := []byte(`{"consumerGroup":"bench","acknowledgments":[`)
	count := 0
	for ; ; count++ {
		var id, partition, lease []byte
		if id, rest = field(rest, `"transactionId":"`); id == nil {
			break
		}
		partition, rest = field(rest, `"partitionId":"`)
		lease, rest = field(rest, `"leaseId":"`)
		sequence, err := strconv.ParseInt(string(id[len("t-"):]), 10, 64)
		if err != nil {
			return fmt.Errorf("transaction id %q: %w", id, err)
		}
		handle(sequence)
		if count > 0 {
			body = append(body, ',')
		}
		body = fmt.Appendf(body, `{"transactionId":%q,"partitionId":%q,"leaseId":%q,"status":"completed"}`, id, partition, lease)
	}
	answer, status, err := q.call(ctx, http.MethodPost, "/api/v1/ack/batch", append(body, "]}"...))
	if err != nil {
		return err
	}
	if n := bytes.Count(answer, []byte(`"success":true`)); status != http.StatusOK || n != count {
		return fmt.Errorf("ack answered %d with %d of %d successes: %.300s", status, n, count, answer)
	}
	return nil
}

// field returns the string behind marker and the text behind that; nil when marker is not there.
func field(text []byte, marker string) (value, rest []byte) {
	_, text, ok := bytes.Cut(text, []byte(marker))
	end := bytes.IndexByte(text, '"')
	if !ok || end < 0 {
		return nil, nil
	}
	return text[:end], text[end:]
}

// call sends one request on a kept-alive connection and reads the whole answer.
func (q *queenQueue) call(ctx context.Context, method, path string, body []byte) ([]byte, int, error) {
	request, err := http.NewRequestWithContext(ctx, method, q.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := q.client.Do(request)
	if err != nil {
		return nil, 0, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return answer, response.StatusCode, err
}

func (q *queenQueue) settle(context.Context) error { return nil }
func (q *queenQueue) close()                       { q.client.CloseIdleConnections() }
