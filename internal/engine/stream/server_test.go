package stream

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/push"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// A store answers cycles one after the other and remembers what it was asked.
type store struct {
	answers []pg.StreamCycleResult
	errs    []error
	asked   []pg.StreamCycle

	partitions []pg.StreamPartitions
	rows       []pg.StreamRow
}

func (s *store) StreamsCycle(_ context.Context, c pg.StreamCycle) (pg.StreamCycleResult, error) {
	n := len(s.asked)
	s.asked = append(s.asked, c)
	if n < len(s.errs) && s.errs[n] != nil {
		return pg.StreamCycleResult{}, s.errs[n]
	}
	return s.answers[n], nil
}

func (s *store) StreamSeals(context.Context, uuid.UUID, uuid.UUID, uuid.UUID) (bool, error) {
	return false, nil
}

func (s *store) StreamState(context.Context, uuid.UUID, json.RawMessage) (json.RawMessage, error) {
	return json.RawMessage(`{"success":true,"rows":[]}`), nil
}

func (s *store) StreamPartitions(context.Context, uuid.UUID, []uuid.UUID, int) ([]pg.StreamPartitions, error) {
	return s.partitions, nil
}

func (s *store) StreamRows(_ context.Context, _ uuid.UUID, wanted []pg.StreamRow) (found []pg.StreamRow, err error) {
	for _, w := range wanted {
		for _, r := range s.rows {
			if r.Query == w.Query && r.Partition == w.Partition && r.Key == w.Key {
				found = append(found, r)
			}
		}
	}
	return found, nil
}

type wakes []string

func (w *wakes) Wake(_ uuid.UUID, queue, partition string) { *w = append(*w, queue+"/"+partition) }

func (w *wakes) Released(_ uuid.UUID, queue, partition, group, covered string) {
	*w = append(*w, "released "+queue+"/"+partition+" "+group+" "+covered)
}

// acks know one partition and remember what they were told to forget.
type acks []string

func (*acks) Owner(_ context.Context, tenant, partition uuid.UUID) (ack.Owner, error) {
	if partition != source {
		return ack.Owner{}, ack.ErrNotOwned
	}
	return ack.Owner{Tenant: tenant, Queue: "in", Partition: "eu"}, nil
}

func (a *acks) Forget(partition uuid.UUID, group, worker string) {
	*a = append(*a, partition.String()+" "+group+" "+worker)
}

var source = uuid.MustParse("0199b0c4-6a11-7f3e-8c55-41d0e9a7b2f6")

func payloads(t *testing.T, s pg.Segment) []string {
	t.Helper()
	frames, err := segment.Unpack(s.Blob)
	require.NoError(t, err)
	defer frames.Release()
	var texts []string
	for i := range frames.Len() {
		texts = append(texts, string(frames.At(i).Payload))
	}
	require.Equal(t, s.Count, frames.Len())
	return texts
}

func item(queue, id, payload string) push.Item {
	return push.Item{Queue: queue, Partition: "p", TransactionID: id, Payload: []byte(payload)}
}

func run(t *testing.T, s *store, w *wakes, items ...push.Item) (json.RawMessage, error) {
	t.Helper()
	server := New(Config{}, s, &acks{}, w, admission.New(admission.Config{PoolSize: 4, Reserve: 1}))
	return server.Run(t.Context(), pg.DefaultTenant, "", Cycle{Items: items})
}

func TestStoredFramesAreLeftOutAndTheCycleRunsAgain(t *testing.T) {
	t.Parallel()
	failed := pg.StreamCycleResult{Error: "partial duplicate", Answer: json.RawMessage(`{"success":false}`), Duplicates: []pg.StreamDuplicates{
		{StreamSink: pg.StreamSink{Queue: "a", Partition: "p"}, Frames: []int{0, 2}},
	}}
	done := pg.StreamCycleResult{Success: true, Answer: json.RawMessage(`{"success":true}`), Queue: "in", Queued: []pg.StreamSink{{Queue: "a", Partition: "p"}}}
	s, w := &store{answers: []pg.StreamCycleResult{failed, done}}, &wakes{}
	answer, err := run(t, s, w,
		item("a", "1", "1"), item("b", "1", "other queue"), item("a", "2", "2"), item("a", "1", "repeat of a dropped one"), item("a", "3", "3"), item("a", "4", "4"), item("a", "2", "repeat"))
	require.NoError(t, err)
	require.JSONEq(t, `{"success":true}`, string(answer))
	require.Len(t, s.asked, 2)
	require.Equal(t, []string{"1", "2", "3", "4"}, payloads(t, s.asked[0].Sinks[0]))
	require.Equal(t, []string{"other queue"}, payloads(t, s.asked[1].Sinks[0]))
	require.Equal(t, []string{"2", "4"}, payloads(t, s.asked[1].Sinks[1]))
	require.Equal(t, wakes{"a/p"}, *w)
}

func TestRepackedCycleIsNotRepackedAgain(t *testing.T) {
	t.Parallel()
	failed := pg.StreamCycleResult{Error: "partial duplicate", Answer: json.RawMessage(`{"success":false}`), Duplicates: []pg.StreamDuplicates{
		{StreamSink: pg.StreamSink{Queue: "a", Partition: "p"}, Frames: []int{0}},
	}}
	s, w := &store{answers: []pg.StreamCycleResult{failed, failed}}, &wakes{}
	answer, err := run(t, s, w, item("a", "1", "1"), item("a", "2", "2"), item("a", "3", "3"))
	require.NoError(t, err)
	require.JSONEq(t, `{"success":false}`, string(answer))
	require.Len(t, s.asked, 2)
	require.Empty(t, *w)
}

func TestCycleIsRepeatedWhenAQueueVanished(t *testing.T) {
	t.Parallel()
	s := &store{errs: []error{pg.ErrVanished}, answers: []pg.StreamCycleResult{{}, {Success: true, Answer: json.RawMessage(`{}`)}}}
	_, err := run(t, s, &wakes{}, item("a", "1", "1"))
	require.NoError(t, err)
	require.Len(t, s.asked, 2)
	s = &store{errs: []error{pg.ErrUnavailable}}
	_, err = run(t, s, &wakes{})
	require.ErrorIs(t, err, pg.ErrUnavailable)
}

// Whoever waits for the source is told of the one partition that is free again: a wake of the whole queue makes every group ask the
// database about all of it, for each cycle.
func TestEndOfTheSourceLeaseNamesThePartition(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		ok, keep, released bool
		want               wakes
	}{
		"Completed":          {true, false, true, wakes{"released in/eu g lease"}},
		"CompletedByTheGate": {true, true, true, wakes{"released in/eu g lease"}},
		"GivenBack":          {false, false, true, wakes{"released in/eu g "}},
		"LeaseKept":          {true, true, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &store{answers: []pg.StreamCycleResult{{Success: true, Answer: json.RawMessage(`{}`), Queue: "in", LeaseReleased: row.released}}}
			var w wakes
			var a acks
			server := New(Config{}, s, &a, &w, admission.New(admission.Config{PoolSize: 4, Reserve: 1}))
			_, err := server.Run(t.Context(), pg.DefaultTenant, "", Cycle{
				PartitionID: source, Group: "g", Worker: "lease", Ack: &pg.StreamAck{OK: row.ok, Count: 1}, KeepLease: row.keep,
			})
			require.NoError(t, err)
			require.Equal(t, row.want, w)
			require.Equal(t, acks{source.String() + " g lease"}, a)
		})
	}
}
