package sql_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// A poisonForm is one way to pop a queue of one partition. It returns the offsets claimed and whether they are one to be filed.
type poisonForm func(t tester, l popLog, c popCall) (offsets []int64, poison bool)

func offsetsOf(segments []taken) (offsets []int64) {
	for _, s := range segments {
		for i := range s.Take {
			offsets = append(offsets, s.Base+s.Start+i)
		}
	}
	return offsets
}

func fromMeta(segments []taken, meta popMeta) ([]int64, bool) {
	return offsetsOf(segments), len(meta.Partitions) > 0 && meta.Partitions[0].Poison
}

// poisonForms are all pops: binary, JSON, of one partition, of a list, of a queue, by discovery, of the hot list alone and for many.
var poisonForms = map[string]poisonForm{
	"Specific": func(t tester, l popLog, c popCall) ([]int64, bool) {
		return fromMeta(popBin(t, l, `SELECT meta, blobs FROM queen.log_pop_specific_bin_v1('ns.q', 'p', $1, $2, $3, $4, $5)`, c.group, c.budget, c.lease, c.worker, c.autoAck))
	},
	"SpecificJSON": func(t tester, l popLog, c popCall) ([]int64, bool) {
		meta := decodeMeta(t, scalar[[]byte](t, l, `SELECT jsonb_build_object('partitions', jsonb_build_array(
			queen.log_pop_specific_v1('ns.q', 'p', $1, $2, $3, $4, $5, 'all', '', '00000000-0000-0000-0000-000000000001')))`, c.group, c.budget, c.lease, c.worker, c.autoAck))
		return fromMeta(takenOfWire(meta), meta)
	},
	"Wildcard": func(t tester, l popLog, c popCall) ([]int64, bool) { return fromMeta(popWildcard(t, l, "ns.q", c)) },
	"WildcardJSON": func(t tester, l popLog, c popCall) ([]int64, bool) {
		meta := decodeMeta(t, scalar[[]byte](t, l, `SELECT queen.log_pop_wildcard_wire_v1('ns.q', $1, $2, $3, $4, $5, 0)`, c.group, c.budget, c.lease, c.worker, c.autoAck))
		return fromMeta(takenOfWire(meta), meta)
	},
	"Discovery": func(t tester, l popLog, c popCall) ([]int64, bool) { return fromMeta(popDiscover(t, l, "ns", "", c)) },
	"DiscoveryJSON": func(t tester, l popLog, c popCall) ([]int64, bool) {
		meta := decodeMeta(t, scalar[[]byte](t, l, `SELECT queen.log_pop_discover_wire_v1('ns', '', $1, $2, $3, $4, $5, 0)`, c.group, c.budget, c.lease, c.worker, c.autoAck))
		return fromMeta(takenOfWire(meta), meta)
	},
	"List": func(t tester, l popLog, c popCall) ([]int64, bool) {
		segments, meta, _ := popList(t, l, "ns.q", []string{"p"}, c)
		return fromMeta(segments, meta)
	},
	"LongList": func(t tester, l popLog, c popCall) ([]int64, bool) {
		segments, meta, _ := popList(t, l, "ns.q", []string{"a", "b", "c", "p"}, c)
		return fromMeta(segments, meta)
	},
	"Ready": func(t tester, l popLog, c popCall) ([]int64, bool) {
		segments, verdicts := popReady(t, l, "ns.q", []string{"p"}, c)
		return offsetsOf(segments), len(verdicts) > 0 && verdicts[0].verdict == "poison"
	},
	"ReadyForMany": func(t tester, l popLog, c popCall) (offsets []int64, poison bool) {
		var base, start, take int64
		var verdict string
		rows, err := l.Query(context.Background(), `SELECT r_verdict, r_base, r_start, r_take FROM queen.log_pop_ready_v1('ns.q', $1, '{p}', $2::int, 0, '', $3, 0,
			p_workers => ARRAY[$4::text], p_budgets => ARRAY[$2::int], p_leases => ARRAY[$5::int]) WHERE r_base IS NOT NULL`, c.group, c.budget, c.autoAck, c.worker, c.lease)
		require.NoError(t, err)
		defer rows.Close()
		for rows.Next() {
			require.NoError(t, rows.Scan(&verdict, &base, &start, &take))
			offsets = append(offsets, offsetsOf([]taken{{Base: base, Start: start, Take: take}})...)
		}
		require.NoError(t, rows.Err())
		return offsets, verdict == "poison"
	},
}

// takenOfWire reads the segments of a JSON form.
func takenOfWire(meta popMeta) (all []taken) {
	for _, p := range meta.Partitions {
		for _, s := range p.Segments {
			all = append(all, taken{Partition: p.Partition, Base: s.Seq, Start: s.StartOff, Take: s.Take})
		}
	}
	return all
}

// poisonLog is a queue of ten messages in segments of 4, 3 and 3.
func poisonLog(t *testing.T, most int) (popLog, uuid.UUID) {
	t.Helper()
	l := newPopLog(t)
	id := l.queue(t, "ns.q", popQueue{MaxDeliveries: most, Namespace: "ns"})
	return l, l.partition(t, id, "p", run{0, 4, time.Minute}, run{4, 3, time.Minute}, run{7, 3, time.Minute})
}

func (l popLog) runOut(t tester, partition uuid.UUID) {
	t.Helper()
	l.exec(t, `UPDATE queen.log_consumers SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE partition_id = $1 AND worker_id IS NOT NULL`, partition)
}

func (l popLog) ack(t tester, partition uuid.UUID, worker string, upto int64) {
	t.Helper()
	require.True(t, scalar[bool](t, l, `SELECT (queen.log_ack_at_v1($1, 'g', $2, $3, TRUE, 1) ->> 'ok')::BOOLEAN`, partition, worker, upto))
}

// A message that ends its consumers is found among its neighbours, which are delivered once more, one by one, and not charged for it.
// Then batches are whole again.
func TestPopFindsTheMessageThatEndsItsConsumers(t *testing.T) {
	t.Parallel()
	for name, pop := range poisonForms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const most, killer = 2, 3
			l, p := poisonLog(t, most)
			c := popCall{budget: 6}.filled()
			first, poison := pop(t, l, c)
			require.Equal(t, []int64{0, 1, 2, 3, 4, 5}, first)
			require.False(t, poison)
			l.runOut(t, p)
			deliveries := 0
			for range 20 {
				got, poison := pop(t, l, c)
				require.Len(t, got, 1, "one by one while the batch that ran out is gone through")
				if got[0] != killer {
					require.False(t, poison, "message %d is a neighbour", got[0])
					l.ack(t, p, c.worker, got[0])
					if got[0] == 5 {
						break
					}
					continue
				}
				if !poison {
					deliveries++
					l.runOut(t, p)
					continue
				}
				require.Equal(t, most, deliveries)
				letter := scalar[map[string]any](t, l, `SELECT queen.log_dlq_head_v1($1, 'g', $2, $3, NULL, 'txn', '1', NULL)`, p, c.worker, got[0])
				require.Equal(t, true, letter["ok"])
			}
			got, _ := pop(t, l, c)
			require.Equal(t, []int64{6, 7, 8, 9}, got, "whole batches again")
			require.Equal(t, "delivered 2 times without an acknowledgment, the most that maxDeliveries of the queue allows",
				scalar[string](t, l, `SELECT string_agg(error, '|') FROM queen.log_dlq`))
		})
	}
}

func TestPopWithoutMaxDeliveriesDeliversForEver(t *testing.T) {
	t.Parallel()
	for name, pop := range poisonForms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, p := poisonLog(t, 0)
			for range 4 {
				got, poison := pop(t, l, popCall{budget: 6}.filled())
				require.Equal(t, []int64{0, 1, 2, 3, 4, 5}, got)
				require.False(t, poison)
				l.runOut(t, p)
			}
		})
	}
}

// A pop that acknowledges at once cannot deliver twice: it takes what others left, whole.
func TestPopThatAcknowledgesAtOnceKnowsNoPoison(t *testing.T) {
	t.Parallel()
	for name, pop := range poisonForms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, p := poisonLog(t, 1)
			_, _ = pop(t, l, popCall{budget: 6}.filled())
			l.runOut(t, p)
			got, poison := pop(t, l, popCall{budget: 6, autoAck: true}.filled())
			require.Equal(t, []int64{0, 1, 2, 3, 4, 5}, got)
			require.False(t, poison)
		})
	}
}

// What was given back before anybody got it, and what a seek goes back over, starts anew.
func TestPopCountsOnlyDeliveries(t *testing.T) {
	t.Parallel()
	l, p := poisonLog(t, 1)
	c := popCall{budget: 6}.filled()
	for range 3 {
		got, poison := poisonForms["Ready"](t, l, c)
		require.Len(t, got, 6)
		require.False(t, poison)
		require.Empty(t, scalar[[]uuid.UUID](t, l, `SELECT array(SELECT queen.log_pop_shorten_v1('g', 'w', ARRAY[$1::uuid], ARRAY[NULL::bigint]))`, p))
	}
	_, _ = poisonForms["Ready"](t, l, c)
	l.runOut(t, p)
	_, poison := poisonForms["Ready"](t, l, c)
	require.True(t, poison)
	l.exec(t, `SELECT queen.log_seek_consumer_group_v1('g', 'ns.q', FALSE, '1970-01-01')`)
	got, poison := poisonForms["Ready"](t, l, c)
	require.Equal(t, []int64{0, 1, 2, 3, 4, 5}, got)
	require.False(t, poison)
}
