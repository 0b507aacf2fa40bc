package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"

	"github.com/google/uuid"

	"queenmq/bench/payload"
	"queenmq/internal/engine/segment"
)

// ceiling stores ready-made segments of batch messages with direct calls of log_push_multi_v1, bundle segments a call:
// what PostgreSQL gives when nothing is in front of it. The blobs are packed before the clock starts and repeat; the
// hashes are new in every call, so that the duplicate probe does its real work.
func (b *bench) ceiling(ctx context.Context, batch, bundle int) (result, error) {
	workers := make([]worker, b.options.producers)
	for i := range workers {
		blobs, err := b.readyMade(uint64(i), batch)
		if err != nil {
			return result{}, err
		}
		workers[i] = b.segmentPusher(blobs, batch, bundle)
	}
	r, err := b.measured(ctx, func(ctx context.Context) (result, error) {
		return closedLoop(ctx, b.options.warmUp, b.options.length, workers)
	})
	if err != nil {
		return r, err
	}
	return r, b.verifyStored(ctx, r.counted)
}

// readyMade packs a few segments.
func (b *bench) readyMade(seed uint64, batch int) ([][]byte, error) {
	source := payload.NewSource(b.options.payload, b.options.size, seed)
	blobs := make([][]byte, 16)
	for k := range blobs {
		frames := make([]segment.Frame, batch)
		for f := range frames {
			frames[f] = segment.Frame{ID: segment.NewID(), TransactionID: uuid.NewString(), Payload: source.Append(nil, int64(f))}
		}
		var err error
		if blobs[k], _, err = segment.Pack(frames); err != nil {
			return nil, err
		}
	}
	return blobs, nil
}

// segmentHashes returns a function that makes the hashes of one segment, new ones each time.
func segmentHashes(messages int) func() []byte {
	return func() []byte {
		hashes := make([]byte, segment.HashBytes*messages)
		_, _ = rand.Read(hashes)
		return hashes
	}
}

func (b *bench) segmentPusher(blobs [][]byte, batch, bundle int) worker {
	queues, counts, verified := make([]string, bundle), make([]int32, bundle), make([]int64, bundle)
	for i := range bundle {
		queues[i], counts[i], verified[i] = b.queue, int32(batch), -1
	}
	connection, fresh := b.connection(), segmentHashes(batch)
	return func(ctx context.Context) (int, error) {
		conn, err := connection(ctx)
		if err != nil {
			return 0, err
		}
		partitions, hashes, chosen := make([]string, bundle), make([][]byte, bundle), make([][]byte, bundle)
		first := b.sequence.Add(int64(bundle))
		for i := range bundle {
			partitions[i] = lane(first+int64(i), b.options.partitions)
			chosen[i] = blobs[(first+int64(i))%int64(len(blobs))]
			hashes[i] = fresh()
		}
		var answer []byte
		if err := conn.QueryRow(ctx, `SELECT queen.log_push_multi_v1($1, $2, $3, $4, $5, $6)`, queues, partitions, counts, hashes, verified, chosen).Scan(&answer); err != nil {
			return 0, err
		}
		if n := bytes.Count(answer, []byte(`"queued"`)); n != bundle {
			return 0, fmt.Errorf("%d of %d segments queued: %s", n, bundle, answer)
		}
		return batch * bundle, nil
	}
}

// rows inserts one row per commit from as many connections as push-1 has producers: what a queue table without fusion costs.
func (b *bench) rows(ctx context.Context) (result, error) {
	_, err := b.pool.Exec(ctx, `DROP TABLE IF EXISTS public.bench_rows; CREATE TABLE public.bench_rows (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea NOT NULL)`)
	if err != nil {
		return result{}, err
	}
	workers := make([]worker, b.options.singles)
	for i := range workers {
		source, connection := payload.NewSource(b.options.payload, b.options.size, uint64(i)), b.connection()
		var body []byte
		workers[i] = func(ctx context.Context) (int, error) {
			conn, err := connection(ctx)
			if err != nil {
				return 0, err
			}
			body = source.Append(body[:0], 1)
			_, err = conn.Exec(ctx, `INSERT INTO public.bench_rows (body) VALUES ($1)`, body)
			return 1, err
		}
	}
	return b.measured(ctx, func(ctx context.Context) (result, error) {
		return closedLoop(ctx, b.options.warmUp, b.options.length, workers)
	})
}
