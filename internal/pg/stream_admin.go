package pg

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// A StreamFilter chooses streaming queries.
type StreamFilter struct {
	// Contains stands somewhere in the name of the query or of one of its queues, in any case.
	Contains string
	// Sort is "name", "source", "sink", "created" or "updated", a minus in front turns it around; "" is by name.
	Sort string
	// Limit is the most rows of a page; 0 is 100. Cursor is that of the page before, "" for the first one.
	Limit  int
	Cursor string
}

// ListStreams returns a page of streaming queries with the size and age of their state. Errors: ErrInvalidCursor.
func (db *DB) ListStreams(ctx context.Context, tenant uuid.UUID, s StreamFilter) (json.RawMessage, error) {
	f := filter{"contains": s.Contains}
	if err := f.inOrder(s.Sort, s.Cursor); err != nil {
		return nil, err
	}
	return db.paged(ctx, "list streaming queries", "stream_list_v1", tenant, f.limited(s.Limit, 0))
}

// StreamPartitions are the partitions in which a query has state.
type StreamPartitions struct {
	Query uuid.UUID `json:"query"`
	// Sealed says that rows of the query's state may be encrypted.
	Sealed     bool        `json:"sealed"`
	Partitions []uuid.UUID `json:"partitions"`
	// More says that there are others than these.
	More bool `json:"more"`
}

// StreamPartitions returns at most so many partitions with state of each of a tenant's queries. Queries of others are left out.
func (db *DB) StreamPartitions(ctx context.Context, tenant uuid.UUID, queries []uuid.UUID, most int) ([]StreamPartitions, error) {
	var found []StreamPartitions
	_, err := db.decoded(ctx, &found, "list the partitions of streaming queries", `SELECT queen.streams_partitions_v1($1::uuid[], $2::int, $3::uuid)`,
		uuidArguments(queries), clampInt32(most), uuidArgument(tenant))
	return found, err
}

// A StreamRow is a row of a query's state, or names one that is looked for.
type StreamRow struct {
	Query     uuid.UUID `json:"query"`
	Partition uuid.UUID `json:"partition"`
	// Key is the name under which the row is stored.
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
	// Sealed is the envelope of an encrypted row, nil for any other.
	Sealed *string `json:"sealed"`
}

// StreamRows returns those of the wanted rows, named by query, partition and key, that a tenant has. Encrypted ones are not opened.
func (db *DB) StreamRows(ctx context.Context, tenant uuid.UUID, wanted []StreamRow) ([]StreamRow, error) {
	queries, partitions, names := make([]uuid.UUID, len(wanted)), make([]uuid.UUID, len(wanted)), make([]string, len(wanted))
	for i := range wanted {
		queries[i], partitions[i], names[i] = wanted[i].Query, wanted[i].Partition, wanted[i].Key
	}
	var found []StreamRow
	_, err := db.decoded(ctx, &found, "read rows of streaming queries", `SELECT queen.streams_rows_v1($1::uuid[], $2::uuid[], $3::text[], $4::uuid)`,
		uuidArguments(queries), uuidArguments(partitions), names, uuidArgument(tenant))
	return found, err
}

func uuidArguments(ids []uuid.UUID) []pgtype.UUID {
	arguments := make([]pgtype.UUID, len(ids))
	for i, id := range ids {
		arguments[i] = uuidArgument(id)
	}
	return arguments
}
