package pg_test

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
)

func hexOf(id string) string { return hex.EncodeToString(hash(id)) }

func TestAckByHash(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		ids, statuses []string
		worker        string
		want          pg.HashAckResult
	}{
		"WholeBatch": {[]string{"1", "2", "3"}, []string{"completed", "completed", "completed"}, "w", pg.HashAckResult{OK: true, Acked: 3, Offset: 2, LeaseReleased: true}},
		"Part":       {[]string{"1"}, []string{"completed"}, "w", pg.HashAckResult{OK: true, Acked: 1}},
		"Failed":     {[]string{"1", "2"}, []string{"completed", "failed"}, "w", pg.HashAckResult{OK: true, Acked: 1, LeaseReleased: true}},
		"DeadLetter": {[]string{"1", "2"}, []string{"completed", "dlq"}, "w", pg.HashAckResult{OK: true, DeadLetter: true, Worker: "w", Offset: 1, Acked: 1}},
		"Unknown":    {[]string{"nobody's"}, []string{"completed"}, "w", pg.HashAckResult{OK: true, Acked: 0, Offset: -1, Unresolved: []string{hexOf("nobody's")}}},
		"WrongLease": {[]string{"1"}, []string{"completed"}, "thief", pg.HashAckResult{Error: "invalid or expired lease"}},
		"LeaseLess":  {[]string{"1"}, []string{"completed"}, "", pg.HashAckResult{OK: true, Acked: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, _ := setup(t)
			partition := leased(t, db, "1", "2", "3")
			result, err := db.AckByHash(t.Context(), pg.HashAck{PartitionID: partition, Group: "g", Worker: test.worker, Hashes: hashesOf(test.ids...), Statuses: test.statuses})
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(test.want, normal(result)))
		})
	}
	t.Run("AgainIsANoop", func(t *testing.T) {
		t.Parallel()
		db, _ := setup(t)
		partition := leased(t, db, "1")
		ack := pg.HashAck{PartitionID: partition, Group: "g", Hashes: hashesOf("1"), Statuses: []string{"completed"}}
		_, err := db.AckByHash(t.Context(), ack)
		require.NoError(t, err)
		result, err := db.AckByHash(t.Context(), ack)
		require.NoError(t, err)
		require.Equal(t, []string{hexOf("1")}, result.Noop)
		ack.Statuses = []string{"failed"}
		result, err = db.AckByHash(t.Context(), ack)
		require.NoError(t, err)
		require.Equal(t, []string{hexOf("1")}, result.Stale)
	})
	t.Run("CompletedBefore", func(t *testing.T) {
		t.Parallel()
		db, _ := setup(t)
		partition := leased(t, db, "1", "2", "3")
		ack := pg.HashAck{PartitionID: partition, Group: "g", Worker: "w", Hashes: hashesOf("2"), Statuses: []string{"completed"}}
		_, err := db.AckByHash(t.Context(), ack)
		require.NoError(t, err)
		completed, err := db.CompletedBefore(t.Context(), partition, "g", hashesOf("3", "2", "1", "1", "nobody's"))
		require.NoError(t, err)
		require.ElementsMatch(t, hashesOf("1", "2"), completed)
		for group, partition := range map[string]uuid.UUID{"nobody": partition, "g": uuid.New()} {
			completed, err = db.CompletedBefore(t.Context(), partition, group, hashesOf("1"))
			require.NoError(t, err)
			require.Empty(t, completed)
		}
	})
	t.Run("NoConsumer", func(t *testing.T) {
		t.Parallel()
		db, _ := setup(t)
		result, err := db.AckByHash(t.Context(), pg.HashAck{PartitionID: uuid.New(), Group: "g", Hashes: hashesOf("1"), Statuses: []string{"completed"}})
		require.NoError(t, err)
		require.Equal(t, pg.HashAckResult{Error: "consumer not found"}, normal(result))
	})
	t.Run("Misaligned", func(t *testing.T) {
		t.Parallel()
		db, _ := setup(t)
		partition := leased(t, db, "1")
		_, err := db.AckByHash(t.Context(), pg.HashAck{PartitionID: partition, Group: "g", Hashes: hashesOf("1"), Statuses: []string{}})
		require.ErrorIs(t, err, pg.ErrBadData)
	})
}

// normal makes empty lists nil, which mean the same.
func normal(r pg.HashAckResult) pg.HashAckResult {
	for _, list := range []*[]string{&r.Noop, &r.Stale, &r.Unresolved} {
		if len(*list) == 0 {
			*list = nil
		}
	}
	return r
}

func TestAckMulti(t *testing.T) {
	t.Parallel()
	db, _ := setup(t)
	one := leased(t, db, "1", "2")
	results, err := db.AckMulti(t.Context(), []pg.PositionalAck{
		{PartitionID: uuid.New(), Group: "g", Worker: "w", End: 1, Count: 2},
		{PartitionID: one, Group: "g", Worker: "w", End: 1, Count: 2},
	})
	require.NoError(t, err)
	require.Empty(t, cmp.Diff([]pg.PositionalAckResult{{Error: "consumer not found"}, {OK: true, Acked: 2}}, results))

	results, err = db.AckMulti(t.Context(), []pg.PositionalAck{{PartitionID: one, Group: "g", Worker: "w", End: 1, Count: 2}})
	require.NoError(t, err)
	require.Empty(t, cmp.Diff([]pg.PositionalAckResult{{Error: "invalid or expired lease"}}, results))
	none, err := db.AckMulti(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, none)
}

func TestReleaseLease(t *testing.T) {
	t.Parallel()
	db, _ := setup(t)
	partition := leased(t, db, "1")
	require.NoError(t, db.ReleaseLease(t.Context(), partition, "g", "thief"))
	worker, live, err := db.PartitionLeaseHolder(t.Context(), partition, "g")
	require.NoError(t, err)
	require.True(t, live)
	require.Equal(t, "w", worker, "somebody else released the lease")
	require.NoError(t, db.ReleaseLease(t.Context(), partition, "g", "w"))
	require.NoError(t, db.ReleaseLease(t.Context(), partition, "g", "w"), "a lease that is gone already")
	require.NoError(t, db.ReleaseLease(t.Context(), uuid.New(), "g", "w"))
	claim, err := db.PopWildcard(t.Context(), popRequest("q", "w2"))
	require.NoError(t, err)
	require.Len(t, claim.Partitions, 1)
}

func TestFileDeadLetter(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		payload []byte
		parsed  any
	}{
		"Plain":            {[]byte(`{"a": 1}`), `{"a": 1}`},
		"NUL escape":       {[]byte(`{"a":"\u0000"}`), nil},
		"Lone surrogate":   {[]byte(`"\ud800"`), nil},
		"Huge exponent":    {[]byte(`1e999999`), nil},
		"Not JSON":         {[]byte(`{`), nil},
		"Deep":             {deep(20000), nil},
		"Number is kept":   {[]byte(`12345678901234567890123456789012345678901234567890`), `12345678901234567890123456789012345678901234567890`},
		"Empty means null": {[]byte{}, `null`},
		"Gone":             {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, database := setup(t)
			partition := leased(t, db, "1", "2")
			message, trace := uuid.New(), uuid.New()
			result, err := db.FileDeadLetter(t.Context(), pg.DeadLetter{
				PartitionID: partition, Group: "g", Worker: "w", Offset: 0, MessageID: uuid.NullUUID{UUID: message, Valid: true}, TransactionID: "1",
				Payload: test.payload, TraceID: uuid.NullUUID{UUID: trace, Valid: true}, Error: "bad\x00 \xff text",
			})
			require.NoError(t, err)
			require.True(t, result.OK, result.Error)
			var row struct {
				parsed, reason, transaction, message, trace *string
				raw                                         []byte
			}
			require.NoError(t, database.Pool(t).QueryRow(t.Context(), `SELECT payload::text, payload_raw, error, transaction_id, message_id::text, trace_id::text FROM queen.log_dlq WHERE id = $1::text::uuid`, result.ID.String()).
				Scan(&row.parsed, &row.raw, &row.reason, &row.transaction, &row.message, &row.trace))
			if test.parsed == nil {
				require.Nil(t, row.parsed)
			} else {
				require.Equal(t, test.parsed, *row.parsed)
			}
			require.Equal(t, test.payload, row.raw)
			require.Equal(t, "bad\uFFFD \uFFFD text", *row.reason)
			require.Equal(t, []string{"1", message.String(), trace.String()}, []string{*row.transaction, *row.message, *row.trace})
		})
	}
	t.Run("LeaseLost", func(t *testing.T) {
		t.Parallel()
		db, _ := setup(t)
		partition := leased(t, db, "1")
		for worker, reason := range map[string]string{"thief": "invalid or expired lease", "": "worker is required"} {
			result, err := db.FileDeadLetter(t.Context(), pg.DeadLetter{PartitionID: partition, Group: "g", Worker: worker, Payload: []byte("1")})
			require.NoError(t, err)
			require.Equal(t, pg.DeadLetterResult{Error: reason}, result)
		}
	})
}

// deep returns nested arrays, deeper than the server's parser goes.
func deep(levels int) []byte {
	text := make([]byte, 0, 2*levels)
	for range levels {
		text = append(text, '[')
	}
	for range levels {
		text = append(text, ']')
	}
	return text
}

func TestRenewLease(t *testing.T) {
	t.Parallel()
	db, _ := setup(t)
	partition := leased(t, db, "1")
	renewal, err := db.RenewLease(t.Context(), pg.DefaultTenant, "w", 3600)
	require.NoError(t, err)
	require.Equal(t, 1, renewal.Renewed)
	require.WithinDuration(t, time.Now().Add(time.Hour), renewal.ExpiresAt, time.Minute)

	for name, call := range map[string]func() (pg.Renewal, error){
		"foreign tenant": func() (pg.Renewal, error) { return db.RenewLease(t.Context(), uuid.New(), "w", 7200) },
		"unknown worker": func() (pg.Renewal, error) { return db.RenewLease(t.Context(), pg.DefaultTenant, "x", 7200) },
		"nobody":         func() (pg.Renewal, error) { return db.RenewLease(t.Context(), pg.DefaultTenant, "", 7200) },
	} {
		none, err := call()
		require.NoError(t, err, name)
		require.Equal(t, pg.Renewal{}, none, name)
	}
	require.NoError(t, db.ReleaseLease(t.Context(), partition, "g", "w"))
	renewal, err = db.RenewLease(t.Context(), pg.DefaultTenant, "w", 60)
	require.NoError(t, err)
	require.Equal(t, pg.Renewal{}, renewal)
}
