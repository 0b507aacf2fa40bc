package ack

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"queenmq/internal/engine/segment"
)

func hashes(transactionIDs ...string) []byte {
	var all []byte
	for _, id := range transactionIDs {
		hash := segment.Hash(id)
		all = append(all, hash[:]...)
	}
	return all
}

// delivery of messages a, b and c under lease "holder".
func delivery() Delivery {
	return Delivery{
		Tenant: tenant, Queue: "orders", Partition: "eu", PartitionID: partition, Group: "billing", LeaseID: "holder", End: 12,
		Hashes: hashes("a", "b", "c"), Lease: time.Minute,
	}
}

var held = batchKey{partition, "billing"}

func TestRegistryHitIsTheDeliveredBatchUnderItsLease(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name      string
		delivered []byte
		worker    string
		acked     []byte
		hit       bool
		remains   bool
	}{
		{name: "same order", acked: hashes("a", "b", "c"), hit: true},
		{name: "another order", acked: hashes("c", "a", "b"), hit: true},
		{name: "one named twice", acked: hashes("a", "b", "b", "c"), hit: true},
		{name: "one missing", acked: hashes("a", "b")},
		{name: "one missing, another twice", acked: hashes("a", "b", "b")},
		{name: "one too many", acked: hashes("a", "b", "c", "d")},
		{name: "nothing", acked: nil},
		{name: "foreign worker", worker: "thief", acked: hashes("a", "b", "c"), remains: true},
		{name: "foreign worker, part", worker: "thief", acked: hashes("a"), remains: true},
		{name: "delivered twice, named twice", delivered: hashes("a", "b", "a"), acked: hashes("a", "a", "b"), hit: true},
		{name: "delivered twice, named once", delivered: hashes("a", "b", "a"), acked: hashes("a", "b")},
		{name: "delivered twice, the other named twice", delivered: hashes("a", "b", "a"), acked: hashes("a", "b", "b")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRegistry(DefaultRegistryBytes)
			d := delivery()
			if tc.delivered != nil {
				d.Hashes = tc.delivered
			}
			r.put(d)
			batch := r.take(held, orElse(tc.worker, "holder"), tc.acked)
			require.Equal(t, tc.hit, batch != nil)
			require.Equal(t, tc.remains, len(r.batches) == 1, "an ack of the holder changes the batch, a foreign one does not")
			if tc.hit {
				require.EqualValues(t, 12, batch.end)
				require.Equal(t, len(d.Hashes)/16, batch.messages())
				require.Nil(t, r.take(held, "holder", tc.acked), "a hit uses the entry up")
			}
		})
	}
}

func TestRegistryForgetsWhatAnotherAckChanges(t *testing.T) {
	t.Parallel()
	r := newRegistry(DefaultRegistryBytes)
	r.put(delivery())
	r.evict(held, "thief")
	r.evict(batchKey{partition, "mail"}, "holder")
	require.Len(t, r.batches, 1)
	r.evict(held, "holder")
	require.Empty(t, r.batches)
	r.put(delivery())
	r.evict(held, "")
	require.Empty(t, r.batches, "without a lease an ack acts on whatever is held")
	require.Zero(t, r.bytes)
}

func TestRegistryEntryDiesShortlyAfterItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for lease, life := range map[time.Duration]time.Duration{time.Minute: 70 * time.Second, 0: 70 * time.Second, time.Second: 11 * time.Second} {
			r := newRegistry(DefaultRegistryBytes)
			d := delivery()
			d.Lease = lease
			r.put(d)
			time.Sleep(life)
			require.NotNil(t, r.take(held, "holder", d.Hashes), "lease of %s", lease)
			r.put(d)
			time.Sleep(life + time.Nanosecond)
			require.Nil(t, r.take(held, "holder", d.Hashes), "lease of %s", lease)
		}
	})
}

func TestRegistryDropsExpiredEntriesWithNewOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry(DefaultRegistryBytes)
		put := func() {
			d := delivery()
			d.PartitionID = uuid.New()
			r.put(d)
		}
		for range 100 {
			put()
		}
		time.Sleep(2 * time.Minute)
		for range 50 {
			put()
		}
		require.Len(t, r.batches, 50)
	})
}

func TestRegistryForgetsTheOldestBeyondItsMemory(t *testing.T) {
	t.Parallel()
	one := (&heldBatch{key: held, worker: "holder", hashes: delivery().Hashes}).bytes()
	r := newRegistry(3 * one)
	ids := make([]uuid.UUID, 5)
	for i := range ids {
		ids[i] = uuid.New()
		d := delivery()
		d.PartitionID = ids[i]
		r.put(d)
	}
	for i, id := range ids {
		require.Equal(t, i >= 2, r.take(batchKey{id, "billing"}, "holder", delivery().Hashes) != nil, "entry %d", i)
	}
	huge := delivery()
	huge.Hashes = make([]byte, 16*1000)
	r.put(delivery())
	r.put(huge)
	require.Len(t, r.batches, 1, "one that does not fit alone drops nobody")

	for _, off := range []int64{-1, 0} {
		r := newRegistry(off)
		r.put(delivery())
		require.Nil(t, r.take(held, "holder", delivery().Hashes))
	}
}

// Whatever happens to it, the list holds what the map holds, in order, and the byte count is theirs.
func TestRegistryBookkeepingAddsUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		r := newRegistry(rapid.Int64Range(0, 3000).Draw(rt, "limit"))
		rt.Repeat(map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				d := delivery()
				d.PartitionID[0] = byte(rapid.IntRange(0, 9).Draw(rt, "partition"))
				d.Hashes = make([]byte, 16*rapid.IntRange(1, 20).Draw(rt, "messages"))
				r.put(d)
			},
			"evict": func(rt *rapid.T) {
				key := held
				key.partition[0] = byte(rapid.IntRange(0, 9).Draw(rt, "partition"))
				r.evict(key, "holder")
			},
			"": func(rt *rapid.T) {
				bytes, entries := int64(0), 0
				var last *heldBatch
				for batch := r.oldest; batch != nil; batch = batch.newer {
					if batch.older != last || r.batches[batch.key] != batch {
						rt.Fatal("the list is broken")
					}
					bytes += batch.bytes()
					entries++
					last = batch
				}
				if r.newest != last || entries != len(r.batches) || bytes != r.bytes || bytes > r.limit {
					rt.Fatalf("%d entries in the list, %d in the map; %d bytes, %d counted, %d allowed", entries, len(r.batches), bytes, r.bytes, r.limit)
				}
			},
		})
	})
}

func TestCoversComparesOccurrences(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		draw := func(name string) (ids []string, times map[string]int) {
			ids = rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 0, 8).Draw(rt, name)
			times = map[string]int{}
			for _, id := range ids {
				times[id]++
			}
			return ids, times
		}
		acked, have := draw("acked")
		delivered, want := draw("delivered")
		expected := len(have) == len(want)
		for id, n := range want {
			expected = expected && have[id] >= n
		}
		if got := covers(hashes(acked...), hashes(delivered...)); got != expected {
			rt.Fatalf("covers = %t", got)
		}
	})
}

func BenchmarkRegistryPutAndTake(b *testing.B) {
	r := newRegistry(DefaultRegistryBytes)
	d := delivery()
	d.Hashes = nil
	for i := range 100 {
		d.Hashes = append(d.Hashes, hashes(fmt.Sprint(i))...)
	}
	b.ReportAllocs()
	for b.Loop() {
		r.put(d)
		if r.take(held, "holder", d.Hashes) == nil {
			b.Fatal("no hit")
		}
	}
}
