package pg

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// A MessageFilter selects messages. Names are exact, "" is all.
type MessageFilter struct {
	Queue, Partition, Namespace, Task string
	// Status is "", pending, processing, completed or dead_letter, judged by Group alone when that is not "".
	Status, Group string
	// From and To are as the client sent them; "" is an hour ago (the beginning with TraceID) and now. Both are inclusive, To up
	// to the end of its minute.
	From, To string
	// TransactionHash is the 16-byte hash of a transaction id, nil is all.
	TransactionHash []byte
	TraceID         uuid.NullUUID
	// Limit 0 is 200. With After, the Next of the page before, Offset does not count.
	Limit, Offset int
	After         string
}

// A MessagePage is a page of messages, newest first by (CreatedAt, PartitionID, Offset).
type MessagePage struct {
	Messages []MessageEntry
	Mode     MessageMode
	// Next continues behind the last message; "" when the page is short.
	Next string
}

// A MessageMode says who reads the partitions of a page or of a message.
type MessageMode struct {
	HasQueueMode bool   `json:"hasQueueMode"`
	BusGroups    int    `json:"busGroupsCount"`
	Type         string `json:"type"` // bus, queue, hybrid, none
}

// A MessageEntry is what the database knows about a listed message; the rest lies in its segment.
type MessageEntry struct {
	TransactionHash string    `json:"txnHash"` // 32 lower-case hex digits
	PartitionID     uuid.UUID `json:"partitionId"`
	Queue           string    `json:"queue"`
	Partition       string    `json:"partition"`
	Namespace       *string   `json:"namespace"`
	Task            *string   `json:"task"`
	Status          string    `json:"status"`
	QueueStatus     string    `json:"queueStatus"`
	BusStatus       struct {
		ConsumedBy  int `json:"consumedBy"`
		TotalGroups int `json:"totalGroups"`
	} `json:"busStatus"`
	QueuePriority *int `json:"queuePriority"`
	Segment       struct {
		Base  int64 `json:"seq"`
		Frame int   `json:"frameIdx"`
	} `json:"segment"`
	Offset int64 `json:"offset"`
	// CreatedAt and LeaseExpiresAt are ISO timestamps with milliseconds, ready for the wire.
	CreatedAt      string  `json:"createdAt"`
	LeaseExpiresAt *string `json:"leaseExpiresAt"`
}

// ListMessages returns a page of messages. Errors: ErrInvalidCursor; ErrBadData for an unreadable time.
func (db *DB) ListMessages(ctx context.Context, tenant uuid.UUID, m MessageFilter) (MessagePage, error) {
	after, err := decodePosition(m.After, messagePosition)
	if err != nil {
		return MessagePage{}, err
	}
	f := tenantFilter(tenant).limited(m.Limit, m.Offset)
	f["queue"], f["partition"], f["namespace"], f["task"] = m.Queue, m.Partition, m.Namespace, m.Task
	f["status"], f["group"], f["from"], f["to"], f["after"] = m.Status, m.Group, m.From, m.To, after
	f["txnHash"] = hex.EncodeToString(m.TransactionHash)
	if m.TraceID.Valid {
		f["traceId"] = m.TraceID.UUID
	}
	text, err := f.text()
	if err != nil {
		return MessagePage{}, err
	}
	var page struct {
		Messages []MessageEntry `json:"messages"`
		Mode     MessageMode    `json:"mode"`
		Next     position       `json:"next"`
	}
	if _, err := db.decoded(ctx, &page, "list messages", `SELECT queen.list_messages_v1($1::jsonb)`, text); err != nil {
		return MessagePage{}, err
	}
	return MessagePage{Messages: page.Messages, Mode: page.Mode, Next: page.Next.encode()}, nil
}

// A SegmentKey names a segment.
type SegmentKey struct {
	PartitionID uuid.UUID
	Base        int64
}

// SegmentsOf reads segments in one round trip; what retention removed is absent from the result.
func (db *DB) SegmentsOf(ctx context.Context, keys []SegmentKey) (map[SegmentKey]StoredSegment, error) {
	found := make(map[SegmentKey]StoredSegment, len(keys))
	if len(keys) == 0 {
		return found, nil
	}
	ids, bases := make([]pgtype.UUID, len(keys)), make([]int64, len(keys))
	for i, key := range keys {
		ids[i], bases[i] = uuidArgument(key.PartitionID), key.Base
	}
	err := db.run(ctx, "read segments", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		clear(found)
		rows, err := conn.Query(ctx, `SELECT s.partition_id, s.base_offset, s.end_offset, s.created_at, s.blob
FROM (SELECT DISTINCT k.id, k.base FROM unnest($1::uuid[], $2::bigint[]) AS k (id, base)) AS k
CROSS JOIN LATERAL (SELECT x.* FROM queen.log_segments AS x WHERE x.partition_id = k.id AND x.base_offset = k.base OFFSET 0) AS s`, ids, bases)
		if err != nil {
			return err
		}
		var id pgtype.UUID
		var s StoredSegment
		_, err = pgx.ForEachRow(rows, []any{&id, &s.Base, &s.End, &s.CreatedAt, &s.Blob}, func() error {
			found[SegmentKey{id.Bytes, s.Base}] = s
			s.Blob = nil
			return nil
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// NewestSegments reads up to limit segments of a partition whose base is below an offset, newest first; below < 0 starts at the
// end. It walks a partition for a message whose hash is no longer kept.
func (db *DB) NewestSegments(ctx context.Context, partition uuid.UUID, below int64, limit int) ([]StoredSegment, error) {
	var segments []StoredSegment
	err := db.run(ctx, "read segments", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT s.base_offset, s.end_offset, s.created_at, s.blob FROM queen.log_segments AS s
WHERE s.partition_id = $1::uuid AND s.base_offset < CASE WHEN $2::bigint < 0 THEN 9223372036854775807 ELSE $2::bigint END
ORDER BY s.base_offset DESC LIMIT $3::int`, uuidArgument(partition), below, clampInt32(limit))
		if err != nil {
			return err
		}
		segments, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s StoredSegment, err error) {
			err = row.Scan(&s.Base, &s.End, &s.CreatedAt, &s.Blob)
			return s, err
		})
		return err
	})
	return segments, err
}

// A MessageDetail is what the database knows about one message; the rest lies in the segment that SegmentAt returns.
type MessageDetail struct {
	Offset      int64     `json:"offset"`
	PartitionID uuid.UUID `json:"partitionId"`
	Partition   string    `json:"partition"`
	Queue       string    `json:"queue"`
	Namespace   *string   `json:"namespace"`
	Task        *string   `json:"task"`
	Status      string    `json:"status"`
	// Error and RetryCount are those of the newest dead letter at the offset.
	Error      *string `json:"errorMessage"`
	RetryCount int     `json:"retryCount"`
	// CreatedAt and LeaseExpiresAt are ISO timestamps with milliseconds; CreatedAt is nil when the hash is no longer kept.
	CreatedAt      *string `json:"createdAt"`
	LeaseExpiresAt *string `json:"leaseExpiresAt"`
	QueueConfig    struct {
		LeaseTime  int `json:"leaseTime"`
		RetryLimit int `json:"retryLimit"`
		RetryDelay int `json:"retryDelay"`
		TTL        int `json:"ttl"`
		Priority   int `json:"priority"`
	} `json:"queueConfig"`
	Mode   MessageMode    `json:"mode"`
	Groups []MessageGroup `json:"consumerGroups"`
}

// A MessageGroup says how far a named group is with a message.
type MessageGroup struct {
	Name           string  `json:"name"`
	Consumed       bool    `json:"consumed"`
	LeaseExpiresAt *string `json:"leaseExpiresAt"`
}

// FindMessage looks a message up by the hash of its transaction id: the newest one in the partition. False when there is none,
// its hash is no longer kept, or the partition is not the tenant's.
func (db *DB) FindMessage(ctx context.Context, tenant, partition uuid.UUID, hash []byte) (MessageDetail, bool, error) {
	var detail MessageDetail
	found, err := db.decoded(ctx, &detail, "find a message", `SELECT queen.get_message_detail_v1($1::uuid, $2::bytea, NULL, $3::uuid)`,
		uuidArgument(partition), hash, uuidArgument(tenant))
	return detail, found, err
}

// MessageAt describes the message at an offset, whether it is still stored or not. False when the partition is not the tenant's.
func (db *DB) MessageAt(ctx context.Context, tenant, partition uuid.UUID, offset int64) (MessageDetail, bool, error) {
	var detail MessageDetail
	found, err := db.decoded(ctx, &detail, "find a message", `SELECT queen.get_message_detail_v1($1::uuid, NULL, $2::bigint, $3::uuid)`,
		uuidArgument(partition), offset, uuidArgument(tenant))
	return detail, found, err
}

// A TracedMessage is one message of a trace.
type TracedMessage struct {
	PartitionID uuid.UUID      `json:"partitionId"`
	Queue       string         `json:"queue"`
	Partition   string         `json:"partition"`
	Offset      int64          `json:"offset"`
	CreatedAt   time.Time      `json:"createdAt"`
	Status      string         `json:"status"`
	Groups      []MessageGroup `json:"consumerGroups"`
}

// TraceMessages returns up to limit messages that carry a trace id across the tenant's queues, oldest first.
func (db *DB) TraceMessages(ctx context.Context, tenant, trace uuid.UUID, limit int) ([]TracedMessage, error) {
	var messages []TracedMessage
	if _, err := db.decoded(ctx, &messages, "read a trace", `SELECT queen.get_trace_messages_v1($1::uuid, $2::int, $3::uuid)`,
		uuidArgument(trace), clampInt32(limit), uuidArgument(tenant)); err != nil {
		return nil, fmt.Errorf("trace %s: %w", trace, err)
	}
	return messages, nil
}
