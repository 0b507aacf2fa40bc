package pop

import (
	"context"
	"log/slog"
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

// open returns the payload to deliver. One that no key opens is delivered as it is stored, and said to be so: readable is false.
func (r *Result) open(payload []byte, flagged bool) (plain []byte, readable bool) {
	s := r.server
	if !flagged && !s.cfg.Sniff || s.cfg.Opener == nil {
		return payload, !flagged
	}
	plain, err := s.cfg.Opener.Open(payload, flagged)
	if err == nil {
		return plain, true
	}
	// A thousand in a row are one fault.
	if n := s.counts.sealed.Add(1); n%1000 == 1 {
		s.log.Error("messages cannot be decrypted and are delivered as they are stored; add their key to QUEEN_ENCRYPTION_KEYS_OLD",
			slog.String("queue", r.Queue), slog.Int64("messages", n), slog.Any("error", err))
	}
	return payload, false
}
