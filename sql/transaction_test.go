package sql_test

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// The request of log_transaction_wire_v1. Zero fields are left out, as callers may.
type (
	wireTransaction struct {
		Tenant string     `json:"_tenant,omitempty"`
		Pushes []wirePush `json:"pushes,omitempty"`
		Acks   []wireAck  `json:"acks,omitempty"`
	}
	wirePush struct {
		Queue     string      `json:"queue,omitempty"`
		Partition string      `json:"partition,omitempty"`
		Count     int         `json:"count"`
		HashesHex string      `json:"hashesHex,omitempty"`
		HashesB64 string      `json:"hashesB64,omitempty"`
		BlobB64   string      `json:"blobB64"`
		Plain     bool        `json:"plain,omitempty"`
		Traces    []wireTrace `json:"traces,omitempty"`
	}
	wireTrace struct {
		Frame int       `json:"i"`
		Trace uuid.UUID `json:"t"`
	}
	wireAck struct {
		PartitionID string        `json:"partitionId,omitempty"`
		Group       string        `json:"group,omitempty"`
		Worker      string        `json:"worker,omitempty"`
		Acks        []wireAckItem `json:"acks,omitempty"`
		UptoOff     *int64        `json:"uptoOff,omitempty"`
		OK          *bool         `json:"ok,omitempty"`
		Count       int           `json:"count,omitempty"`
	}
	wireAckItem struct {
		Hash   string `json:"h"`
		Status string `json:"status,omitempty"`
		OK     *bool  `json:"ok,omitempty"`
	}
	transactionAnswer struct {
		OK     bool         `json:"ok"`
		Pushes []pushAnswer `json:"pushes"`
		Acks   []ackAnswer  `json:"acks"`
	}
	pushAnswer struct {
		Status      string `json:"status"`
		BaseOffset  int64  `json:"baseOffset"`
		PartitionID string `json:"partitionId"`
	}
)

func pushOf(queue, partition string, ids ...string) wirePush {
	return wirePush{
		Queue: queue, Partition: partition, Count: len(ids), HashesHex: hex.EncodeToString(joinHashes(ids)),
		BlobB64: base64.StdEncoding.EncodeToString([]byte("blob")),
	}
}

func ackOf(partition uuid.UUID, group, worker string, items ...item) wireAck {
	ack := wireAck{PartitionID: partition.String(), Group: group, Worker: worker}
	for _, it := range items {
		ack.Acks = append(ack.Acks, wireAckItem{Hash: hex.EncodeToString(hashOf(it.id)), Status: it.status})
	}
	return ack
}

func transact(q querier, request any) (transactionAnswer, error) {
	text, err := json.Marshal(request)
	if err != nil {
		return transactionAnswer{}, err
	}
	return callJSON[transactionAnswer](q, `SELECT queen.log_transaction_wire_v1($1)`, text)
}

// state is everything that a transaction may write, row by row.
func (l ackLog) state(t tester) string {
	t.Helper()
	var text string
	require.NoError(t, l.QueryRow(context.Background(), `SELECT jsonb_pretty(jsonb_build_object(
		'queues', (SELECT jsonb_agg(to_jsonb(x) ORDER BY x.id) FROM queen.queues x),
		'partitions', (SELECT jsonb_agg(to_jsonb(x) ORDER BY x.id) FROM queen.log_partitions x),
		'segments', (SELECT jsonb_agg(to_jsonb(x) ORDER BY x.partition_id, x.base_offset) FROM queen.log_segments x),
		'hashes', (SELECT jsonb_agg(to_jsonb(x) ORDER BY x.partition_id, x.base_offset) FROM queen.log_txns x),
		'traced', (SELECT jsonb_agg(to_jsonb(x) ORDER BY x.trace_id, x.partition_id, x."offset") FROM queen.log_traced x),
		'consumers', (SELECT jsonb_agg(to_jsonb(x) ORDER BY x.partition_id, x.consumer_group) FROM queen.log_consumers x),
		'dead letters', (SELECT jsonb_agg(to_jsonb(x) ORDER BY x.id) FROM queen.log_dlq x),
		'stream state', (SELECT jsonb_agg(to_jsonb(x) ORDER BY x.query_id, x.partition_id, x.key) FROM queen_streams.state x)))`).Scan(&text))
	return text
}

func (l ackLog) count(t tester, sql string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, l.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

func TestTransactionCommitsPushesAndAcksTogether(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	queue := log.queue(t, defaultTenant, "in")
	first, second := log.partition(t, queue, decisionSegments()...), log.partition(t, queue, decisionSegments()...)
	if first.String() > second.String() {
		first, second = second, first
	}
	live := cursor{Committed: 1, BatchEnd: new(int64(8)), Worker: "w", Lease: "live"}
	for _, group := range []string{"a", "b"} {
		log.setCursor(t, first, group, live)
		log.setCursor(t, second, group, live)
	}
	trace := uuid.New()
	traced := pushOf("out", "p2", "y0", "y1")
	traced.Traces = []wireTrace{{1, trace}}

	got, err := transact(log, wireTransaction{
		Pushes: []wirePush{pushOf("out", "p1", "x0"), traced, pushOf("other.queue", "p1", "z0"), pushOf("out", "p1", "x1", "x2")},
		Acks: []wireAck{
			{PartitionID: second.String(), Group: "b", Worker: "w", UptoOff: new(int64(8)), Count: 7},
			ackOf(first, "b", "w", item{"m2", "completed"}, item{"m4", "failed"}),
			ackOf(first, "a", "w", item{"m8", "completed"}, item{"m1", "completed"}),
			{PartitionID: second.String(), Group: "a", Worker: "w", OK: new(false)},
		},
	})
	require.NoError(t, err)
	require.True(t, got.OK)

	offsets := []int64{}
	for _, p := range got.Pushes {
		require.Equal(t, "queued", p.Status)
		require.NotEmpty(t, p.PartitionID)
		offsets = append(offsets, p.BaseOffset)
	}
	require.Equal(t, []int64{0, 0, 0, 1}, offsets)
	require.Equal(t, 1, log.count(t, `SELECT count(*) FROM queen.log_traced WHERE trace_id = $1 AND "offset" = 1 AND partition_id = $2`, trace, got.Pushes[1].PartitionID))

	addresses := [][2]string{}
	for _, a := range got.Acks {
		addresses = append(addresses, [2]string{a.PartitionID, a.Group})
		require.True(t, a.OK)
	}
	require.Equal(t, [][2]string{{first.String(), "a"}, {first.String(), "b"}, {second.String(), "a"}, {second.String(), "b"}}, addresses)
	require.Empty(t, cmp.Diff(cursor{Committed: 8, Consumed: 7}, log.cursor(t, first, "a")))
	require.Empty(t, cmp.Diff(cursor{Committed: 2, Consumed: 1, Retries: 1}, log.cursor(t, first, "b")))
	require.Empty(t, cmp.Diff(cursor{Committed: 1}, log.cursor(t, second, "a")))
	require.Empty(t, cmp.Diff(cursor{Committed: 8, Consumed: 7}, log.cursor(t, second, "b")))
}

func TestTransactionAckForms(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	partition := log.partition(t, log.queue(t, defaultTenant, "in"), decisionSegments()...)
	live := cursor{Committed: 1, BatchEnd: new(int64(8)), Worker: "w", Lease: "live"}
	hash := hex.EncodeToString(hashOf("m4"))

	for _, tc := range []struct {
		name  string
		item  wireAckItem
		after int64
	}{
		{"NeitherStatusNorOkCompletes", wireAckItem{Hash: hash}, 4},
		{"OkTrueCompletes", wireAckItem{Hash: hash, OK: new(true)}, 4},
		{"OkFalseFails", wireAckItem{Hash: hash, OK: new(false)}, 1},
		{"StatusWinsOverOk", wireAckItem{Hash: hash, OK: new(false), Status: "completed"}, 4},
		{"StatusIsPassedOn", wireAckItem{Hash: hash, Status: "retry"}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			log.setCursor(t, partition, "g", live)
			_, err := transact(log, wireTransaction{Acks: []wireAck{{PartitionID: partition.String(), Group: "g", Worker: "w", Acks: []wireAckItem{tc.item}}}})
			require.NoError(t, err)
			require.Equal(t, tc.after, log.cursor(t, partition, "g").Committed)
		})
	}
	t.Run("EmptyGroupIsQueueMode", func(t *testing.T) {
		log.setCursor(t, partition, "__QUEUE_MODE__", live)
		got, err := transact(log, wireTransaction{Acks: []wireAck{ackOf(partition, "", "w", item{"m4", ""})}})
		require.NoError(t, err)
		require.Equal(t, "__QUEUE_MODE__", got.Acks[0].Group)
	})
	t.Run("DeadLetterKeepsTheLeaseForTheHandOff", func(t *testing.T) {
		log.setCursor(t, partition, "g", live)
		got, err := transact(log, wireTransaction{Acks: []wireAck{ackOf(partition, "g", "w", item{"m4", "dlq"})}})
		require.NoError(t, err)
		require.True(t, got.Acks[0].DLQ)
		require.Equal(t, "w", got.Acks[0].Worker)
		require.Equal(t, live, log.cursor(t, partition, "g"))
	})
	t.Run("CompletingTwiceIsNoFailure", func(t *testing.T) {
		log.setCursor(t, partition, "g", live)
		got, err := transact(log, wireTransaction{Acks: []wireAck{ackOf(partition, "g", "w", item{"m0", ""})}})
		require.NoError(t, err)
		require.Len(t, got.Acks[0].Noop, 1)
	})
	for _, request := range []string{`{}`, `{"pushes":[],"acks":[]}`, `{"pushes":null,"acks":null}`, `null`} {
		t.Run("NothingToDo/"+request, func(t *testing.T) {
			got, err := transact(log, json.RawMessage(request))
			require.NoError(t, err)
			require.Equal(t, transactionAnswer{OK: true, Pushes: []pushAnswer{}, Acks: []ackAnswer{}}, got)
		})
	}
}

func TestTransactionWorksWithinItsTenant(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	tenant := uuid.New()
	mine := log.partition(t, log.queue(t, tenant, "q"), decisionSegments()...)
	log.queue(t, defaultTenant, "q")
	log.setCursor(t, mine, "g", cursor{Committed: -1, BatchEnd: new(int64(8)), Worker: "w", Lease: "live"})
	_, err := transact(log, wireTransaction{
		Tenant: tenant.String(), Pushes: []wirePush{pushOf("q", "new", "x")}, Acks: []wireAck{ackOf(mine, "g", "w", item{"m8", ""})},
	})
	require.NoError(t, err)
	require.Equal(t, 1, log.count(t, `SELECT count(*) FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
		WHERE p.name = 'new' AND q.tenant_id = $1 AND q.name = 'q'`, tenant))
}

// Every failure undoes everything: each row pushes to a new partition and completes a batch before the part that fails.
func TestTransactionIsAllOrNothing(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	stranger := uuid.New()
	queue := log.queue(t, defaultTenant, "in")
	good, bad, free := log.partition(t, queue, decisionSegments()...), log.partition(t, queue, decisionSegments()...), log.partition(t, queue, decisionSegments()...)
	foreign := log.partition(t, log.queue(t, stranger, "in"), decisionSegments()...)
	live := cursor{Committed: 1, BatchEnd: new(int64(8)), Worker: "w", Lease: "live"}
	log.setCursor(t, good, "g", live)
	log.setCursor(t, bad, "g", live)
	log.setCursor(t, bad, "late", cursor{Committed: 1, BatchEnd: new(int64(8)), Worker: "w", Lease: "expired"})
	log.setCursor(t, free, "g", cursor{Committed: 1})
	log.setCursor(t, foreign, "g", live)
	_, err := log.Exec(context.Background(), `INSERT INTO queen.queues (name, max_queue_size, encryption_enabled) VALUES ('bounded', 3, FALSE), ('secret', 0, TRUE)`)
	require.NoError(t, err)
	_, err = transact(log, wireTransaction{Pushes: []wirePush{pushOf("out", "seen", "stored"), pushOf("bounded", "a", "b0", "b1")}})
	require.NoError(t, err)

	plain := pushOf("secret", "p", "x")
	plain.Plain = true
	short := pushOf("out", "p", "x", "y")
	short.Count = 3
	missing := uuid.New()
	for _, tc := range []struct {
		name         string
		push         *wirePush
		ack          *wireAck
		state, error string
	}{
		{"DuplicatePush", new(pushOf("out", "seen", "new", "stored")), nil, "23505", `QDUP duplicate messages in queue "out" partition "seen"; transaction rolled back`},
		{"DuplicateInAFullQueueIsADuplicate", new(pushOf("bounded", "a", "b0", "b2", "b3")), nil, "23505", `QDUP duplicate messages in queue "bounded" partition "a"; transaction rolled back`},
		{"QueueFull", new(pushOf("bounded", "b", "b2", "b3")), nil, "53400", `QUEUE_FULL queue "bounded" is full; transaction rolled back`},
		{"EmptyQueueName", new(pushOf("", "p", "x")), nil, "QU004", `QTXN resolved 1 of 2 pushes (empty or unknown queue/partition)`},
		{"EmptyPartitionName", new(pushOf("out", "", "x")), nil, "QU004", `QTXN resolved 1 of 2 pushes (empty or unknown queue/partition)`},
		{"MalformedSegment", &short, nil, "QU003", `QPUSH bad segment`},
		{"PlainPushToAnEncryptedQueue", &plain, nil, "QU004", `QTXN push to queue "secret" partition "p" refused (config); transaction rolled back`},
		{"UnknownTransactionID", nil, new(ackOf(bad, "g", "w", item{"m2", ""}, item{"unknown", ""})), "QU004", `QTXN ack references unknown transactionId; transaction rolled back`},
		{"ForeignPartition", nil, new(ackOf(foreign, "g", "w", item{"m2", ""})), "QU004", `QTXN ack references partition ` + foreign.String() + ` not owned by this tenant`},
		{"MissingPartition", nil, new(ackOf(missing, "g", "w", item{"m2", ""})), "QU004", `QTXN ack references partition ` + missing.String() + ` not owned by this tenant`},
		{"MalformedPartition", nil, &wireAck{PartitionID: "none", Group: "g", OK: new(false)}, "22P02", `none`},
		{"UnknownGroup", nil, new(ackOf(bad, "nobody", "w", item{"m2", ""})), "QU004", `QTXN ack failed for partition ` + bad.String() + ` group "nobody": consumer not found; transaction rolled back`},
		{"LostLease", nil, new(ackOf(bad, "g", "w2", item{"m2", ""})), "QU004", `group "g": invalid or expired lease; transaction rolled back`},
		{"ExpiredLease", nil, new(ackOf(bad, "late", "w", item{"m2", ""})), "QU004", `group "late": invalid or expired lease; transaction rolled back`},
		{"NackWithoutABatch", nil, new(ackOf(free, "g", "", item{"m2", "failed"})), "QU004", `group "g": no leased batch; transaction rolled back`},
		{"NackBelowTheCursor", nil, new(ackOf(bad, "g", "w", item{"m0", "retry"})), "QU004", `group "g": already committed: the cursor moved past this message before this ack; transaction rolled back`},
		{"PositionBeyondTheBatch", nil, &wireAck{PartitionID: bad.String(), Group: "g", Worker: "w", UptoOff: new(int64(9))}, "QU004", `group "g": position beyond leased batch; transaction rolled back`},
		{"SecondAckOfOneBatch", nil, new(ackOf(good, "g", "w", item{"m8", ""})), "QU004", `group "g": invalid or expired lease; transaction rolled back`},
		{"MalformedHash", nil, &wireAck{PartitionID: bad.String(), Group: "g", Worker: "w", Acks: []wireAckItem{{Hash: "xyz"}}}, "22023", `hexadecimal`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			request := wireTransaction{
				Pushes: []wirePush{pushOf("brand-new", "p", "x")},
				Acks:   []wireAck{ackOf(good, "g", "w", item{"m8", ""})},
			}
			if tc.push != nil {
				request.Pushes = append(request.Pushes, *tc.push)
			}
			if tc.ack != nil {
				request.Acks = append(request.Acks, *tc.ack)
			}
			before := log.state(t)
			_, err := transact(log, request)
			requireSQLState(t, err, tc.state, tc.error)
			require.Empty(t, cmp.Diff(before, log.state(t)))
		})
	}
	t.Run("DuplicateThatHoldsBackItsNeighboursIsNamed", func(t *testing.T) {
		before := log.state(t)
		_, err := transact(log, wireTransaction{Pushes: []wirePush{pushOf("bounded", "c", "x"), pushOf("bounded", "a", "b1"), pushOf("bounded", "d", "y")}})
		requireSQLState(t, err, "23505", `QDUP duplicate messages in queue "bounded" partition "a"; transaction rolled back`)
		require.Empty(t, cmp.Diff(before, log.state(t)))
	})
	t.Run("AndWithoutTheFailingPartItCommits", func(t *testing.T) {
		before := log.state(t)
		_, err := transact(log, wireTransaction{Pushes: []wirePush{pushOf("brand-new", "p", "x")}, Acks: []wireAck{ackOf(good, "g", "w", item{"m8", ""})}})
		require.NoError(t, err)
		require.NotEqual(t, before, log.state(t))
	})
}

// Room that a transaction's own acks free does not count for its pushes.
func TestTransactionChecksCapacityBeforeItsAcks(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	_, err := log.Exec(context.Background(), `INSERT INTO queen.queues (name, max_queue_size) VALUES ('q', 2)`)
	require.NoError(t, err)
	got, err := transact(log, wireTransaction{Pushes: []wirePush{pushOf("q", "p", "a", "b")}})
	require.NoError(t, err)
	partition := uuid.MustParse(got.Pushes[0].PartitionID)
	log.setCursor(t, partition, "g", cursor{Committed: -1, BatchEnd: new(int64(1)), Worker: "w", Lease: "live"})
	request := wireTransaction{Pushes: []wirePush{pushOf("q", "p", "c")}, Acks: []wireAck{ackOf(partition, "g", "w", item{"b", ""})}}

	_, err = transact(log, request)
	requireSQLState(t, err, "53400", "QUEUE_FULL")
	require.True(t, log.ackByHash(t, partition, "g", "w", item{"a", "completed"}).OK)
	_, err = transact(log, request)
	require.NoError(t, err)
}
