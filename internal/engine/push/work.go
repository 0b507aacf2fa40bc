package push

import (
	"sync"

	"github.com/google/uuid"

	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// A ref names one item of one call.
type ref struct {
	call *call
	item int32
}

func (r ref) verdict() *Verdict { return &r.call.verdicts[r.item] }

// A work is one segment on its way: the items it is made of and what is left of them after each round.
type work struct {
	group     *group // nil outside the shards
	tenant    uuid.UUID
	queue     string
	partition string
	runs      []run
	// refs are the frames still to be stored, in order; hashes has 16 bytes for each.
	refs   []ref
	hashes []byte
	// followers repeat the id of another request's item of this segment.
	followers []workFollower
	seen      map[[segment.HashBytes]byte]int32
	blob      []byte
	traces    []pg.FrameTrace
	// sealer encrypts every payload of the segment; nil leaves them plain.
	sealer Sealer
	// plain tells that the last pack put a payload in as it is.
	plain bool
	// repeats keeps ids that come again: the queue does not de-duplicate and they were accepted one after the other.
	repeats bool
	// failure is why the segment failed as a whole; nil when it did not.
	failure error
	// abandoned is how many items of the last run's part failed with it, see [shard.abandonRest].
	abandoned int
}

type workFollower struct{ leader, item ref }

var works = sync.Pool{New: func() any { return new(work) }}

// maxPooledRefs keeps one huge segment from pinning its tables.
const maxPooledRefs = 4096

func newWork(g *group, p *part) *work {
	w := works.Get().(*work) //nolint:forcetypeassert // the pool holds nothing else
	w.group, w.tenant, w.queue, w.partition = g, p.call.tenant, p.queue, p.partition
	return w
}

// free gives the tables back. Nothing may hold w, or the pg.Segment made from it, afterwards.
func (w *work) free() {
	if cap(w.refs) > maxPooledRefs {
		return
	}
	// What lies behind the lengths was cleared when it was cut off.
	clear(w.runs)
	clear(w.refs)
	clear(w.followers)
	clear(w.seen)
	*w = work{
		runs: w.runs[:0], refs: w.refs[:0], hashes: w.hashes[:0], followers: w.followers[:0],
		seen: w.seen, traces: w.traces[:0],
	}
	works.Put(w)
}

// prepare lists the frames and takes out ids that several requests of this segment brought: the first one leads. Repeats
// inside a request were taken out before.
func (w *work) prepare() {
	fused := len(w.runs) > 1 && !w.repeats // each run is another request
	if fused && w.seen == nil {
		w.seen = make(map[[segment.HashBytes]byte]int32)
	}
	for _, r := range w.runs {
		c := r.part.call
		for _, item := range r.part.items[r.from:r.to] {
			v := &c.verdicts[item]
			if v.TransactionID == "" {
				v.TransactionID = v.MessageID.String()
				c.hashes[item] = segment.Hash(v.TransactionID)
			}
			h := &c.hashes[item]
			if fused {
				if first, repeated := w.seen[*h]; repeated {
					w.followers = append(w.followers, workFollower{leader: w.refs[first], item: ref{c, item}})
					continue
				}
				w.seen[*h] = int32(len(w.refs)) //nolint:gosec // bounded by the segment cap
			}
			w.refs = append(w.refs, ref{c, item})
			w.hashes = append(w.hashes, h[:]...)
		}
	}
}

// pack encodes the frames that are left. An item that does not fit into a segment is given to refuse and left out.
func (w *work) pack(packer *segment.Packer, refuse func(ref, error)) error {
	b := packer.Build()
	defer b.Discard()
	w.plain = false
	w.traces = w.traces[:0]
	kept := 0
	for i, r := range w.refs {
		it, v := &r.call.items[r.item], r.verdict()
		frame := segment.Frame{
			ID:            v.MessageID,
			TraceID:       it.TraceID,
			Context:       it.Context,
			TransactionID: v.TransactionID,
			ProducerSub:   r.call.producerSub,
			Payload:       it.Payload,
		}
		switch {
		case r.call.sealed != nil && r.call.sealed[r.item]:
			frame.Encrypted = true
		case w.sealer != nil:
			frame.Encrypted, frame.Payload = true, w.sealer.Seal(it.Payload)
		default:
			w.plain = true
		}
		err := b.Append(&frame)
		if err != nil {
			refuse(r, err)
			continue
		}
		if it.TraceID.Valid {
			w.traces = append(w.traces, pg.FrameTrace{Frame: kept, ID: it.TraceID.UUID})
		}
		w.keep(kept, i)
		kept++
	}
	w.truncate(kept)
	if kept == 0 {
		return nil
	}
	var err error
	w.blob, err = b.Finish()
	return err
}

// keep moves frame from to place to, which is not behind it.
func (w *work) keep(to, from int) {
	if to == from {
		return
	}
	w.refs[to] = w.refs[from]
	copy(w.hashes[to*segment.HashBytes:(to+1)*segment.HashBytes], w.hashes[from*segment.HashBytes:])
}

func (w *work) truncate(n int) {
	clear(w.refs[n:])
	w.refs = w.refs[:n]
	w.hashes = w.hashes[:n*segment.HashBytes]
}

// segment returns the form the store takes. It shares the tables of w.
func (w *work) segment() pg.Segment {
	s := pg.Segment{
		Tenant: w.tenant, Queue: w.queue, Partition: w.partition,
		Count: len(w.refs), Hashes: w.hashes, Verified: -1, Blob: w.blob, Plain: w.plain,
	}
	if len(w.traces) > 0 {
		s.Traces = w.traces
	}
	return s
}

// fail gives every frame that is left the same failure.
func (w *work) fail(err error) {
	w.failure = err
	for _, r := range w.refs {
		r.verdict().fail(err)
	}
	w.truncate(0)
}

// settle makes sure that every item of w has its verdict: repeats follow their leaders, and what nobody decided failed
// with err.
func (w *work) settle(err error) {
	for _, f := range w.followers {
		leader := f.leader.verdict()
		if leader.Status == "" {
			leader.fail(err)
		}
		f.item.verdict().inherit(leader)
	}
	for _, r := range w.runs {
		for _, item := range r.part.items[r.from:r.to] {
			if v := &r.part.call.verdicts[item]; v.Status == "" {
				v.fail(err)
				w.failure = err
			}
		}
	}
}

func (v *Verdict) fail(err error) {
	v.Status, v.Err = StatusFailed, err
}
