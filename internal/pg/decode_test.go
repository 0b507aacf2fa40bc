package pg

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"
)

var partitionID = uuid.MustParse("0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731")

func TestPushAnswer(t *testing.T) {
	t.Parallel()
	id := pgtype.UUID{Bytes: partitionID, Valid: true}
	stamp := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	five := func(at func(*pushAnswer)) *pushAnswer {
		a := &pushAnswer{
			order: []int32{2, 1, 3, 5, 4}, partitions: []pgtype.UUID{id, id, id, id, id}, bases: []*int64{nil, new(int64(9007199254740993)), nil, nil, nil},
			created: []time.Time{stamp, stamp, stamp, stamp, stamp}, windows: []int32{60, 3600, 0, 0, 0},
			statuses: []PushStatus{PushDuplicate, PushQueued, PushFull, PushConfig, PushHeld},
			details:  [][]byte{[]byte(`{"dups":[{"i":1,"off":4}]}`), []byte(`{"depth":5,"limit":10,"remaining":5}`), []byte(`{"depth":10,"limit":10,"remaining":0}`), []byte(`{"new":1}`), []byte(`{}`)},
		}
		if at != nil {
			at(a)
		}
		return a
	}
	segments := []Segment{{Count: 1}, {Count: 2}, {Count: 1}, {Count: 1}, {Count: 1}}
	verdicts, err := five(nil).verdicts(segments)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff([]PushVerdict{
		{Status: PushQueued, PartitionID: partitionID, BaseOffset: 9007199254740993, CreatedAt: stamp, Window: time.Hour, Depth: 5, Limit: 10, Remaining: 5},
		{Status: PushDuplicate, PartitionID: partitionID, Window: time.Minute, Duplicates: []Duplicate{{Frame: 1, Offset: 4}}},
		{Status: PushFull, PartitionID: partitionID, Depth: 10, Limit: 10},
		{Status: PushHeld, PartitionID: partitionID},
		{Status: PushConfig, PartitionID: partitionID},
	}, verdicts))
	stored := &pushAnswer{order: []int32{1}, partitions: []pgtype.UUID{id}, bases: []*int64{new(int64)}, created: []time.Time{stamp}, windows: []int32{3600}}
	verdicts, err = stored.verdicts(segments[:1])
	require.NoError(t, err)
	require.Empty(t, cmp.Diff([]PushVerdict{{Status: PushQueued, PartitionID: partitionID, CreatedAt: stamp, Window: time.Hour}}, verdicts))

	for name, damage := range map[string]func(*pushAnswer){
		"fewer":                 func(a *pushAnswer) { a.order = a.order[:4] },
		"fewer bases":           func(a *pushAnswer) { a.bases = a.bases[:4] },
		"fewer windows":         func(a *pushAnswer) { a.windows = nil },
		"fewer details":         func(a *pushAnswer) { a.details = a.details[:4] },
		"no detail":             func(a *pushAnswer) { a.details[3] = nil },
		"one twice":             func(a *pushAnswer) { a.order[0] = 1 },
		"position below":        func(a *pushAnswer) { a.order[0] = 0 },
		"position above":        func(a *pushAnswer) { a.order[0] = 6 },
		"unknown status":        func(a *pushAnswer) { a.statuses[0] = "done" },
		"no status":             func(a *pushAnswer) { a.statuses[4] = "" },
		"queued without offset": func(a *pushAnswer) { a.bases[1] = nil },
		"queued below zero":     func(a *pushAnswer) { a.bases[1] = new(int64(-1)) },
		"queued without id":     func(a *pushAnswer) { a.partitions[1] = pgtype.UUID{} },
		"no frames":             func(a *pushAnswer) { a.details[0] = []byte(`{}`) },
		"frame outside":         func(a *pushAnswer) { a.details[0] = []byte(`{"dups":[{"i":2,"off":4}]}`) },
		"frame below":           func(a *pushAnswer) { a.details[0] = []byte(`{"dups":[{"i":-1,"off":4}]}`) },
		"no frame":              func(a *pushAnswer) { a.details[0] = []byte(`{"dups":[{"off":4}]}`) },
		"overflow":              func(a *pushAnswer) { a.details[2] = []byte(`{"depth":9223372036854775808}`) },
		"not json":              func(a *pushAnswer) { a.details[2] = []byte(`{`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := five(damage).verdicts(segments)
			require.ErrorIs(t, err, ErrMalformedAnswer)
		})
	}
}

func TestDecodeClaim(t *testing.T) {
	t.Parallel()
	const segment = `{"seq":7,"startOff":2,"take":3,"createdAt":"2026-01-02T03:04:05.000006Z"}`
	partition := func(fields, segments string) string {
		return fmt.Sprintf(`{"partitions":[{%s,"segments":[%s]}]}`, fields, segments)
	}
	const named = `"queue":"q","partition":"p","partitionId":"0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731","attempt":1`
	claim, err := decodeClaim([]byte(partition(named, segment)), [][]byte{{1}}, "")
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(Claim{Partitions: []ClaimedPartition{{Queue: "q", Partition: "p", PartitionID: partitionID, Segments: []ClaimedSegment{
		{Base: 7, StartIndex: 2, Take: 3, CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), Blob: []byte{1}},
	}}}}, claim))
	empty, err := decodeClaim([]byte(`{"partitions":[]}`), nil, "q")
	require.NoError(t, err)
	require.Empty(t, empty.Partitions)

	for name, test := range map[string]struct {
		meta  string
		blobs [][]byte
	}{
		"fewer blobs":     {partition(named, segment), nil},
		"more blobs":      {`{"partitions":[]}`, [][]byte{{1}}},
		"empty blob":      {partition(named, segment), [][]byte{{}}},
		"no segments":     {partition(named, ""), nil},
		"no partition id": {partition(`"queue":"q","partition":"p"`, segment), [][]byte{{1}}},
		"nil id":          {partition(`"queue":"q","partition":"p","partitionId":"00000000-0000-0000-0000-000000000000"`, segment), [][]byte{{1}}},
		"empty id":        {partition(`"queue":"q","partition":"p","partitionId":""`, segment), [][]byte{{1}}},
		"no queue":        {partition(`"partition":"p","partitionId":"0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731"`, segment), [][]byte{{1}}},
		"no take":         {partition(named, `{"seq":7,"startOff":2,"createdAt":"2026-01-02T03:04:05Z"}`), [][]byte{{1}}},
		"zero take":       {partition(named, `{"seq":7,"startOff":2,"take":0,"createdAt":"2026-01-02T03:04:05Z"}`), [][]byte{{1}}},
		"null":            {`null`, [][]byte{{1}}},
		"array":           {`[]`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := decodeClaim([]byte(test.meta), test.blobs, "")
			require.ErrorIs(t, err, ErrMalformedAnswer)
		})
	}
}

func TestDecodeStates(t *testing.T) {
	t.Parallel()
	states, err := decodeStates([]byte(`[{"p":"a","s":"took","lastOff":9007199254740993},{"p":"b","s":"leased","until":"2026-01-02T03:04:05.5Z"},{"p":"","s":"empty"}]`))
	require.NoError(t, err)
	require.Empty(t, cmp.Diff([]CandidateState{
		{Partition: "a", Verdict: CandidateTook, LastOffset: 9007199254740993},
		{Partition: "b", Verdict: CandidateLeased, Until: time.Date(2026, 1, 2, 3, 4, 5, 5e8, time.UTC)},
		{Verdict: CandidateEmpty},
	}, states))
	for _, text := range []string{``, `{}`, `[{"s":"empty"}]`, `[{"p":"a","s":"took"}]`, `[{"p":"a","s":"leased"}]`, `[{"p":"a","s":"gone"}]`} {
		_, err := decodeStates([]byte(text))
		require.ErrorIs(t, err, ErrMalformedAnswer, text)
	}
}

func TestDecodeAcks(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{}`, `{"ok":false}`, `{"ok":true,"dlq":true}`, `{"ok":true,"dropped":true}`} {
		var raw hashAckJSON
		require.NoError(t, decodeJSON([]byte(text), &raw))
		_, err := raw.result()
		require.ErrorIs(t, err, ErrMalformedAnswer, text)
	}
	for _, text := range []string{`{}`, `{"renewed":1,"expiresAt":null}`} {
		_, err := decodeRenewal([]byte(text))
		require.ErrorIs(t, err, ErrMalformedAnswer, text)
	}
}

func TestDecodeTransactionRestoresRequestOrder(t *testing.T) {
	t.Parallel()
	one, two := uuid.New(), uuid.New()
	transaction := Transaction{Acks: []HashAck{{PartitionID: one, Group: "g"}, {PartitionID: two, Group: "g"}, {PartitionID: one, Group: "h"}}}
	element := func(id uuid.UUID, group string, acked int) string {
		return fmt.Sprintf(`{"ok":true,"partitionId":%q,"group":%q,"acked":%d}`, id, group, acked)
	}
	result, err := decodeTransaction([]byte(`{"ok":true,"pushes":[],"acks":[`+element(one, "h", 3)+","+element(two, "g", 2)+","+element(one, "g", 1)+`]}`), transaction)
	require.NoError(t, err)
	for i, want := range []int64{1, 2, 3} {
		require.Equal(t, want, result.Acks[i].Acked)
	}
	for name, acks := range map[string]string{
		"missing":  element(one, "g", 1),
		"twice":    element(one, "g", 1) + "," + element(one, "g", 1) + "," + element(two, "g", 1),
		"stranger": element(one, "g", 1) + "," + element(two, "g", 1) + "," + element(uuid.New(), "g", 1),
	} {
		_, err := decodeTransaction([]byte(`{"ok":true,"pushes":[],"acks":[`+acks+`]}`), transaction)
		require.ErrorIs(t, err, ErrMalformedAnswer, name)
	}
}

func TestOptionsKeepTheirBytes(t *testing.T) {
	t.Parallel()
	merged, err := withNames([]byte(`{"maxSize":12345678901234567890123, "namespace":"old"}`), "new", "")
	require.NoError(t, err)
	require.Equal(t, `{"maxSize":12345678901234567890123,"namespace":"new"}`, string(merged))
	for _, none := range []string{"", "null", "{}"} {
		merged, err := withNames([]byte(none), "", "")
		require.NoError(t, err)
		require.Equal(t, "{}", string(merged))
	}
	var refused *OptionError
	_, err = withNames([]byte(`[1]`), "", "")
	require.ErrorAs(t, err, &refused)
}
