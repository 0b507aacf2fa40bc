package sdk

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"queenmq/bench/payload"
	"queenmq/queen"
)

const messageBytes = 256

// bodies are what a batch of n messages looks like on the wire.
type bodies struct {
	items              []queen.Item
	push, pushed       []byte
	popped, ack, acked []byte
	acks               []queen.Ack
	server             *httptest.Server
	pushPath, popPath  string
	ackPath            string
}

func newBodies(b *testing.B, n int) *bodies {
	b.Helper()
	source := payload.NewSource(payload.Order, messageBytes, 1)
	const partition, lease = "0199b0c4-6a11-7f3e-8c55-41d0e9a7b2f6", "0199b0cb-02d8-7a90-b6c1-9f7e30415ad2"
	var push, pushed, popped, ack, acked []string
	w := &bodies{pushPath: "/api/v1/push", popPath: "/api/v1/pop/queue/q", ackPath: "/api/v1/ack/batch"}
	for i := range n {
		id := fmt.Sprintf("0199b0c4-7be2-7c04-a1d9-%012d", i)
		body := source.Append(nil, int64(i))
		w.items = append(w.items, queen.Item{Queue: "q", Partition: "p", TransactionID: id, Payload: body})
		w.acks = append(w.acks, queen.Ack{TransactionID: id, PartitionID: partition, LeaseID: lease, Group: "g", Status: queen.Completed})
		push = append(push, fmt.Sprintf(`{"queue":"q","partition":"p","transactionId":%q,"payload":%s}`, id, body))
		pushed = append(pushed, fmt.Sprintf(`{"index":%d,"message_id":%q,"transaction_id":%q,"queueName":"q","status":"queued","partition_id":%q}`, i, id, id, partition))
		popped = append(popped, fmt.Sprintf(`{"id":%q,"transactionId":%q,"traceId":null,"data":%s,"producerSub":null,"createdAt":"2026-09-14T06:21:08.417302Z","partitionId":%q,"partition":"p","leaseId":%q,"consumerGroup":"g","queue":"q"}`,
			id, id, body, partition, lease))
		ack = append(ack, fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q,"status":"completed"}`, id, partition, lease))
		acked = append(acked, fmt.Sprintf(`{"index":%d,"transactionId":%q,"success":true,"error":null,"leaseReleased":false,"dlq":false,"noop":false,"queueName":"q","partitionName":"p"}`, i, id))
	}
	join := func(head string, parts []string, tail string) []byte {
		return []byte(head + strings.Join(parts, ",") + tail)
	}
	w.push, w.pushed = join(`{"items":[`, push, `]}`), join("[", pushed, "]")
	w.popped = join(fmt.Sprintf(`{"success":true,"queue":"q","partition":"p","partitionId":%q,"leaseId":%q,"consumerGroup":"g","partitionsClaimed":1,"messages":[`, partition, lease), popped, "]}")
	w.ack, w.acked = join(`{"consumerGroup":"g","acknowledgments":[`, ack, `]}`), join("[", acked, "]")
	w.server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		rw.Header().Set("Content-Type", "application/json")
		answer := w.popped
		switch r.URL.Path {
		case w.pushPath:
			answer = w.pushed
			rw.WriteHeader(http.StatusCreated)
		case w.ackPath:
			answer = w.acked
		}
		_, _ = rw.Write(answer)
	}))
	b.Cleanup(w.server.Close)
	return w
}

// bare sends a request whose body is ready, and reads the answer away.
func (w *bodies) bare(b *testing.B, method, path string, body []byte) {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), method, w.server.URL+path, bytes.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		b.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func BenchmarkMessage(b *testing.B) {
	for _, n := range []int{1, 100} {
		w := newBodies(b, n)
		client, err := queen.Connect(w.server.URL)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(client.Close)
		must := func(err error) {
			if err != nil {
				b.Fatal(err)
			}
		}
		for _, call := range []struct {
			name string
			do   func()
		}{
			{"push/bare", func() { w.bare(b, http.MethodPost, w.pushPath, w.push) }},
			{"push/client", func() { _, err := client.Push(b.Context(), w.items...); must(err) }},
			{"pop/bare", func() { w.bare(b, http.MethodGet, w.popPath, nil) }},
			{"pop/client", func() { _, err := client.Pop(b.Context(), "q", queen.PopOptions{}); must(err) }},
			{"ack/bare", func() { w.bare(b, http.MethodPost, w.ackPath, w.ack) }},
			{"ack/client", func() { _, err := client.Ack(b.Context(), w.acks...); must(err) }},
		} {
			b.Run(fmt.Sprintf("batch-%d/%s", n, call.name), func(b *testing.B) {
				b.ReportAllocs()
				before := processorTime(b)
				for b.Loop() {
					call.do()
				}
				b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/float64(b.N*n), "cpu-ns/message")
			})
		}
	}
}
