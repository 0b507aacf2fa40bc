package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/http"

	"github.com/google/uuid"

	"queenmq/bench/payload"
)

// push sends batches of new messages through HTTP; each request names one partition.
func (b *bench) push(ctx context.Context, batch, producers int) (result, error) {
	r, err := b.measured(ctx, func(ctx context.Context) (result, error) {
		return closedLoop(ctx, b.options.warmUp, b.options.length, b.pushers(batch, producers))
	})
	if err != nil {
		return r, err
	}
	return r, b.verifyStored(ctx, r.counted)
}

func (b *bench) pushers(batch, producers int) []worker {
	workers := make([]worker, producers)
	for i := range workers {
		p := b.newPusher(uint64(i))
		workers[i] = func(ctx context.Context) (int, error) {
			name := lane(b.sequence.Add(1), b.options.partitions)
			return batch, p.push(ctx, batch, func(int) string { return name })
		}
	}
	return workers
}

// A pusher builds push requests in a buffer of its own.
type pusher struct {
	b      *bench
	source *payload.Source
	ids    *rand.Rand
	body   []byte
	next   int64
}

func (b *bench) newPusher(seed uint64) *pusher {
	return &pusher{b: b, source: payload.NewSource(b.options.payload, b.options.size, seed), ids: rand.New(rand.NewPCG(rand.Uint64(), seed))}
}

// push sends batch messages; partition names the lane of the k-th.
func (p *pusher) push(ctx context.Context, batch int, partition func(k int) string) error {
	p.body = append(p.body[:0], `{"items":[`...)
	for k := range batch {
		if k > 0 {
			p.body = append(p.body, ',')
		}
		p.next++
		p.body = append(append(p.body, `{"queue":"`...), p.b.queue...)
		p.body = append(append(p.body, `","partition":"`...), partition(k)...)
		p.body = append(p.appendID(append(p.body, `","transactionId":"`...)), `","payload":`...)
		p.body = append(p.source.Append(p.body, p.next), '}')
	}
	p.body = append(p.body, "]}"...)
	answer, status, err := p.b.call(ctx, http.MethodPost, "/api/v1/push", p.body)
	if err != nil {
		return err
	}
	if n := bytes.Count(answer, []byte(`"queued"`)); status != http.StatusCreated || n != batch {
		return fmt.Errorf("push answered %d with %d of %d queued: %.300s", status, n, batch, answer)
	}
	return nil
}

// appendID appends a new transaction id, a random UUID.
func (p *pusher) appendID(dst []byte) []byte {
	var id uuid.UUID
	binary.NativeEndian.PutUint64(id[:], p.ids.Uint64())
	binary.NativeEndian.PutUint64(id[8:], p.ids.Uint64())
	var text [36]byte
	hex.Encode(text[:], id[:4])
	hex.Encode(text[9:], id[4:6])
	hex.Encode(text[14:], id[6:8])
	hex.Encode(text[19:], id[8:10])
	hex.Encode(text[24:], id[10:])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return append(dst, text[:]...)
}

// call sends one request on a kept-alive connection and reads the whole answer.
func (b *bench) call(ctx context.Context, method, path string, body []byte) ([]byte, int, error) {
	return b.lines.call(ctx, method, path, body)
}

// dedup pushes with the duplicate check on and then off, on two queues, and reports the ratio.
func (b *bench) dedup(ctx context.Context) (result, error) {
	on, err := b.push(ctx, 100, b.options.producers)
	if err != nil {
		return on, err
	}
	off := &bench{stand: b.stand, queue: b.queue + ".off", lines: b.lines}
	if err := off.configure(ctx, `{"dedupWindowSeconds":0}`); err != nil {
		return on, err
	}
	without, err := off.push(ctx, 100, b.options.producers)
	on.note = fmt.Sprintf("duplicate check off: %.0f messages/s, on/off %.2f", without.rate(), on.rate()/without.rate())
	return on, err
}

func (b *bench) configure(ctx context.Context, options string) error {
	answer, status, err := b.call(ctx, http.MethodPost, "/api/v1/configure", fmt.Appendf(nil, `{"queue":%q,"options":%s}`, b.queue, options))
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("configure answered %d: %s", status, answer)
	}
	return err
}
