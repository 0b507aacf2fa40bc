package pg

import (
	"time"

	"github.com/google/uuid"
)

// QueueModeGroup is the consumer group that stands for "no consumer group".
const QueueModeGroup = "__QUEUE_MODE__"

// A PopRequest asks for messages. Which fields count depends on the method it is given to.
type PopRequest struct {
	Tenant uuid.UUID
	Queue  string
	// Partition is read by PopSpecific only.
	Partition string
	// Namespace and Task are read by PopDiscover only; empty means any.
	Namespace, Task string
	// Group is the consumer group, QueueModeGroup for none.
	Group string
	// Budget is the most messages of the whole call; below 1 acts as 1.
	Budget int
	// LeaseSeconds is how long the batch is held; PopDiscover takes 0 as "each queue's own lease time".
	LeaseSeconds int
	// Worker is the lease id, new for every request.
	Worker string
	// AutoAck commits the cursor inside the pop; the claim runs in a transaction that ends after Accept.
	AutoAck bool
	// MaxPartitions is the most partitions one call may claim; 0 or less is no cap.
	MaxPartitions int
	// SubMode ("all" or "new") and SubFrom ("", "now" or RFC 3339) seed a missing cursor only.
	SubMode, SubFrom string
	// Candidates are the partition names PopList and PopReady try, in order; for PopReady without repetitions.
	Candidates []string
	// Workers, Budgets and Leases, given together and parallel to Candidates, make PopReady serve many pops at once: the lease id, the
	// most messages and the lease seconds of the pop that each candidate is for. Budget is their sum then, and Worker and
	// LeaseSeconds do not count.
	Workers         []string
	Budgets, Leases []int32
	// SkipWindow tells PopList and PopReady that the caller has applied the queue's windowBuffer itself.
	SkipWindow bool
	// MaxBytes is how many stored bytes PopReady claims at most, the first segment aside; 0 leaves it to the database, which never takes more
	// than 64 MiB and the segment that fills it.
	MaxBytes int64
	// Accept, when set together with AutoAck, sees the claim before it is committed. Its error rolls the claim back and is
	// returned, so that messages that cannot be rendered or sent are not acknowledged.
	Accept func(Claim) error
}

// A Claim is what one pop call took.
type Claim struct {
	Partitions []ClaimedPartition
	// States holds one verdict per evaluated candidate; PopList and PopReady only. PopReady's come with those that yielded first.
	States []CandidateState
}

// A ClaimedPartition is the batch taken from one partition, in offset order.
type ClaimedPartition struct {
	Queue       string
	Partition   string
	PartitionID uuid.UUID
	Segments    []ClaimedSegment
	// Poison says that the one message of the batch was delivered as often as its queue allows: it is to be filed, not delivered.
	Poison bool
}

// A ClaimedSegment is the part of one segment that belongs to a batch.
type ClaimedSegment struct {
	Base int64
	// StartIndex is the first frame of the batch inside the blob, Take the number of frames.
	StartIndex, Take int
	CreatedAt        time.Time
	Blob             []byte
}

// CandidateVerdict is PopList's word on one candidate.
type CandidateVerdict string

// The verdicts on a candidate. A candidate that was not reached gets none. PopList says "leased" for the last three.
const (
	CandidateTook  CandidateVerdict = "took"
	CandidateEmpty CandidateVerdict = "empty"
	// CandidateLeased is held by another worker.
	CandidateLeased CandidateVerdict = "leased"
	// CandidateRaced was locked by another claim, or could not be looked at for another passing reason.
	CandidateRaced CandidateVerdict = "raced"
	// CandidateDeferred has messages that are not visible yet (delayedProcessing, windowBuffer, a redelivery that waits).
	CandidateDeferred CandidateVerdict = "deferred"
)

// A CandidateState is one verdict of PopList or PopReady.
type CandidateState struct {
	Partition string
	Verdict   CandidateVerdict
	// LastOffset is the partition's head when the verdict is CandidateTook: read after the claim by PopList, as the claim saw it
	// by PopReady.
	LastOffset int64
	// Until is when it is worth looking again, when the verdict is CandidateLeased. PopList only.
	Until time.Time
	// Index is the position among the candidates, and Wait how long it is not worth looking again, when the verdict is
	// CandidateLeased, CandidateRaced or CandidateDeferred. PopReady only.
	Index int
	Wait  time.Duration
}
