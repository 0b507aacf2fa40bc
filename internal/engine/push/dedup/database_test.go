package dedup

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"queenmq/internal/pg"
	"queenmq/internal/testdb"
)

// simulation is brokers with caches over one real database, and what the database itself would say.
type simulation struct {
	t       *testing.T
	db      *pg.DB
	pool    *pgxpool.Pool
	queue   string
	brokers []*Cache
}

func (s *simulation) exec(sql string, args ...any) {
	s.t.Helper()
	_, err := s.pool.Exec(s.t.Context(), sql, args...)
	require.NoError(s.t, err)
}

// repeats is which of the ids a full look would find in the partition now.
func (s *simulation) repeats(partition string, ids []string) []int {
	s.t.Helper()
	rows, err := s.pool.Query(s.t.Context(), `
		SELECT i - 1 FROM unnest($3::bytea[]) WITH ORDINALITY AS n(hash, i)
		 WHERE EXISTS (SELECT 1 FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id
		                 JOIN queen.log_txns t ON t.partition_id = p.id CROSS JOIN queen.log_unnest_hashes(t.hashes) h
		                WHERE q.name = $1 AND p.name = $2 AND h.h = n.hash AND q.dedup_window_seconds > 0
		                  AND t.created_at >= clock_timestamp() - make_interval(secs => q.dedup_window_seconds))
		 ORDER BY i`, s.queue, partition, hashesOf(ids))
	require.NoError(s.t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[int])
	require.NoError(s.t, err)
	return found
}

func hashesOf(ids []string) [][]byte {
	hashes := make([][]byte, len(ids))
	for i, id := range ids {
		hashes[i] = hashOf(id)
	}
	return hashes
}

// push pushes ids through one broker and holds the verdict against a full look.
func (s *simulation) push(broker int, partition string, ids []string) {
	s.t.Helper()
	segment := pg.Segment{Tenant: pg.DefaultTenant, Queue: s.queue, Partition: partition, Count: len(ids), Blob: []byte("x"), Plain: true}
	for _, hash := range hashesOf(ids) {
		segment.Hashes = append(segment.Hashes, hash...)
	}
	s.brokers[broker].Verify(&segment)
	before := s.repeats(partition, ids)
	verdicts, err := s.db.PushMulti(s.t.Context(), []pg.Segment{segment}, pg.PushOptions{})
	require.NoError(s.t, err)
	v := &verdicts[0]
	found := []int{}
	for _, d := range v.Duplicates {
		found = append(found, d.Frame)
	}
	// An id may leave the window between the look and the push, but not enter it.
	require.Subset(s.t, before, found)
	if len(found) < len(before) {
		s.requireLeft(partition, ids, before, v)
	}
	if v.Status == pg.PushQueued {
		s.brokers[broker].Stored(&segment, v)
	}
}

// requireLeft requires that the push that did not find the ids of before decided when they had left the window.
func (s *simulation) requireLeft(partition string, ids []string, before []int, v *pg.PushVerdict) {
	s.t.Helper()
	require.Equal(s.t, pg.PushQueued, v.Status, "ids %v of %v were found before", before, ids)
	var repeated int
	err := s.pool.QueryRow(s.t.Context(), `
		SELECT count(*) FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id
		  JOIN queen.log_txns t ON t.partition_id = p.id CROSS JOIN queen.log_unnest_hashes(t.hashes) h
		 WHERE q.name = $1 AND p.name = $2 AND h.h = ANY ($3) AND t.base_offset < $4
		   AND t.created_at >= $5::timestamptz - make_interval(secs => q.dedup_window_seconds)`,
		s.queue, partition, hashesOf(ids), v.BaseOffset, v.CreatedAt).Scan(&repeated)
	require.NoError(s.t, err)
	require.Zero(s.t, repeated, "ids %v of %v were stored twice inside the window", before, ids)
}

// pass lets d go by: for the database everything becomes older, and so it does for what the caches remember.
func (s *simulation) pass(d time.Duration) {
	s.t.Helper()
	s.exec(`UPDATE queen.log_txns SET created_at = created_at - $1::interval`, d)
	s.exec(`UPDATE queen.log_partitions SET last_write_at = last_write_at - $1::interval`, d)
	for _, c := range s.brokers {
		c.mu.Lock()
		for _, e := range c.entries {
			e.age(d)
		}
		c.mu.Unlock()
		var now time.Time
		require.NoError(s.t, s.pool.QueryRow(s.t.Context(), `SELECT clock_timestamp()`).Scan(&now))
		c.sawTime(now)
	}
}

func (e *entry) age(d time.Duration) {
	if !e.history.since.IsZero() {
		e.history.since = e.history.since.Add(-d)
	}
	for i := range e.history.tables {
		e.history.tables[i].oldest = e.history.tables[i].oldest.Add(-d)
		e.history.tables[i].newest = e.history.tables[i].newest.Add(-d)
	}
	for i := range e.pending {
		e.pending[i].created = e.pending[i].created.Add(-d)
	}
}

func (s *simulation) settle() {
	s.t.Helper()
	for _, c := range s.brokers {
		require.Eventually(s.t, func() bool { return len(c.readers) == 0 }, 10*time.Second, time.Millisecond)
	}
}

// Two brokers with caches push repeated ids into one database, while time passes, the window changes, the queue is deleted
// and created again, and old rows are purged. Every verdict is what a look at all stored ids gives, so that no id is ever
// stored twice inside its window.
func TestDatabase_VerdictsAreThoseOfAFullLook(t *testing.T) {
	t.Parallel()
	d := testdb.New(t)
	db, err := pg.Open(t.Context(), pg.Options{ConnString: d.ConnString(), MaxConns: 8})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	pool := d.Pool(t)
	runs, vouched := 0, uint64(0)
	rapid.Check(t, func(r *rapid.T) {
		runs++
		s := &simulation{t: t, db: db, pool: pool, queue: fmt.Sprint("q", runs)}
		for range 2 {
			c := New(Config{}, db)
			c.limits = limits{followedFromTheStart: rapid.IntRange(0, 2).Draw(r, "followed"), sparedMessages: 2, largeGap: int64(rapid.IntRange(1, 6).Draw(r, "gap")), maxPending: 8}
			s.brokers = append(s.brokers, c)
			defer c.Close()
		}
		s.configure(60)
		r.Repeat(map[string]func(*rapid.T){
			"push": func(r *rapid.T) {
				partition := rapid.SampledFrom([]string{"a", "b"}).Draw(r, "partition")
				ids := rapid.SliceOfNDistinct(rapid.IntRange(0, 40), 1, 4, rapid.ID[int]).Draw(r, "ids")
				names := make([]string, len(ids))
				for i, id := range ids {
					names[i] = fmt.Sprint(id)
				}
				s.push(rapid.IntRange(0, 1).Draw(r, "broker"), partition, names)
			},
			"burst": func(r *rapid.T) {
				broker := rapid.IntRange(0, 1).Draw(r, "broker")
				for range 6 {
					s.push(broker, "a", []string{fmt.Sprint(rapid.IntRange(0, 200).Draw(r, "id"))})
				}
			},
			"settle": func(*rapid.T) { s.settle() },
			"pass": func(r *rapid.T) {
				s.settle() // a read under way would mix the times before and after
				s.pass(time.Duration(rapid.SampledFrom([]int{7, 23, 90}).Draw(r, "seconds")) * time.Second)
			},
			"configure": func(r *rapid.T) { s.configure(rapid.SampledFrom([]int{0, 10, 60, 300}).Draw(r, "window")) },
			"delete": func(r *rapid.T) {
				if rapid.IntRange(0, 3).Draw(r, "really") == 0 {
					_, err := db.DeleteQueue(t.Context(), pg.DefaultTenant, s.queue)
					require.NoError(t, err)
					s.configure(60)
				}
			},
			"purge": func(*rapid.T) {
				s.exec(`SELECT queen.log_txns_purge_step_v1(p.id, clock_timestamp() - make_interval(secs => q.dedup_window_seconds), 100)
					FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1 AND q.dedup_window_seconds > 0`, s.queue)
			},
		})
		s.settle()
		for _, c := range s.brokers {
			vouched += c.Stats().Vouched
		}
	})
	require.Greater(t, vouched, uint64(5*runs), "the caches hardly ever said anything: nothing was tested")
}

func (s *simulation) configure(window int) {
	s.t.Helper()
	_, err := s.db.Configure(s.t.Context(), pg.DefaultTenant, s.queue, "", "", pg.QueueOptions(fmt.Sprintf(`{"dedupWindowSeconds":%d}`, window)))
	require.NoError(s.t, err)
}

// A claim about a partition's former life, or about less than the window, counts for nothing.
func TestDatabase_StaleClaimsAreChecked(t *testing.T) {
	t.Parallel()
	d := testdb.New(t)
	db, err := pg.Open(t.Context(), pg.Options{ConnString: d.ConnString(), MaxConns: 4})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	push := func(change func(*pg.Segment)) pg.PushVerdict {
		t.Helper()
		s := pg.Segment{Tenant: pg.DefaultTenant, Queue: "q", Partition: "p", Count: 1, Hashes: hashOf("a"), Verified: -1, Blob: []byte("x"), Plain: true}
		change(&s)
		v, err := db.PushMulti(context.WithoutCancel(t.Context()), []pg.Segment{s}, pg.PushOptions{})
		require.NoError(t, err)
		return v[0]
	}
	first := push(func(*pg.Segment) {})
	require.Equal(t, pg.PushQueued, first.Status)
	require.Equal(t, time.Hour, first.Window)
	offset := int64(0)
	claim := func(partition uuid.UUID, since time.Time) pg.PushStatus {
		return push(func(s *pg.Segment) { s.Verified, s.VerifiedPartition, s.VerifiedSince = offset, partition, since }).Status
	}
	require.Equal(t, pg.PushDuplicate, claim(uuid.New(), time.Time{}), "another partition")
	require.Equal(t, pg.PushDuplicate, claim(uuid.Nil, time.Time{}), "no partition")
	require.Equal(t, pg.PushDuplicate, claim(first.PartitionID, first.CreatedAt.Add(-time.Minute)), "a minute of an hour")
	require.Equal(t, pg.PushQueued, claim(first.PartitionID, first.CreatedAt.Add(-2*time.Hour)), "the database takes a valid claim at its word")
	require.Equal(t, pg.PushDuplicate, claim(first.PartitionID, time.Time{}), "behind the claim it looks for itself")
	offset = 1
	require.Equal(t, pg.PushQueued, claim(first.PartitionID, time.Time{}))
	offset = 9
	require.Equal(t, pg.PushDuplicate, claim(first.PartitionID, time.Time{}), "a claim beyond the head")
}

func TestDatabase_WindowHashes(t *testing.T) {
	t.Parallel()
	d := testdb.New(t)
	db, err := pg.Open(t.Context(), pg.Options{ConnString: d.ConnString(), MaxConns: 4})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	pool := d.Pool(t)
	id := uuid.New()
	_, err = pool.Exec(t.Context(), `INSERT INTO queen.log_txns SELECT $1, 2 * i, 2 * i + 1, now() - interval '1 s' * (5000 - i), decode(repeat(md5('id-' || i), 2), 'hex')
		FROM generate_series(0, 4999) i`, id)
	require.NoError(t, err)
	read := func(after int64, window time.Duration) (bases []int64, since time.Time) {
		t.Helper()
		require.NoError(t, db.WindowHashes(t.Context(), id, after, window, func(row *pg.WindowHashes) error {
			require.Equal(t, row.Base+1, row.End)
			require.Len(t, row.Hashes, 2*hashBytes)
			require.False(t, row.CreatedAt.Before(row.Since))
			bases, since = append(bases, row.Base), row.Since
			return nil
		}))
		for i := range bases {
			require.Equal(t, bases[0]+2*int64(i), bases[i])
		}
		return bases, since
	}
	all, _ := read(-1, 10_000*time.Second)
	require.Len(t, all, 5000)
	some, since := read(-1, 1000*time.Second)
	require.InDelta(t, 1000, len(some), 60)
	require.EqualValues(t, 9998, some[len(some)-1])
	require.WithinDuration(t, time.Now().Add(-1000*time.Second), since, time.Minute)
	behind, _ := read(9000, 10_000*time.Second)
	require.Len(t, behind, 499)
	none, _ := read(9998, time.Hour)
	require.Empty(t, none)
}
