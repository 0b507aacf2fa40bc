package pop

import (
	"math"
	"slices"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/pg"
)

// Kind says what a pop claims from.
type Kind int

const (
	// Queue claims from any partitions of one queue.
	Queue Kind = iota
	// Partition claims from exactly one partition.
	Partition
	// Discovery claims from every queue with the given namespace and task.
	Discovery
)

const (
	// MaxBatch is the most messages one pop delivers, however many it asks for: an answer is built in memory.
	MaxBatch = 10_000
	// MaxLeaseSeconds is the longest lease a pop can ask for: 30 days. Longer wishes are cut to it.
	MaxLeaseSeconds = 30 * 24 * 60 * 60
	// MaxTimeout is the longest long poll. Longer wishes are cut to it.
	MaxTimeout = 24 * time.Hour
)

// A Request asks for messages.
type Request struct {
	Tenant uuid.UUID
	Kind   Kind
	// Queue is read by Queue and Partition pops, Partition by Partition pops.
	Queue, Partition string
	// Namespace and Task are read by Discovery pops; an empty one matches everything, and at least one should be given.
	Namespace, Task string
	// Group is the consumer group; empty means none (pg.QueueModeGroup).
	Group string
	// Batch is the most messages of the whole answer; below 1 acts as 1, above MaxBatch as MaxBatch.
	Batch int
	// MaxPartitions is the most partitions to claim; 0 or less is no cap. Partition pops ignore it.
	MaxPartitions int
	// AutoAck commits the cursor inside the pop: at most once, and no lease.
	AutoAck bool
	// Wait keeps an empty pop open until Timeout, at most MaxTimeout.
	Wait    bool
	Timeout time.Duration
	// LeaseSeconds overrides the queue's lease time when it is positive, at most MaxLeaseSeconds.
	LeaseSeconds int
	// SubMode and SubFrom seed the cursor of a group that has none, as the client sent them. An empty SubMode is the
	// server's default.
	SubMode, SubFrom string
	// Suspends says that the caller has better places to wait than the stack it called from: where the pop would wait for messages it returns
	// a [SuspendedError] instead. Only queue pops of the hot list do.
	Suspends bool
}

// concerns says whether a wake for these partitions is worth a look.
func (r *Request) concerns(partitions []string) bool {
	return r.Kind != Partition || slices.Contains(partitions, r.Partition)
}

// claim returns the request in the form the database door takes, with a lease id of its own. Several attempts of one request share
// it, so that a claim whose answer got lost is not followed by a second one under another id.
func (r *Request) claim(worker, defaultMode string) pg.PopRequest {
	group := r.Group
	if group == "" {
		group = pg.QueueModeGroup
	}
	mode := r.SubMode
	if mode == "" {
		mode = defaultMode
	}
	partitions := r.MaxPartitions
	if partitions < 0 || partitions > math.MaxInt32 {
		partitions = 0
	}
	return pg.PopRequest{
		Tenant:        r.Tenant,
		Queue:         r.Queue,
		Partition:     r.Partition,
		Namespace:     r.Namespace,
		Task:          r.Task,
		Group:         group,
		Budget:        min(max(r.Batch, 1), MaxBatch),
		Worker:        worker,
		AutoAck:       r.AutoAck,
		MaxPartitions: partitions,
		SubMode:       subscriptionMode(mode),
		SubFrom:       subscriptionFrom(r.Kind, r.SubFrom),
	}
}
