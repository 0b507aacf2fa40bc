package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverPeer is River, a job queue in a Go program with one row a job. Its server is PostgreSQL; the processor time of its
// own code, which runs in this program, is not counted.
type riverPeer struct{ database *database }

func (p *riverPeer) start(ctx context.Context, dir string) (string, error) {
	var err error
	if p.database, err = startDatabase(ctx, dir); err != nil {
		return "", err
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(p.database.pool), nil)
	if err != nil {
		return "", err
	}
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return "River " + moduleVersion("github.com/riverqueue/river") + " on " + p.database.version, err
}

func (p *riverPeer) programs() []program { return []program{p.database.program()} }
func (p *riverPeer) stop()               { p.database.stop() }

// A job carries one message as it is.
type job struct {
	Message json.RawMessage `json:"message"`
}

func (job) Kind() string { return "job" }

type riverQueue struct {
	peer   *riverPeer
	name   string
	client *river.Client[pgx.Tx]
	worked chan int64
}

// riverWorkers is how many jobs River works on at once, and so the most it fetches at once.
const riverWorkers = 1000

func (p *riverPeer) open(ctx context.Context, name string, w workload) (queue, error) {
	if w.keys > 0 {
		return nil, errNotOffered
	}
	q := &riverQueue{peer: p, name: name, worked: make(chan int64, riverWorkers)}
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(q.work))
	var err error
	q.client, err = river.NewClient(riverpgxv5.New(p.database.pool), &river.Config{
		Queues: map[string]river.QueueConfig{name: {MaxWorkers: riverWorkers}}, Workers: workers, Logger: slog.New(slog.DiscardHandler),
		FetchCooldown: 10 * time.Millisecond, FetchPollInterval: 100 * time.Millisecond,
	})
	if err != nil {
		return nil, err
	}
	return q, q.client.Start(ctx)
}

func (q *riverQueue) work(ctx context.Context, j *river.Job[job]) error {
	sequence, err := parseSequence(j.Args.Message)
	if err != nil {
		return err
	}
	select {
	case q.worked <- sequence:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (q *riverQueue) producer(context.Context) (produce, error) {
	var parameters []river.InsertManyParams
	options := &river.InsertOpts{Queue: q.name}
	return func(ctx context.Context, messages []message) error {
		parameters = parameters[:0]
		for _, m := range messages {
			parameters = append(parameters, river.InsertManyParams{Args: job{m.body}, InsertOpts: options})
		}
		n, err := q.client.InsertManyFast(ctx, parameters)
		if err == nil && n != len(messages) {
			err = fmt.Errorf("%d of %d jobs inserted", n, len(messages))
		}
		return err
	}, nil
}

// consumer counts what River's own workers have worked; River completes jobs in batches of its own soon after.
func (q *riverQueue) consumer(context.Context, int) (consume, error) {
	return func(ctx context.Context, handle func(sequence int64)) error {
		return receive(ctx, q.worked, handle)
	}, nil
}

// receive hands over what arrives on a channel: at most fetch, or nothing after idle.
func receive(ctx context.Context, from <-chan int64, handle func(sequence int64)) error {
	timer := time.NewTimer(idle)
	defer timer.Stop()
	select {
	case sequence := <-from:
		handle(sequence)
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
	for range fetch - 1 {
		select {
		case sequence := <-from:
			handle(sequence)
		default:
			return nil
		}
	}
	return nil
}

// settle waits until every job is completed in the table.
func (q *riverQueue) settle(ctx context.Context) error {
	for ctx.Err() == nil {
		var open bool
		if err := q.peer.database.pool.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM river_job WHERE queue = $1 AND state <> 'completed')`, q.name).Scan(&open); err != nil || !open {
			return err
		}
		time.Sleep(10 * time.Millisecond) // poll of a foreign table, bounded by ctx
	}
	return errors.New("jobs are not completed")
}

func (q *riverQueue) close() {
	ctx, stop := context.WithTimeout(context.Background(), stopLimit)
	defer stop()
	_ = q.client.StopAndCancel(ctx)
}
