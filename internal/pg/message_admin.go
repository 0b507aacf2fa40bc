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

// A messageJSON is one message of list_messages_v1.
type messageJSON struct {
	Hash        string    `json:"txnHash"`
	PartitionID uuid.UUID `json:"partitionId"`
	Queue       string    `json:"queue"`
	Partition   string    `json:"partition"`
	Namespace   *string   `json:"namespace"`
	Task        *string   `json:"task"`
	Status      string    `json:"status"`
	QueueStatus string    `json:"queueStatus"`
	Bus         struct {
		ConsumedBy  int `json:"consumedBy"`
		TotalGroups int `json:"totalGroups"`
	} `json:"busStatus"`
	Priority int `json:"queuePriority"`
	Segment  struct {
		Base  int64 `json:"seq"`
		Frame int   `json:"frameIdx"`
	} `json:"segment"`
	Offset         int64     `json:"offset"`
	Stored         bool      `json:"stored"`
	RetryCount     int       `json:"retryCount"`
	CreatedAt      time.Time `json:"createdAt"`
	LeaseExpiresAt time.Time `json:"leaseExpiresAt"`
}

func (m *messageJSON) entry() (MessageEntry, error) {
	hash, err := hex.DecodeString(m.Hash)
	if err != nil {
		return MessageEntry{}, fmt.Errorf("%w: hash %q", ErrMalformedAnswer, m.Hash)
	}
	return MessageEntry{
		PartitionID: m.PartitionID, Queue: m.Queue, Partition: m.Partition, Namespace: orEmpty(m.Namespace), Task: orEmpty(m.Task),
		Offset: m.Offset, Hash: hash, Status: m.Status, QueueStatus: m.QueueStatus, ConsumedBy: m.Bus.ConsumedBy,
		TotalGroups: m.Bus.TotalGroups, QueuePriority: m.Priority, Segment: SegmentKey{m.PartitionID, m.Segment.Base},
		Frame: m.Segment.Frame, SegmentFound: m.Stored, RetryCount: m.RetryCount, CreatedAt: m.CreatedAt, LeaseExpiresAt: m.LeaseExpiresAt,
	}, nil
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
		Messages []messageJSON `json:"messages"`
		Mode     struct {
			HasQueueMode bool   `json:"hasQueueMode"`
			BusGroups    int    `json:"busGroupsCount"`
			Type         string `json:"type"`
		} `json:"mode"`
		Next position `json:"next"`
	}
	if _, err := db.decoded(ctx, &page, "list messages", `SELECT queen.list_messages_v1($1::jsonb)`, text); err != nil {
		return MessagePage{}, err
	}
	out := MessagePage{
		Messages: make([]MessageEntry, len(page.Messages)), HasQueueMode: page.Mode.HasQueueMode, BusGroups: page.Mode.BusGroups,
		ModeType: page.Mode.Type, Next: page.Next.encode(),
	}
	for i := range page.Messages {
		if out.Messages[i], err = page.Messages[i].entry(); err != nil {
			return MessagePage{}, fmt.Errorf("list messages: %w", err)
		}
	}
	return out, nil
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

// NewestSegments reads up to limit segments of a partition of the tenant whose base is below an offset, newest first; below < 0
// starts at the end. It walks a partition for a message whose hash is no longer kept.
func (db *DB) NewestSegments(ctx context.Context, tenant, partition uuid.UUID, below int64, limit int) ([]StoredSegment, error) {
	var segments []StoredSegment
	err := db.run(ctx, "read segments", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT s.base_offset, s.end_offset, s.created_at, s.blob
FROM (SELECT p.id FROM queen.log_partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id WHERE p.id = $1::uuid AND q.tenant_id = $4::uuid) AS o
CROSS JOIN LATERAL (SELECT x.* FROM queen.log_segments AS x
    WHERE x.partition_id = o.id AND x.base_offset < CASE WHEN $2::bigint < 0 THEN 9223372036854775807 ELSE $2::bigint END
    ORDER BY x.base_offset DESC LIMIT $3::int) AS s ORDER BY s.base_offset DESC`, uuidArgument(partition), below, clampInt32(limit), uuidArgument(tenant))
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

// SegmentsFrom reads up to limit segments of a partition of the tenant, oldest first, from the one that holds the offset from, or
// the first one behind it; from < 0 counts back from the end, and what retention has passed is left out. False when the tenant has
// no such partition.
func (db *DB) SegmentsFrom(ctx context.Context, tenant, partition uuid.UUID, from int64, limit int) (PartitionPart, bool, error) {
	var part PartitionPart
	found := false
	err := db.run(ctx, "read a partition", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		part, found = PartitionPart{}, false
		rows, err := conn.Query(ctx, `SELECT o.queue, o.name, o.log_start, o.last_offset + 1, o.start, s.base_offset, s.end_offset, s.created_at, s.blob
FROM (SELECT p.id, q.name AS queue, p.name, p.log_start, p.last_offset,
          GREATEST(CASE WHEN $2::bigint < 0 THEN p.last_offset + 1 + $2::bigint ELSE $2::bigint END, p.log_start) AS start
      FROM queen.log_partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id WHERE p.id = $1::uuid AND q.tenant_id = $4::uuid) AS o
LEFT JOIN LATERAL (SELECT x.* FROM queen.log_segments AS x
    WHERE x.partition_id = o.id AND x.end_offset >= o.start AND x.base_offset >= COALESCE(
        (SELECT y.base_offset FROM queen.log_segments AS y WHERE y.partition_id = o.id AND y.base_offset <= o.start ORDER BY y.base_offset DESC LIMIT 1), 0)
    ORDER BY x.base_offset LIMIT $3::int) AS s ON TRUE ORDER BY s.base_offset`, uuidArgument(partition), from, clampInt32(limit), uuidArgument(tenant))
		if err != nil {
			return err
		}
		var base, end *int64
		var at *time.Time
		var blob []byte
		_, err = pgx.ForEachRow(rows, []any{&part.Queue, &part.Partition, &part.LogStart, &part.End, &part.From, &base, &end, &at, &blob}, func() error {
			found = true
			if base != nil {
				part.Segments = append(part.Segments, StoredSegment{Base: *base, End: *end, CreatedAt: *at, Blob: blob})
			}
			blob = nil
			return nil
		})
		return err
	})
	return part, found, err
}

// A groupStateJSON is one element of consumerGroups.
type groupStateJSON struct {
	Name           string    `json:"name"`
	Consumed       bool      `json:"consumed"`
	LeaseExpiresAt time.Time `json:"leaseExpiresAt"`
}

func groupStates(in []groupStateJSON) []GroupState {
	groups := make([]GroupState, len(in))
	for i, g := range in {
		groups[i] = GroupState(g)
	}
	return groups
}

// A messageDetailJSON is the answer of get_message_detail_v1.
type messageDetailJSON struct {
	Offset         int64     `json:"offset"`
	PartitionID    uuid.UUID `json:"partitionId"`
	Partition      string    `json:"partition"`
	Queue          string    `json:"queue"`
	Namespace      *string   `json:"namespace"`
	Task           *string   `json:"task"`
	Status         string    `json:"status"`
	DeadLetter     bool      `json:"deadLetter"`
	Error          *string   `json:"errorMessage"`
	RetryCount     int       `json:"retryCount"`
	CreatedAt      time.Time `json:"createdAt"`
	LeaseExpiresAt time.Time `json:"leaseExpiresAt"`
	Config         struct {
		LeaseTime  int `json:"leaseTime"`
		RetryLimit int `json:"retryLimit"`
		RetryDelay int `json:"retryDelay"`
		TTL        int `json:"ttl"`
		Priority   int `json:"priority"`
	} `json:"queueConfig"`
	Mode struct {
		HasQueueMode bool `json:"hasQueueMode"`
	} `json:"mode"`
	Groups     []groupStateJSON `json:"consumerGroups"`
	Deliveries []deliveryJSON   `json:"deliveries"`
}

// A deliveryJSON is one element of deliveries.
type deliveryJSON struct {
	Group         string    `json:"group"`
	State         string    `json:"state"`
	Attempts      *int      `json:"attempts"`
	AttemptsExact bool      `json:"attemptsExact"`
	Failures      *int      `json:"failures"`
	LeaseID       string    `json:"leaseId"`
	AcquiredAt    time.Time `json:"acquiredAt"`
	ExpiresAt     time.Time `json:"expiresAt"`
	RedeliveryAt  time.Time `json:"redeliveryAt"`
}

func deliveries(in []deliveryJSON) []Delivery {
	out := make([]Delivery, len(in))
	for i, d := range in {
		out[i] = Delivery(d)
	}
	return out
}

func (m *messageDetailJSON) detail() MessageDetail {
	return MessageDetail{
		PartitionID: m.PartitionID, Queue: m.Queue, Partition: m.Partition, Namespace: orEmpty(m.Namespace), Task: orEmpty(m.Task),
		Offset: m.Offset, CreatedAt: m.CreatedAt, Status: m.Status, DeadLetter: m.DeadLetter, DeadLetterError: orEmpty(m.Error),
		RetryCount: m.RetryCount, LeaseExpiresAt: m.LeaseExpiresAt, LeaseTime: m.Config.LeaseTime, RetryLimit: m.Config.RetryLimit,
		RetryDelay: m.Config.RetryDelay, TTL: m.Config.TTL, Priority: m.Config.Priority, HasQueueMode: m.Mode.HasQueueMode,
		Groups: groupStates(m.Groups), Deliveries: deliveries(m.Deliveries),
	}
}

// FindMessage looks a message up by the hash of its transaction id: the newest one in the partition. False when there is none,
// its hash is no longer kept, or the partition is not the tenant's.
func (db *DB) FindMessage(ctx context.Context, tenant, partition uuid.UUID, hash []byte) (MessageDetail, bool, error) {
	return db.messageDetail(ctx, `SELECT queen.get_message_detail_v1($1::uuid, $2::bytea, NULL, $3::uuid)`, uuidArgument(partition), hash, uuidArgument(tenant))
}

// MessageAt describes the message at an offset, whether it is still stored or not. False when the partition is not the tenant's.
func (db *DB) MessageAt(ctx context.Context, tenant, partition uuid.UUID, offset int64) (MessageDetail, bool, error) {
	return db.messageDetail(ctx, `SELECT queen.get_message_detail_v1($1::uuid, NULL, $2::bigint, $3::uuid)`, uuidArgument(partition), offset, uuidArgument(tenant))
}

func (db *DB) messageDetail(ctx context.Context, query string, args ...any) (MessageDetail, bool, error) {
	var answer messageDetailJSON
	found, err := db.decoded(ctx, &answer, "find a message", query, args...)
	if err != nil || !found {
		return MessageDetail{}, false, err
	}
	detail := answer.detail()
	detail.Segment, detail.SegmentFound, err = db.SegmentAt(ctx, detail.PartitionID, detail.Offset)
	if err != nil {
		return MessageDetail{}, false, err
	}
	if detail.SegmentFound {
		detail.CreatedAt = detail.Segment.CreatedAt
	}
	return detail, true, nil
}

// TraceMessages returns up to limit messages that carry a trace id across the tenant's queues, oldest first.
func (db *DB) TraceMessages(ctx context.Context, tenant, trace uuid.UUID, limit int) ([]TracedMessage, error) {
	var answer []struct {
		PartitionID uuid.UUID        `json:"partitionId"`
		Queue       string           `json:"queue"`
		Partition   string           `json:"partition"`
		Offset      int64            `json:"offset"`
		Base        *int64           `json:"seq"`
		CreatedAt   time.Time        `json:"createdAt"`
		Status      string           `json:"status"`
		Groups      []groupStateJSON `json:"consumerGroups"`
	}
	if _, err := db.decoded(ctx, &answer, "read a trace", `SELECT queen.get_trace_messages_v1($1::uuid, $2::int, $3::uuid)`,
		uuidArgument(trace), clampInt32(limit), uuidArgument(tenant)); err != nil {
		return nil, err
	}
	messages := make([]TracedMessage, len(answer))
	for i, m := range answer {
		messages[i] = TracedMessage{
			PartitionID: m.PartitionID, Queue: m.Queue, Partition: m.Partition, Offset: m.Offset, CreatedAt: m.CreatedAt,
			Status: m.Status, Groups: groupStates(m.Groups),
		}
		if m.Base != nil {
			messages[i].Segment, messages[i].SegmentFound = SegmentKey{m.PartitionID, *m.Base}, true
		}
	}
	return messages, nil
}
