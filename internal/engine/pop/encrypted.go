package pop

import (
	"context"
	"slices"

	"queenmq/internal/pg"
)

func anyEncrypted(batches []Batch) bool { return slices.ContainsFunc(batches, Batch.encrypted) }

// encrypted reports whether a segment of the batch holds encrypted messages.
func (b Batch) encrypted() bool {
	return slices.ContainsFunc(b.slices, func(s slice) bool { return s.frames.Encrypted() })
}

// withholdEncrypted takes the encrypted batches out of a result when there is no key, and gives their leases back: a consumer that
// was sent envelopes would acknowledge what it never saw. It reports that nothing else was claimed.
func (s *Server) withholdEncrypted(ctx context.Context, result *Result) (nothingElse bool) {
	if s.cfg.Opener != nil || !anyEncrypted(result.Partitions) {
		return false
	}
	var rest []Batch
	for _, batch := range result.Partitions {
		if !batch.encrypted() {
			rest = append(rest, batch)
			continue
		}
		releaseAll([]Batch{batch})
		result.release(ctx, pg.ClaimedPartition{Queue: batch.Queue, Partition: batch.Partition, PartitionID: batch.PartitionID})
	}
	result.Partitions = rest
	return len(rest) == 0
}

// sniff returns the payload behind what looks like an envelope although it is not marked as one.
func (s *Server) sniff(payload []byte) []byte {
	if s.cfg.Opener == nil {
		return payload
	}
	plain, _ := s.cfg.Opener.Open(payload, false) // an error comes with the payload as it is
	return plain
}
