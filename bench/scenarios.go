package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"queenmq/internal/engine/segment"
)

// A bench holds what every scenario needs: one database, one broker in front of it, and the shape of the load.
type bench struct {
	options  options
	pool     *pgxpool.Pool
	base     string
	client   *http.Client
	sequence atomic.Int64
}

// partitionName spreads work over the configured number of lanes.
func (b *bench) partitionName(i int64) string {
	return fmt.Sprintf("lane-%d", i%int64(b.options.partitions))
}

// ceiling stores ready-made segments of batch messages with direct calls of log_push_multi_v1, bundle segments a call:
// what PostgreSQL gives when nothing is in front of it. The blobs are packed before the clock starts and repeat; the
// hashes are new in every call, so that the duplicate probe does its real work.
func (b *bench) ceiling(queue string, batch, bundle, connections int) []worker {
	workers := make([]worker, connections)
	for i := range workers {
		source := newPayloadSource(b.options.payload, b.options.size, uint64(i))
		blobs := make([][]byte, 16)
		for k := range blobs {
			frames := make([]segment.Frame, batch)
			for f := range frames {
				frames[f] = segment.Frame{ID: segment.NewID(), TransactionID: uuid.NewString(), Payload: source.append(nil, int64(f))}
			}
			blob, _, err := segment.Pack(frames)
			if err != nil {
				panic(err) // frames made here are always valid
			}
			blobs[k] = blob
		}
		workers[i] = b.pushSegments(queue, blobs, batch, bundle)
	}
	return workers
}

func (b *bench) pushSegments(queue string, blobs [][]byte, batch, bundle int) worker {
	queues, counts, verified := make([]string, bundle), make([]int32, bundle), make([]int64, bundle)
	for i := range bundle {
		queues[i], counts[i], verified[i] = queue, int32(batch), -1
	}
	var conn *pgxpool.Conn
	return func(ctx context.Context) (int, error) {
		if conn == nil {
			var err error
			if conn, err = b.pool.Acquire(ctx); err != nil {
				return 0, err
			}
			context.AfterFunc(ctx, conn.Release)
		}
		partitions, hashes, chosen := make([]string, bundle), make([][]byte, bundle), make([][]byte, bundle)
		first := b.sequence.Add(int64(bundle))
		for i := range bundle {
			partitions[i] = b.partitionName(first + int64(i))
			chosen[i] = blobs[(first+int64(i))%int64(len(blobs))]
			hashes[i] = make([]byte, 16*batch)
			_, _ = rand.Read(hashes[i])
		}
		var answer []byte
		err := conn.QueryRow(ctx, `SELECT queen.log_push_multi_v1($1, $2, $3, $4, $5, $6)`, queues, partitions, counts, hashes, verified, chosen).Scan(&answer)
		if err != nil {
			return 0, err
		}
		if n := bytes.Count(answer, []byte(`"queued"`)); n != bundle {
			return 0, fmt.Errorf("%d of %d segments queued: %s", n, bundle, answer)
		}
		return batch * bundle, nil
	}
}

// push sends batches of new messages through HTTP; each request names one partition.
func (b *bench) push(queue string, batch, producers int) []worker {
	workers := make([]worker, producers)
	for i := range workers {
		source := newPayloadSource(b.options.payload, b.options.size, uint64(i))
		var body []byte
		workers[i] = func(ctx context.Context) (int, error) {
			lane := b.partitionName(b.sequence.Add(1))
			body = append(body[:0], `{"items":[`...)
			for k := range batch {
				if k > 0 {
					body = append(body, ',')
				}
				body = fmt.Appendf(body, `{"queue":%q,"partition":%q,"transactionId":%q,"payload":`, queue, lane, uuid.NewString())
				body = append(source.append(body, int64(k)), '}')
			}
			body = append(body, "]}"...)
			answer, status, err := b.call(ctx, http.MethodPost, "/api/v1/push", body)
			if err != nil {
				return 0, err
			}
			if n := bytes.Count(answer, []byte(`"queued"`)); status != http.StatusCreated || n != batch {
				return 0, fmt.Errorf("push answered %d with %d of %d queued: %.300s", status, n, batch, answer)
			}
			return batch, nil
		}
	}
	return workers
}

// drain pops batches and acknowledges each whole; it ends when the queue is empty. seen collects what came, for the
// verification after the run.
func (b *bench) drain(queue, group string, batch, consumers int, seen *ledger) []worker {
	workers := make([]worker, consumers)
	for i := range workers {
		workers[i] = func(ctx context.Context) (int, error) {
			path := fmt.Sprintf("/api/v1/pop/queue/%s?batch=%d&consumerGroup=%s&subscriptionMode=all", queue, batch, group)
			answer, status, err := b.call(ctx, http.MethodGet, path, nil)
			if err != nil {
				return 0, err
			}
			if status == http.StatusNoContent {
				if seen.complete() {
					return 0, errDrained
				}
				return 0, nil
			}
			if status != http.StatusOK {
				return 0, fmt.Errorf("pop answered %d: %.300s", status, answer)
			}
			var popped struct {
				PartitionID string `json:"partitionId"`
				LeaseID     string `json:"leaseId"`
			}
			if err := json.Unmarshal(answer, &popped); err != nil {
				return 0, err
			}
			ids := transactionIDs(answer)
			return len(ids), b.acknowledge(ctx, group, popped.PartitionID, popped.LeaseID, ids, seen)
		}
	}
	return workers
}

func (b *bench) acknowledge(ctx context.Context, group, partition, lease string, ids [][]byte, seen *ledger) error {
	body := fmt.Appendf(nil, `{"consumerGroup":%q,"acknowledgments":[`, group)
	for i, id := range ids {
		if i > 0 {
			body = append(body, ',')
		}
		body = fmt.Appendf(body, `{"transactionId":"%s","partitionId":%q,"leaseId":%q,"status":"completed"}`, id, partition, lease)
	}
	answer, status, err := b.call(ctx, http.MethodPost, "/api/v1/ack/batch", append(body, "]}"...))
	if err != nil {
		return err
	}
	if n := bytes.Count(answer, []byte(`"success":true`)); status != http.StatusOK || n != len(ids) {
		return fmt.Errorf("ack answered %d with %d of %d successes: %.300s", status, n, len(ids), answer)
	}
	seen.note(ids)
	return nil
}

// transactionIDs lists the ids of a pop answer without decoding it. The benchmark's own ids need no unescaping, and its
// payloads hold no such key.
func transactionIDs(answer []byte) [][]byte {
	marker := []byte(`"transactionId":"`)
	var ids [][]byte
	for {
		at := bytes.Index(answer, marker)
		if at < 0 {
			return ids
		}
		answer = answer[at+len(marker):]
		end := bytes.IndexByte(answer, '"')
		ids = append(ids, answer[:end])
		answer = answer[end:]
	}
}

// call sends one request on a kept-alive connection and reads the whole answer.
func (b *bench) call(ctx context.Context, method, path string, body []byte) ([]byte, int, error) {
	request, err := http.NewRequestWithContext(ctx, method, b.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := b.client.Do(request)
	if err != nil {
		return nil, 0, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return answer, response.StatusCode, err
}

// A ledger counts deliveries by transaction id. It is safe for concurrent use.
type ledger struct {
	mu    sync.Mutex
	want  int64
	times map[string]int
	total atomic.Int64
}

func newLedger(want int64) *ledger { return &ledger{want: want, times: make(map[string]int, want)} }

func (l *ledger) note(ids [][]byte) {
	l.mu.Lock()
	for _, id := range ids {
		l.times[string(id)]++
	}
	l.mu.Unlock()
	l.total.Add(int64(len(ids)))
}

func (l *ledger) complete() bool { return l.total.Load() >= l.want }

// verify returns how many messages are missing and how many came more than once.
func (l *ledger) verify() (lost, repeated int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.times {
		if n > 1 {
			repeated++
		}
	}
	return l.want - int64(len(l.times)), repeated
}

// settled waits until the queue no longer grows and returns what it holds: calls that the end of a run cut off may still
// commit for a moment.
func (b *bench) settled(ctx context.Context, queue string) (int64, error) {
	for last := int64(-1); ; {
		n, err := b.stored(ctx, queue)
		if err != nil || n == last {
			return n, err
		}
		last = n
		time.Sleep(settleTime) // what is being waited for gives no signal; bounded by the calls in flight
	}
}

// settleTime is well above the time of a commit under the load of these scenarios.
const settleTime = 500 * time.Millisecond

// stored is the number of messages that the database holds of a queue.
func (b *bench) stored(ctx context.Context, queue string) (int64, error) {
	rows, err := b.pool.Query(ctx, `SELECT COALESCE(sum(p.last_offset - p.log_start + 1), 0)::bigint
		FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1`, queue)
	if err != nil {
		return 0, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowTo[int64])
}
