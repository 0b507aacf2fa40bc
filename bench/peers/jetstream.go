package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// jetStream is a NATS server with file storage and one replica.
type jetStream struct {
	// always flushes every write before it is confirmed.
	always bool
	// atomic stores a batch as one atomic batch, confirmed once.
	atomic  bool
	process *child
	url     string
}

func (p *jetStream) start(ctx context.Context, dir string) (string, error) {
	port, err := freePort()
	if err != nil {
		return "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	p.url = fmt.Sprintf("nats://127.0.0.1:%d", port)
	p.process, err = startServer(ctx, nil, p.ready, self, natsCommand, "-dir", filepath.Join(dir, "nats"), "-port", strconv.Itoa(port), fmt.Sprintf("-always=%t", p.always))
	return "NATS server " + natsserver.VERSION, err
}

func (p *jetStream) ready(context.Context) error {
	connection, err := nats.Connect(p.url)
	if err == nil {
		connection.Close()
	}
	return err
}

func (p *jetStream) programs() []program { return []program{p.process.program("nats")} }
func (p *jetStream) stop()               { p.process.stop() }

func (p *jetStream) open(ctx context.Context, name string, w workload) (queue, error) {
	if p.atomic && w.batch == 1 {
		return nil, errNotOffered // a batch of one is no batch: see jetstream-always
	}
	q := &jetStreamQueue{peer: p, name: name, keys: w.keys, shards: w.consumers}
	connection, err := q.connect()
	if err != nil {
		return nil, err
	}
	if q.control, err = jetstream.New(connection); err != nil {
		return nil, err
	}
	_, err = q.control.CreateStream(ctx, jetstream.StreamConfig{
		Name: name, Subjects: []string{name + ".>"}, Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, AllowAtomicPublish: p.atomic,
	})
	if err == nil && w.keys == 0 {
		err = q.subscribe(ctx, "all", name+".>")
	}
	return q, err
}

type jetStreamQueue struct {
	peer    *jetStream
	name    string
	keys    int
	shards  int
	control jetstream.JetStream

	mu          sync.Mutex
	connections []*nats.Conn
	consumers   []string
}

// subscribe makes a durable consumer of a subject.
func (q *jetStreamQueue) subscribe(ctx context.Context, durable, subject string) error {
	_, err := q.control.CreateConsumer(ctx, q.name, jetstream.ConsumerConfig{
		Durable: durable, FilterSubject: subject, AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Minute, MaxAckPending: 100_000,
	})
	q.mu.Lock()
	q.consumers = append(q.consumers, durable)
	q.mu.Unlock()
	return err
}

func (q *jetStreamQueue) connect() (*nats.Conn, error) {
	connection, err := nats.Connect(q.peer.url)
	if err == nil {
		q.mu.Lock()
		q.connections = append(q.connections, connection)
		q.mu.Unlock()
	}
	return connection, err
}

// subject has the shard of a key in front of it. Each shard has one consumer, which is how JetStream keeps the order of a key
// while several consumers work.
func (q *jetStreamQueue) subject(m message) string {
	if m.key < 0 {
		return q.name + ".all"
	}
	return fmt.Sprintf("%s.%d.%d", q.name, m.key%q.shards, m.key)
}

func (q *jetStreamQueue) producer(context.Context) (produce, error) {
	connection, err := q.connect()
	if err != nil {
		return nil, err
	}
	stream, err := jetstream.New(connection)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, messages []message) error {
		switch {
		case len(messages) == 1:
			_, err := stream.Publish(ctx, q.subject(messages[0]), messages[0].body)
			return err
		case q.peer.atomic:
			return q.publishAtomic(ctx, connection, messages)
		default:
			return q.publishAsync(ctx, stream, messages)
		}
	}, nil
}

// publishAsync sends all and then waits for the confirmation of each.
func (q *jetStreamQueue) publishAsync(ctx context.Context, stream jetstream.JetStream, messages []message) error {
	futures := make([]jetstream.PubAckFuture, len(messages))
	for i, m := range messages {
		var err error
		if futures[i], err = stream.PublishAsync(q.subject(m), m.body); err != nil {
			return err
		}
	}
	for _, future := range futures {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// publishAtomic sends the messages as an atomic batch: numbered under one id, the last one asks for the commit.
func (q *jetStreamQueue) publishAtomic(ctx context.Context, connection *nats.Conn, messages []message) error {
	id := nats.NewInbox()[len(nats.InboxPrefix):]
	for i, m := range messages {
		out := nats.NewMsg(q.subject(m))
		out.Data = m.body
		out.Header.Set("Nats-Batch-Id", id)
		out.Header.Set("Nats-Batch-Sequence", strconv.Itoa(i+1))
		if i < len(messages)-1 {
			if err := connection.PublishMsg(out); err != nil {
				return err
			}
			continue
		}
		out.Header.Set("Nats-Batch-Commit", "1")
		answer, err := connection.RequestMsgWithContext(ctx, out)
		if err != nil {
			return err
		}
		var confirmed struct {
			Error any `json:"error"`
			Count int `json:"count"`
		}
		if err := json.Unmarshal(answer.Data, &confirmed); err != nil || confirmed.Error != nil || confirmed.Count != len(messages) {
			return fmt.Errorf("batch of %d answered %s", len(messages), answer.Data)
		}
	}
	return nil
}

func (q *jetStreamQueue) consumer(ctx context.Context, i int) (consume, error) {
	connection, err := q.connect()
	if err != nil {
		return nil, err
	}
	stream, err := jetstream.New(connection)
	if err != nil {
		return nil, err
	}
	durable := "all"
	if q.keys > 0 {
		durable = fmt.Sprintf("shard-%d", i)
		if err := q.subscribe(ctx, durable, fmt.Sprintf("%s.%d.*", q.name, i)); err != nil {
			return nil, err
		}
	}
	c, err := stream.Consumer(ctx, q.name, durable)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, handle func(sequence int64)) error {
		batch, err := c.Fetch(fetch, jetstream.FetchMaxWait(idle))
		if err != nil {
			return err
		}
		for m := range batch.Messages() {
			sequence, err := parseSequence(m.Data())
			if err != nil {
				return err
			}
			handle(sequence)
			if err := m.Ack(); err != nil {
				return err
			}
		}
		return batch.Error()
	}, nil
}

// settle waits until the server has seen all acknowledgments, which are not confirmed one by one.
func (q *jetStreamQueue) settle(ctx context.Context) error {
	for _, durable := range q.consumers {
		for {
			c, err := q.control.Consumer(ctx, q.name, durable)
			if err != nil {
				return err
			}
			if info := c.CachedInfo(); info.NumAckPending == 0 && info.NumPending == 0 {
				break
			}
			time.Sleep(5 * time.Millisecond) // poll of a foreign server, bounded by ctx in the call above
		}
	}
	return nil
}

func (q *jetStreamQueue) close() {
	ctx, stop := context.WithTimeout(context.Background(), stopLimit)
	defer stop()
	_ = q.control.DeleteStream(ctx, q.name)
	for _, connection := range q.connections {
		connection.Close()
	}
}
