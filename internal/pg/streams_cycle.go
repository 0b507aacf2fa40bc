package pg

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// A StreamCycle is one step of a streaming query over one source partition: state, sink pushes and the source ack commit together
// or not at all.
type StreamCycle struct {
	Tenant, QueryID, PartitionID uuid.UUID
	// Group is the source's consumer group; "" is QueueModeGroup. Worker is the lease that the source batch is held under.
	Group, Worker string
	// IfState is a JSON array of {"key","value"}: the cycle is refused unless these rows have these values (null: do not exist).
	// nil expects nothing.
	IfState json.RawMessage
	// StateOps is a JSON array of {"type","key","value"}; nil is none.
	StateOps json.RawMessage
	// Ring are the ids of the caller's encryption keys when IfState and StateOps are those of encrypted state, see log_streams_state_v1;
	// nil for state in clear.
	Ring []string
	// Sinks has one segment per (queue, partition).
	Sinks []Segment
	// Ack is nil for a cycle that leaves the source cursor where it is.
	Ack *StreamAck
	// KeepLease moves the cursor over exactly Ack.Count messages and keeps the lease, instead of completing the batch.
	KeepLease bool
}

// A StreamAck acknowledges the source batch of a cycle.
type StreamAck struct {
	// OK false gives the batch back.
	OK    bool
	Count int64
}

// A StreamCycleResult says what became of a cycle.
type StreamCycleResult struct {
	// Answer is the procedure's result object, which is the wire's.
	Answer  json.RawMessage
	Success bool
	// Error is why the cycle was rolled back, "" when it was not.
	Error string
	// Queue is the source queue, "" when it is not known.
	Queue string
	// Queued lists the sinks that took their segment.
	Queued []StreamSink
	// LeaseReleased says that the source batch is over.
	LeaseReleased bool
	// Duplicates lists, after a failure for that reason, the sinks some of whose frames are stored already.
	Duplicates []StreamDuplicates
	// MustSeal: the state must be encrypted and was not. KeyMissing: others encrypt with a key that is not in the ring.
	MustSeal, KeyMissing bool
}

// A StreamSink names a sink partition.
type StreamSink struct{ Queue, Partition string }

// StreamDuplicates are the frames of one sink segment that are stored already, by their index in it.
type StreamDuplicates struct {
	StreamSink
	Frames []int
}

// The request and the answer of log_streams_cycle_v1.
type (
	streamCycleJSON struct {
		Index        int              `json:"idx"`
		Tenant       uuid.UUID        `json:"tenant"`
		QueryID      uuid.UUID        `json:"query_id"`
		PartitionID  uuid.UUID        `json:"partition_id"`
		Group        string           `json:"consumer_group"`
		Worker       string           `json:"worker"`
		ReleaseLease bool             `json:"release_lease"`
		Ring         []string         `json:"ring,omitempty"`
		IfState      json.RawMessage  `json:"if_state,omitempty"`
		StateOps     json.RawMessage  `json:"state_ops,omitempty"`
		Sinks        []streamSinkJSON `json:"sink_segments"`
		Ack          *streamAckJSON   `json:"ack"`
	}
	streamSinkJSON struct {
		Queue     string         `json:"queue"`
		Partition string         `json:"partition"`
		Count     int            `json:"count"`
		HashesB64 string         `json:"hashesB64"`
		BlobB64   string         `json:"blobB64"`
		Plain     bool           `json:"plain"`
		Traces    []segmentTrace `json:"traces,omitempty"`
	}
	streamAckJSON struct {
		OK    bool  `json:"ok"`
		Count int64 `json:"count"`
	}
	streamAnswerJSON struct {
		Success    bool   `json:"success"`
		Error      string `json:"error"`
		Queue      string `json:"queueName"`
		MustSeal   bool   `json:"must_seal"`
		KeyMissing bool   `json:"key_missing"`
		Pushed     []struct {
			Queue     string `json:"queue"`
			Partition string `json:"partition"`
			Status    string `json:"status"`
		} `json:"push_results"`
		Ack *struct {
			LeaseReleased bool `json:"lease_released"`
		} `json:"ack_result"`
		Duplicates []struct {
			Queue     string `json:"queue"`
			Partition string `json:"partition"`
			Dups      []struct {
				Frame int `json:"i"`
			} `json:"dups"`
		} `json:"duplicates"`
	}
)

// StreamsCycle runs one cycle. A cycle that was rolled back by a rule (a lost lease, a full sink, a duplicate) is no error: see
// StreamCycleResult.Error.
func (db *DB) StreamsCycle(ctx context.Context, c StreamCycle) (StreamCycleResult, error) {
	element := streamCycleJSON{
		Tenant: c.Tenant, QueryID: c.QueryID, PartitionID: c.PartitionID, Group: c.Group, Worker: c.Worker, ReleaseLease: !c.KeepLease,
		Ring: c.Ring, IfState: c.IfState, StateOps: c.StateOps, Sinks: make([]streamSinkJSON, len(c.Sinks)),
	}
	for i, s := range c.Sinks {
		sink := streamSinkJSON{
			Queue: s.Queue, Partition: s.Partition, Count: s.Count, Plain: s.Plain,
			HashesB64: base64.StdEncoding.EncodeToString(s.Hashes), BlobB64: base64.StdEncoding.EncodeToString(s.Blob),
		}
		for _, trace := range s.Traces {
			sink.Traces = append(sink.Traces, segmentTrace{Frame: trace.Frame, ID: trace.ID})
		}
		element.Sinks[i] = sink
	}
	if c.Ack != nil {
		element.Ack = &streamAckJSON{OK: c.Ack.OK, Count: c.Ack.Count}
	}
	request, err := json.Marshal([]streamCycleJSON{element})
	if err != nil {
		return StreamCycleResult{}, fmt.Errorf("streams cycle: %w: %w", ErrBadData, err)
	}
	var answer []byte
	err = db.run(ctx, "streams cycle", repeatLocks, func(ctx context.Context, conn *pgx.Conn) error {
		answer = nil
		return conn.QueryRow(ctx, `SELECT queen.log_streams_cycle_v1($1::jsonb) #> '{0,result}'`, request).Scan(&answer)
	})
	if err != nil {
		return StreamCycleResult{}, err
	}
	return decodeStreamCycle(answer)
}

func decodeStreamCycle(answer []byte) (StreamCycleResult, error) {
	var raw streamAnswerJSON
	if err := decodeJSON(answer, &raw); err != nil {
		return StreamCycleResult{}, fmt.Errorf("streams cycle: %w", err)
	}
	result := StreamCycleResult{
		Answer: answer, Success: raw.Success, Error: raw.Error, Queue: raw.Queue, LeaseReleased: raw.Ack != nil && raw.Ack.LeaseReleased,
		MustSeal: raw.MustSeal, KeyMissing: raw.KeyMissing,
	}
	for _, pushed := range raw.Pushed {
		if PushStatus(pushed.Status) == PushQueued {
			result.Queued = append(result.Queued, StreamSink{pushed.Queue, pushed.Partition})
		}
	}
	for _, sink := range raw.Duplicates {
		duplicates := StreamDuplicates{StreamSink: StreamSink{sink.Queue, sink.Partition}}
		for _, dup := range sink.Dups {
			duplicates.Frames = append(duplicates.Frames, dup.Frame)
		}
		result.Duplicates = append(result.Duplicates, duplicates)
	}
	return result, nil
}

// StreamSeals reports whether the state of a query for a partition must be encrypted, as log_streams_seals_v1 describes it.
func (db *DB) StreamSeals(ctx context.Context, tenant, query, partition uuid.UUID) (seals bool, err error) {
	err = db.run(ctx, "read whether streaming state is encrypted", repeatLocks, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT queen.log_streams_seals_v1($1::uuid, $2::uuid, $3::uuid)`,
			uuidArgument(tenant), uuidArgument(query), uuidArgument(partition)).Scan(&seals)
	})
	return seals, err
}
