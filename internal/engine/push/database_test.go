package push

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/push/dedup"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
	"queenmq/internal/testdb"
)

// broker is a running pusher over a real database.
type broker struct {
	*Pusher
	db *pg.DB
}

func openBroker(t testing.TB, d *testdb.Database, cfg Config) *broker {
	t.Helper()
	db, err := pg.Open(t.Context(), pg.Options{ConnString: d.ConnString(), MaxConns: 12})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	p := New(cfg, db, admission.New(admission.Config{PoolSize: 12, Reserve: 4}), nil)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return &broker{p, db}
}

type opener func(testing.TB, *testdb.Database, Config) *broker

// openCachedBroker is openBroker with a verifier.
func openCachedBroker(t testing.TB, d *testdb.Database, cfg Config) *broker {
	t.Helper()
	db, err := pg.Open(t.Context(), pg.Options{ConnString: d.ConnString(), MaxConns: 4})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	cache := dedup.New(dedup.Config{}, db)
	t.Cleanup(cache.Close)
	cfg.Verifier = cache
	return openBroker(t, d, cfg)
}

// withAndWithoutCache runs a test both ways: no verdict may depend on it.
func withAndWithoutCache(t *testing.T, test func(*testing.T, opener)) {
	t.Helper()
	t.Run("Cache", func(t *testing.T) {
		t.Parallel()
		test(t, openCachedBroker)
	})
	t.Run("NoCache", func(t *testing.T) {
		t.Parallel()
		test(t, openBroker)
	})
}

func (b *broker) push(t *testing.T, items ...Item) []Verdict {
	t.Helper()
	v, err := b.Push(t.Context(), request(items...))
	require.NoError(t, err)
	require.Len(t, v, len(items))
	return v
}

// storedIn reads a partition back in offset order and checks that offsets are dense and message ids increase.
func storedIn(t *testing.T, pool *pgxpool.Pool, partition uuid.UUID) []segment.Frame {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT base_offset, end_offset, blob FROM queen.log_segments WHERE partition_id = $1 ORDER BY base_offset`, partition)
	require.NoError(t, err)
	defer rows.Close()
	var frames []segment.Frame
	for rows.Next() {
		var base, end int64
		var blob []byte
		require.NoError(t, rows.Scan(&base, &end, &blob))
		require.EqualValues(t, len(frames), base, "offsets are dense")
		f, err := segment.Unpack(blob)
		require.NoError(t, err)
		require.EqualValues(t, end-base+1, f.Len())
		for i := range f.Len() {
			frame := f.At(i)
			frame.Payload = append([]byte(nil), frame.Payload...)
			if n := len(frames); n > 0 {
				require.Negative(t, bytes.Compare(frames[n-1].ID[:], frame.ID[:]), "ids follow offsets")
			}
			frames = append(frames, frame)
		}
		f.Release()
	}
	require.NoError(t, rows.Err())
	return frames
}

func TestDatabase_OneOfAThousandConcurrentPushesOfAnIDIsQueued(t *testing.T) {
	t.Parallel()
	withAndWithoutCache(t, func(t *testing.T, openBroker opener) {
		d := testdb.New(t)
		brokers := []*broker{openBroker(t, d, Config{}), openBroker(t, d, Config{})}
		verdicts := make([]Verdict, 1000)
		var wg sync.WaitGroup
		for i := range verdicts {
			wg.Go(func() { verdicts[i] = brokers[i%2].push(t, item("p", "same", fmt.Sprint(i)))[0] })
		}
		wg.Wait()
		queued := 0
		var stored Verdict
		for _, v := range verdicts {
			if v.Status == StatusQueued {
				stored = v
				queued++
			}
		}
		require.Equal(t, 1, queued)
		for i, v := range verdicts {
			require.Contains(t, []Status{StatusQueued, StatusDuplicate}, v.Status, "push %d: %v", i, v.Err)
			require.Equal(t, stored.MessageID, v.MessageID)
		}
		frames := storedIn(t, d.Pool(t), stored.PartitionID)
		require.Len(t, frames, 1)
		require.Equal(t, stored.MessageID, frames[0].ID)
	})
}

func TestDatabase_TwoStoredIDsOfAHundredLeave98(t *testing.T) {
	t.Parallel()
	withAndWithoutCache(t, func(t *testing.T, openBroker opener) {
		d := testdb.New(t)
		b := openBroker(t, d, Config{Shards: 1})
		before := b.push(t, item("p", "id-10", "old"), item("p", "id-50", "old"))
		items := make([]Item, 100)
		for i := range items {
			items[i] = item("p", fmt.Sprintf("id-%d", i), fmt.Sprint(i))
		}
		var halves [2][]Verdict
		var wg sync.WaitGroup
		wg.Go(func() { halves[0] = b.push(t, items[:30]...) })
		wg.Go(func() { halves[1] = b.push(t, items[30:]...) })
		wg.Wait()
		queued := 0
		for i, v := range append(halves[0], halves[1]...) {
			switch i {
			case 10, 50:
				require.Equal(t, StatusDuplicate, v.Status)
				require.Equal(t, before[i/40].MessageID, v.MessageID)
			default:
				require.Equal(t, StatusQueued, v.Status)
				queued++
			}
		}
		require.Equal(t, 98, queued)
		require.Len(t, storedIn(t, d.Pool(t), before[0].PartitionID), 100)
	})
}

func TestDatabase_PayloadBytesSurvive(t *testing.T) {
	t.Parallel()
	withAndWithoutCache(t, func(t *testing.T, openBroker opener) {
		d := testdb.New(t)
		b := openBroker(t, d, Config{})
		payloads := []string{
			`{"n":123456789012345678901234567890,"n":1.0e-7}`, `"\u0000 \ud800 \/"`, `null`, ` [ 1 , 2 ] `, `{"b":1,"a":{"z":[],"":null}}`,
			"\"" + string(bytes.Repeat([]byte("ä"), 100_000)) + "\"",
		}
		items := make([]Item, len(payloads))
		for i, p := range payloads {
			items[i] = item("pärtition / with space", fmt.Sprintf("ключ-%d", i), p)
		}
		v := b.push(t, items...)
		frames := storedIn(t, d.Pool(t), v[0].PartitionID)
		require.Len(t, frames, len(payloads))
		for i, p := range payloads {
			require.Equal(t, p, string(frames[i].Payload))
			require.Equal(t, items[i].TransactionID, frames[i].TransactionID)
			require.Equal(t, v[i].MessageID, frames[i].ID)
		}
	})
}

func TestDatabase_ManyPartitionsShareCommits(t *testing.T) {
	t.Parallel()
	withAndWithoutCache(t, func(t *testing.T, openBroker opener) {
		d := testdb.New(t)
		b := openBroker(t, d, Config{})
		var wg sync.WaitGroup
		for i := range 400 {
			wg.Go(func() {
				for n, v := range b.push(t, item(fmt.Sprintf("p-%d", i), "a", "1"), item(fmt.Sprintf("p-%d", (i+1)%400), fmt.Sprintf("b-%d", i), "1")) {
					if v.Status != StatusQueued {
						t.Errorf("request %d, item %d: %s %v", i, n, v.Status, v.Err)
					}
				}
			})
		}
		wg.Wait()
		s := b.Stats()
		require.EqualValues(t, 800, s.Frames)
		require.Less(t, s.Commits*2, s.Segments, "two segments a commit at the very least")
	})
}

func TestDatabase_PoisonNameFailsAlone(t *testing.T) {
	t.Parallel()
	withAndWithoutCache(t, func(t *testing.T, openBroker opener) {
		d := testdb.New(t)
		b := openBroker(t, d, Config{Shards: 1})
		items := partitionItems(8)
		items[3].Partition = "nul \x00 byte"
		for i, v := range b.push(t, items...) {
			if i == 3 {
				require.ErrorIs(t, v.Err, pg.ErrBadData)
			} else {
				require.Equal(t, StatusQueued, v.Status, "item %d: %v", i, v.Err)
			}
		}
	})
}

func partitionItems(n int) []Item {
	items := make([]Item, n)
	for i := range items {
		items[i] = item(fmt.Sprintf("p-%d", i), "", "1")
	}
	return items
}

func TestDatabase_QueueDeletedUnderLoadIsCreatedAgain(t *testing.T) {
	t.Parallel()
	withAndWithoutCache(t, func(t *testing.T, openBroker opener) {
		d := testdb.New(t)
		b := openBroker(t, d, Config{})
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for i := range 40 {
					for _, v := range b.push(t, item(fmt.Sprintf("p-%d", (w+i)%6), "", "1"), item(fmt.Sprintf("p-%d", (w+i+3)%6), "", "1")) {
						if v.Status != StatusQueued {
							t.Errorf("%s: %v", v.Status, v.Err)
						}
					}
				}
			})
		}
		for range 8 {
			_, err := b.db.DeleteQueue(t.Context(), testTenant, "orders")
			require.NoError(t, err)
		}
		wg.Wait()
	})
}

func TestDatabase_BoundedQueueIsNeverOverfilled(t *testing.T) {
	t.Parallel()
	withAndWithoutCache(t, func(t *testing.T, openBroker opener) {
		d := testdb.New(t)
		brokers := []*broker{openBroker(t, d, Config{}), openBroker(t, d, Config{})}
		_, err := brokers[0].db.Configure(t.Context(), testTenant, "orders", "", "", pg.QueueOptions(`{"maxSize":100}`))
		require.NoError(t, err)
		var accepted, refused atomic.Int64
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := range 5 {
					items := make([]Item, 7)
					for n := range items {
						items[n] = item(fmt.Sprintf("p-%d", n%3), fmt.Sprintf("%d-%d-%d", w, i, n), "1")
					}
					v := brokers[w%2].push(t, items...)
					for _, verdict := range v {
						if verdict.Status != v[0].Status {
							t.Errorf("a request was split: %v", statuses(v))
						}
					}
					if v[0].Status == StatusQueued {
						accepted.Add(7)
						continue
					}
					refused.Add(7)
					if !errors.Is(v[0].Err, ErrQueueFull) {
						t.Errorf("refused with %v", v[0].Err)
					}
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 98, accepted.Load(), "14 requests of 7 fit into 100")
		require.EqualValues(t, 280-98, refused.Load())

		again := brokers[0].push(t, item("p-0", "new", "1"), item("p-0", "new-2", "1"))
		require.Equal(t, []Status{StatusQueued, StatusQueued}, statuses(again))
		require.EqualValues(t, 100, again[0].Depth)
		require.EqualValues(t, 100, again[0].Limit)
		require.Zero(t, again[0].Remaining)
		again = brokers[1].push(t, item("p-0", "new", "1"), item("p-1", "more", "1"))
		require.Equal(t, StatusDuplicate, again[0].Status, "a duplicate is one on a full queue, too")
		require.ErrorIs(t, again[1].Err, ErrQueueFull)
	})
}

func TestDatabase_EncryptedQueueRefusesPlainMessages(t *testing.T) {
	t.Parallel()
	withAndWithoutCache(t, func(t *testing.T, openBroker opener) {
		d := testdb.New(t)
		b := openBroker(t, d, Config{})
		_, err := b.db.Configure(t.Context(), testTenant, "orders", "", "", pg.QueueOptions(`{"encryptionEnabled":true}`))
		require.NoError(t, err)
		require.ErrorIs(t, b.push(t, item("p", "a", "1"))[0].Err, ErrEncryptionRequired)
	})
}

func TestDatabase_OutageFailsItemsAndPasses(t *testing.T) {
	t.Parallel()
	withAndWithoutCache(t, func(t *testing.T, openBroker opener) {
		d := testdb.New(t)
		b := openBroker(t, d, Config{})
		require.Equal(t, StatusQueued, b.push(t, item("p", "a", "1"))[0].Status)
		b.db.Close()
		v := b.push(t, item("p", "a", "2"), item("p", "b", "1"))
		require.Equal(t, []Status{StatusFailed, StatusFailed}, statuses(v))
		require.ErrorIs(t, v[0].Err, pg.ErrUnavailable)
	})
}

// BenchmarkDatabasePush stores through a real server without fsync, so that the time is the processors'. Producers push one
// batch after another, each to its own of 64 partitions.
func BenchmarkDatabasePush(b *testing.B) {
	for _, shape := range []struct{ producers, messages int }{{1, 1}, {256, 1}, {16, 100}} {
		b.Run(fmt.Sprintf("%dx%dmsg", shape.producers, shape.messages), func(b *testing.B) {
			br := openBroker(b, testdb.New(b), Config{})
			b.ReportAllocs()
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for w := range shape.producers {
				wg.Go(func() {
					items := benchmarkItems(fmt.Sprintf("p-%d", w%64), shape.messages)
					for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
						for i := range items {
							items[i].TransactionID = fmt.Sprintf("%d-%d", n, i)
						}
						v, err := br.Push(context.Background(), request(items...))
						if err != nil || v[0].Status != StatusQueued {
							b.Errorf("push: %v %v", v, err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N*shape.messages)/b.Elapsed().Seconds(), "messages/s")
			b.ReportMetric(float64(br.Stats().Frames)/float64(br.Stats().Commits), "messages/commit")
		})
	}
}
