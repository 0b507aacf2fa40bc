package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// redisStreams is Debian's Redis with a stream and a consumer group; the append-only file is flushed before every answer.
type redisStreams struct {
	process *child
	client  *redis.Client
}

func (p *redisStreams) start(ctx context.Context, dir string) (string, error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return "", fmt.Errorf("redis-server %w (tools/setup.sh peers)", errNotInstalled)
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	p.client = redis.NewClient(&redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", port), PoolSize: 512, MaxRetries: -1})
	p.process, err = startServer(ctx, nil, func(ctx context.Context) error { return p.client.Ping(ctx).Err() }, program,
		"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir, "--appendonly", "yes", "--appendfsync", "always", "--save", "")
	if err != nil {
		return "", err
	}
	info := p.client.InfoMap(ctx, "server")
	return "Redis " + info.Item("Server", "redis_version"), info.Err()
}

func (p *redisStreams) programs() []program { return []program{p.process.program("redis")} }

func (p *redisStreams) stop() {
	if p.client != nil {
		_ = p.client.Close()
	}
	p.process.stop()
}

func (p *redisStreams) open(ctx context.Context, name string, w workload) (queue, error) {
	if w.keys > 0 {
		return nil, errNotOffered
	}
	return &redisQueue{client: p.client, name: name}, p.client.XGroupCreateMkStream(ctx, name, "bench", "0").Err()
}

type redisQueue struct {
	client *redis.Client
	name   string
}

func (q *redisQueue) producer(context.Context) (produce, error) {
	return func(ctx context.Context, messages []message) error {
		_, err := q.client.Pipelined(ctx, func(pipeline redis.Pipeliner) error {
			for _, m := range messages {
				pipeline.XAdd(ctx, &redis.XAddArgs{Stream: q.name, Values: []any{"body", m.body}})
			}
			return nil
		})
		return err
	}, nil
}

// consumer acknowledges and leaves the entries in the stream, as a log does.
func (q *redisQueue) consumer(_ context.Context, i int) (consume, error) {
	read := &redis.XReadGroupArgs{Group: "bench", Consumer: strconv.Itoa(i), Streams: []string{q.name, ">"}, Count: fetch, Block: idle}
	return func(ctx context.Context, handle func(sequence int64)) error {
		streams, err := q.client.XReadGroup(ctx, read).Result()
		if errors.Is(err, redis.Nil) {
			return nil
		}
		if err != nil {
			return err
		}
		var ids []string
		for _, entry := range streams[0].Messages {
			body, _ := entry.Values["body"].(string)
			sequence, err := parseSequence([]byte(body))
			if err != nil {
				return err
			}
			handle(sequence)
			ids = append(ids, entry.ID)
		}
		acknowledged, err := q.client.XAck(ctx, q.name, "bench", ids...).Result()
		if err == nil && acknowledged != int64(len(ids)) {
			err = fmt.Errorf("%d of %d acknowledged", acknowledged, len(ids))
		}
		return err
	}, nil
}

func (q *redisQueue) settle(context.Context) error { return nil }

// close gives the memory of the stream back.
func (q *redisQueue) close() { q.client.Del(context.Background(), q.name) }
