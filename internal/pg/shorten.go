package pg

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// A LeaseCut says where a claimed batch is to end instead.
type LeaseCut struct {
	PartitionID uuid.UUID
	// End is the offset of the last message that is kept; below 0 the whole batch is given back.
	End int64
}

// ShortenLeases lets batches of one claim end earlier, before any of their messages were sent. It returns the partitions that are still
// leased to worker and end where they were asked to: the others were given back, or their lease is over. What is given back can be
// claimed at once and does not count as a delivery.
func (db *DB) ShortenLeases(ctx context.Context, group, worker string, cuts []LeaseCut) (kept []uuid.UUID, err error) {
	partitions, ends := make([]pgtype.UUID, len(cuts)), make([]pgtype.Int8, len(cuts))
	for i, cut := range cuts {
		partitions[i] = uuidArgument(cut.PartitionID)
		ends[i] = pgtype.Int8{Int64: cut.End, Valid: cut.End >= 0}
	}
	err = db.run(ctx, "shorten a claim", repeatLocks, func(ctx context.Context, conn *pgx.Conn) error {
		kept = nil
		rows, err := conn.Query(ctx, `SELECT * FROM queen.log_pop_shorten_v1($1::text, $2::text, $3::uuid[], $4::int8[])`, group, worker, partitions, ends)
		if err != nil {
			return err
		}
		var id pgtype.UUID
		_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
			kept = append(kept, id.Bytes)
			return nil
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return kept, nil
}
