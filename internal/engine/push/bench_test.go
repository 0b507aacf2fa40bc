package push

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"queenmq/internal/engine/admission"
	"queenmq/internal/pg"
)

// instantStore says queued to everything: what is left is the broker's own cost.
type instantStore struct{ id uuid.UUID }

func (s *instantStore) PushMulti(_ context.Context, segments []pg.Segment, _ pg.PushOptions) ([]pg.PushVerdict, error) {
	verdicts := make([]pg.PushVerdict, len(segments))
	for i := range verdicts {
		verdicts[i] = pg.PushVerdict{Status: pg.PushQueued, PartitionID: s.id}
	}
	return verdicts, nil
}

func (s *instantStore) SegmentAt(context.Context, uuid.UUID, int64) (pg.StoredSegment, bool, error) {
	return pg.StoredSegment{}, false, nil
}

func (s *instantStore) QueueSettings(context.Context, uuid.UUID, string) (pg.QueueSettings, bool, error) {
	return pg.QueueSettings{}, false, nil
}

func benchmarkPusher(b *testing.B) *Pusher {
	b.Helper()
	p := New(Config{}, &instantStore{uuid.New()}, admission.New(admission.Config{PoolSize: 160, Cores: 2}), nil)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = p.Run(ctx)
	}()
	b.Cleanup(func() {
		cancel()
		<-ended
	})
	return p
}

func benchmarkItems(partition string, n int) []Item {
	items := make([]Item, n)
	for i := range items {
		items[i] = item(partition, fmt.Sprintf("order-%d", 100000+i),
			fmt.Sprintf(`{"orderId":%d,"customer":"c-%d","total":%d.%02d,"currency":"EUR","note":"leave at the door"}`, 100000+i, i*7919%10007, i*13%500, i%100))
	}
	return items
}

// BenchmarkPush/100msg: one producer, one partition, batches. BenchmarkPush/1msg: the same, one by one.
func BenchmarkPush(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("%dmsg", n), func(b *testing.B) {
			p := benchmarkPusher(b)
			r := request(benchmarkItems("p", n)...)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.Push(b.Context(), r); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/message")
		})
	}
}

// BenchmarkPushParallel: 256 producers of single messages over 64 partitions.
func BenchmarkPushParallel(b *testing.B) {
	p := benchmarkPusher(b)
	var producer atomic.Int64
	b.SetParallelism(128)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		r := request(benchmarkItems(fmt.Sprintf("p-%d", producer.Add(1)%64), 1)...)
		for pb.Next() {
			if _, err := p.Push(b.Context(), r); err != nil {
				b.Error(err)
				return
			}
		}
	})
	s := p.Stats()
	b.ReportMetric(float64(s.Frames)/float64(s.Calls), "messages/commit")
}

// BenchmarkNewCall is grouping and de-duplication alone.
func BenchmarkNewCall(b *testing.B) {
	for _, spread := range []int{1, 10} {
		b.Run(fmt.Sprintf("100msg/%dpartitions", spread), func(b *testing.B) {
			items := benchmarkItems("p", 100)
			for i := range items {
				items[i].Partition = fmt.Sprintf("p-%d", i%spread)
			}
			r := request(items...)
			b.ReportAllocs()
			for b.Loop() {
				newCall(r)
			}
		})
	}
}
