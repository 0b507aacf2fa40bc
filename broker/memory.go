package broker

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// leastPercent and mostPercent bound how much of what is alive the collector lets the heap grow by: below, it would do little but collect;
	// above, a heap that grows fast would be far over its goal before anybody looks.
	leastPercent, mostPercent = 15, 400
	// sameWithin is the difference in percent below which the collector is left alone: setting it stops the world for a moment.
	sameWithin = 10
	// restLook is how often it is looked whether the broker rests, restBytes how much it allocates in that time at most when it does: what
	// thousands of parked pops and hundreds of messages a second need.
	restLook, restBytes = 2 * time.Second, 4 << 20
	// returnBytes is what is worth a collection to be given back.
	returnBytes = 8 << 20
)

// PaceMemory keeps the heap of the process at what is alive plus about cfg.Server.HeapHeadroom, until ctx ends: Go's own rule is twice what is
// alive, which is too little for a small heap (the collector runs all the time) and too much for a large one. It is for programs that are
// nothing but a broker, since it concerns the whole process, and does nothing where the headroom is 0 or GOGC says what is wanted.
// When the broker rests after load, it gives the memory back that the load needed, the buffers kept for reuse included.
func PaceMemory(ctx context.Context, cfg *Config) {
	headroom := cfg.Server.HeapHeadroom << 20
	if headroom <= 0 || os.Getenv("GOGC") != "" {
		<-ctx.Done()
		return
	}
	collected := make(chan struct{}, 1)
	collected <- struct{}{}
	notifyCollections(ctx, collected)
	current := debug.SetGCPercent(100)
	before := current
	defer func() { debug.SetGCPercent(before) }()
	looks := time.NewTicker(restLook)
	defer looks.Stop()
	var resting rest
	for {
		select {
		case <-ctx.Done():
			return
		case <-looks.C:
			if resting.look(heapUse()) {
				runtime.GC() // buffers kept for reuse survive one collection
				debug.FreeOSMemory()
			}
		case <-collected:
			if wanted := heapPercent(headroom, aliveBytes()); max(wanted, current)-min(wanted, current) > current*sameWithin/100 {
				debug.SetGCPercent(wanted)
				current = wanted
			}
		}
	}
}

// heapPercent is by how much of what is alive the heap may grow.
func heapPercent(headroom, alive int64) int {
	return int(min(max(100*headroom/max(alive, 1), leastPercent), mostPercent))
}

// aliveBytes is what the collector counts as alive: objects that the last collection found, stacks and globals.
func aliveBytes() int64 {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}
	metrics.Read(samples)
	alive := int64(0)
	for _, sample := range samples {
		if sample.Value.Kind() == metrics.KindUint64 {
			alive += int64(sample.Value.Uint64()) //nolint:gosec // bytes of memory
		}
	}
	return alive
}

// A rest tells when the broker has come to rest after load.
type rest struct {
	allocated uint64
	returned  bool
}

// look takes how much has been allocated so far and how much memory is kept without need, and tells whether it is time to give it back: once
// after every time of load.
func (r *rest) look(allocated, spare uint64) bool {
	since := allocated - r.allocated
	r.allocated = allocated
	switch {
	case since > restBytes:
		r.returned = false
		return false
	case r.returned || spare < returnBytes:
		return false
	}
	r.returned = true
	return true
}

// heapUse returns how many bytes were allocated so far, and how many of the heap hold nothing that is known to be alive but are not given back.
func heapUse() (allocated, spare uint64) {
	samples := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/gc/heap/live:bytes"},
	}
	metrics.Read(samples)
	for i := range samples {
		if samples[i].Value.Kind() != metrics.KindUint64 {
			return 0, 0
		}
	}
	spare = samples[1].Value.Uint64() + samples[2].Value.Uint64()
	if objects, live := samples[3].Value.Uint64(), samples[4].Value.Uint64(); objects > live {
		spare += objects - live
	}
	return samples[0].Value.Uint64(), spare
}

// A collectionMark becomes garbage at once, so that its finalizer runs after the next collection. It is large enough not to share a block with
// other objects, which could keep it alive.
type collectionMark [32]byte

// notifyCollections sends a token after every collection until ctx ends.
func notifyCollections(ctx context.Context, collected chan<- struct{}) {
	runtime.SetFinalizer(&collectionMark{}, func(*collectionMark) {
		if ctx.Err() != nil {
			return
		}
		select {
		case collected <- struct{}{}:
		default:
		}
		notifyCollections(ctx, collected)
	})
}
