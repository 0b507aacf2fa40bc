package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// rabbitMQ is Debian's RabbitMQ with quorum queues. It runs as this program's user with everything below its own directory,
// and with a port mapper of its own, so that no daemon is left behind.
type rabbitMQ struct {
	mapper, broker *child
	url            string
}

// rabbitPrograms are where Debian puts the server's own scripts; those on PATH change the user first.
const rabbitPrograms = "/usr/lib/rabbitmq/bin"

func (p *rabbitMQ) start(ctx context.Context, dir string) (string, error) {
	program := filepath.Join(rabbitPrograms, "rabbitmq-server")
	if _, err := os.Stat(program); err != nil {
		return "", fmt.Errorf("RabbitMQ %w (tools/setup.sh peers)", errNotInstalled)
	}
	var ports [3]int // of the mapper, of the broker, and between nodes
	for i := range ports {
		var err error
		if ports[i], err = freePort(); err != nil {
			return "", err
		}
	}
	environment := []string{
		"HOME=" + dir, // where Erlang keeps its cookie
		"ERL_EPMD_ADDRESS=127.0.0.1", fmt.Sprintf("ERL_EPMD_PORT=%d", ports[0]),
		"RABBITMQ_NODENAME=peers@localhost", "RABBITMQ_NODE_IP_ADDRESS=127.0.0.1", fmt.Sprintf("RABBITMQ_NODE_PORT=%d", ports[1]), fmt.Sprintf("RABBITMQ_DIST_PORT=%d", ports[2]),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
		"RABBITMQ_MNESIA_BASE=" + filepath.Join(dir, "data"), "RABBITMQ_LOG_BASE=" + filepath.Join(dir, "log"), "RABBITMQ_PID_FILE=" + filepath.Join(dir, "pid"),
		"RABBITMQ_CONF_ENV_FILE=" + filepath.Join(dir, "none"), "RABBITMQ_CONFIG_FILE=" + filepath.Join(dir, "none"), "RABBITMQ_ADVANCED_CONFIG_FILE=" + filepath.Join(dir, "none"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(dir, "plugins"),
		"RUNNING_UNDER_SYSTEMD=true", // the script then becomes the server, which ends on SIGTERM
	}
	var err error
	if p.mapper, err = startServer(ctx, environment, func(context.Context) error { return nil }, "epmd"); err != nil {
		return "", err
	}
	p.url = fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", ports[1])
	version := ""
	p.broker, err = startServer(ctx, environment, func(context.Context) error {
		connection, err := amqp.Dial(p.url)
		if err != nil {
			return err
		}
		version = fmt.Sprintf("RabbitMQ %v", connection.Properties["version"])
		return connection.Close()
	}, program)
	return version, err
}

func (p *rabbitMQ) programs() []program { return []program{p.broker.program("rabbitmq")} }

func (p *rabbitMQ) stop() {
	p.broker.stop()
	p.mapper.stop()
}

func (p *rabbitMQ) open(_ context.Context, name string, w workload) (queue, error) {
	if w.keys > 0 {
		return nil, errNotOffered
	}
	q := &rabbitQueue{url: p.url, name: name}
	channel, err := q.channel()
	if err != nil {
		return nil, err
	}
	_, err = channel.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	return q, err
}

type rabbitQueue struct {
	url, name string

	mu          sync.Mutex
	connections []*amqp.Connection
	channels    int
}

// perConnection is how many channels share a connection.
const perConnection = 8

func (q *rabbitQueue) channel() (*amqp.Channel, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.channels%perConnection == 0 {
		connection, err := amqp.Dial(q.url)
		if err != nil {
			return nil, err
		}
		q.connections = append(q.connections, connection)
	}
	q.channels++
	return q.connections[len(q.connections)-1].Channel()
}

func (q *rabbitQueue) producer(context.Context) (produce, error) {
	channel, err := q.channel()
	if err != nil {
		return nil, err
	}
	if err := channel.Confirm(false); err != nil {
		return nil, err
	}
	return func(ctx context.Context, messages []message) error {
		confirmations := make([]*amqp.DeferredConfirmation, len(messages))
		for i, m := range messages {
			var err error
			confirmations[i], err = channel.PublishWithDeferredConfirmWithContext(ctx, "", q.name, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: m.body})
			if err != nil {
				return err
			}
		}
		for _, confirmation := range confirmations {
			if stored, err := confirmation.WaitContext(ctx); err != nil || !stored {
				return errors.Join(errors.New("not confirmed"), err)
			}
		}
		return nil
	}, nil
}

func (q *rabbitQueue) consumer(context.Context, int) (consume, error) {
	channel, err := q.channel()
	if err != nil {
		return nil, err
	}
	if err := channel.Qos(2*fetch, 0, false); err != nil {
		return nil, err
	}
	deliveries, err := channel.Consume(q.name, "", false, false, false, false, nil)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, handle func(sequence int64)) error {
		timer := time.NewTimer(idle)
		defer timer.Stop()
		var last amqp.Delivery
		for n := 0; n < fetch; n++ {
			if n > 0 && len(deliveries) == 0 {
				break
			}
			select {
			case d, open := <-deliveries:
				if !open {
					return errors.New("the server closed the channel")
				}
				sequence, err := parseSequence(d.Body)
				if err != nil {
					return err
				}
				handle(sequence)
				last = d
			case <-timer.C:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return last.Ack(true)
	}, nil
}

// settle has nothing to ask for: the server answers no acknowledgment.
func (q *rabbitQueue) settle(context.Context) error { return nil }

func (q *rabbitQueue) close() {
	if channel, err := q.channel(); err == nil {
		_, _ = channel.QueueDelete(q.name, false, false, false)
	}
	for _, connection := range q.connections {
		_ = connection.Close()
	}
}
