package pg

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

var partitionID = uuid.MustParse("0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731")

func TestDecodePushVerdicts(t *testing.T) {
	t.Parallel()
	const id = `"partitionId":"0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731"`
	answer := `[{"status":"queued","baseOffset":9007199254740993,"createdAt":"2026-01-02T03:04:05.000006Z",` + id + `,"depth":5,"limit":10},
		{"status":"duplicate","dups":[{"i":1,"off":4}],` + id + `}, {"status":"full","depth":10,"limit":10,"remaining":0}, {"status":"held"}, {"status":"config","new":1}]`
	segments := []Segment{{Count: 1}, {Count: 2}, {Count: 1}, {Count: 1}, {Count: 1}}
	verdicts, err := decodePushVerdicts([]byte(answer), segments)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff([]PushVerdict{
		{Status: PushQueued, PartitionID: partitionID, BaseOffset: 9007199254740993, CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), Depth: 5, Limit: 10},
		{Status: PushDuplicate, PartitionID: partitionID, Duplicates: []Duplicate{{Frame: 1, Offset: 4}}},
		{Status: PushFull, Depth: 10, Limit: 10},
		{Status: PushHeld},
		{Status: PushConfig},
	}, verdicts))

	for name, answer := range map[string]string{
		"null": `null`, "object": `{}`, "short": `[]`, "long": `[{"status":"held"},{"status":"held"}]`, "status": `[{"status":"done"}]`, "no status": `[{}]`,
		"queued without offset": `[{"status":"queued","createdAt":"2026-01-02T03:04:05Z",` + id + `}]`, "queued without id": `[{"status":"queued","baseOffset":1,"createdAt":"2026-01-02T03:04:05Z"}]`,
		"no frames": `[{"status":"duplicate",` + id + `}]`, "frame outside": `[{"status":"duplicate","dups":[{"i":1,"off":4}]}]`, "frame below": `[{"status":"duplicate","dups":[{"i":-1,"off":4}]}]`,
		"fraction": `[{"status":"queued","baseOffset":1.5,"createdAt":"2026-01-02T03:04:05Z",` + id + `}]`, "overflow": `[{"status":"full","depth":9223372036854775808}]`, "not json": `[`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := decodePushVerdicts([]byte(answer), []Segment{{Count: 1}})
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
	for _, text := range []string{`{"results":[]}`, `{"results":[{}]}`, `{"results":[{"ok":false}]}`, `{}`, `null`, `{"results":[{"ok":true},{"ok":true}]}`} {
		_, err := decodePositional([]byte(text), 1)
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
