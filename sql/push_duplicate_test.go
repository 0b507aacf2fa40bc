package sql_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func TestPushFindsDuplicates(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	verified := func(offset int64) *int64 { return &offset }

	t.Run("OneRepeatedFrameRefusesTheSegmentAndOnlyIt", func(t *testing.T) {
		t.Parallel()
		id := log.queued(t, "one", "a", "0", "1", "2")
		log.queued(t, "one", "a", "3")
		verdicts := log.push(t, parcel{queue: "one", partition: "a", ids: ids("new", "3", "1")},
			parcel{queue: "one", partition: "b", ids: ids("1")})
		require.Equal(t, []string{"duplicate", "queued"}, statuses(verdicts))
		require.Empty(t, cmp.Diff([]duplicate{{1, 3}, {2, 1}}, verdicts[0].Dups))
		require.Equal(t, id, verdicts[0].PartitionID)
		require.EqualValues(t, 3, log.head(t, id).LastOffset)
	})

	t.Run("SmallestOffsetIsNamed", func(t *testing.T) {
		t.Parallel()
		log.queued(t, "smallest", "a", "x", "y")
		log.exec(t, `UPDATE queen.queues SET dedup_window_seconds = 0 WHERE name = 'smallest'`)
		log.queued(t, "smallest", "a", "y", "y", "x")
		log.exec(t, `UPDATE queen.queues SET dedup_window_seconds = 60 WHERE name = 'smallest'`)
		require.Empty(t, cmp.Diff([]duplicate{{0, 1}, {1, 0}}, log.push(t, parcel{queue: "smallest", partition: "a", ids: ids("y", "x")})[0].Dups))
		require.Empty(t, cmp.Diff([]duplicate{{0, 1}}, log.push(t, parcel{queue: "smallest", partition: "a", ids: ids("y")})[0].Dups))
	})

	t.Run("RepeatsInsideOneSegmentAreTheCallersBusiness", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, "queued", log.push(t, parcel{queue: "inside", partition: "a", ids: ids("1", "1")})[0].Status)
	})

	t.Run("WindowEnds", func(t *testing.T) {
		t.Parallel()
		id := log.queued(t, "window", "a", "old")
		log.exec(t, `UPDATE queen.queues SET dedup_window_seconds = 100 WHERE name = 'window'`)
		log.age(t, id, 99*time.Second)
		require.Equal(t, "duplicate", log.push(t, parcel{queue: "window", partition: "a", ids: ids("old")})[0].Status)
		log.age(t, id, 2*time.Second)
		require.Equal(t, "queued", log.push(t, parcel{queue: "window", partition: "a", ids: ids("old")})[0].Status)
	})

	t.Run("WindowBeginsInsideALongSidecar", func(t *testing.T) {
		t.Parallel()
		// Rows of three offsets each, one a second, so that the window of 1000 s begins far from both ends and between the
		// halving steps; every id from there on must be found and none before.
		id := log.queued(t, "long", "a", "first")
		log.exec(t, `UPDATE queen.queues SET dedup_window_seconds = 1000 WHERE name = 'long'`)
		log.exec(t, `INSERT INTO queen.log_txns SELECT $1, 1 + 3 * i, 3 + 3 * i, clock_timestamp() - make_interval(secs => 5000 - i),
			decode(md5('a' || i), 'hex') || decode(md5('b' || i), 'hex') || decode(md5('c' || i), 'hex') FROM generate_series(0, 4999) i`, id)
		log.exec(t, `UPDATE queen.log_partitions SET last_offset = 15000 WHERE id = $1`, id)
		log.exec(t, `UPDATE queen.log_txns SET created_at = now() - interval '2 h' WHERE partition_id = $1 AND base_offset = 0`, id)
		for _, c := range []struct {
			id     string
			status string
			dups   []duplicate
		}{
			{"a0", "queued", nil},
			{"first", "queued", nil},
			{"c3990", "queued", nil},
			{"a4010", "duplicate", []duplicate{{0, 12031}}},
			{"b4500", "duplicate", []duplicate{{0, 13502}}},
			{"c4999", "duplicate", []duplicate{{0, 15000}}},
		} {
			v := log.push(t, parcel{queue: "long", partition: "a", ids: ids(c.id)})[0]
			require.Equal(t, c.status, v.Status, c.id)
			require.Empty(t, cmp.Diff(c.dups, v.Dups), c.id)
		}
		v := log.push(t, parcel{queue: "long", partition: "a", ids: ids("a3900", "c4600", "a4011")})[0]
		require.Empty(t, cmp.Diff([]duplicate{{1, 13803}, {2, 12034}}, v.Dups))
	})

	t.Run("HashesBelowThePurgeWatermarkAreForgotten", func(t *testing.T) {
		t.Parallel()
		id := log.queued(t, "purged", "a", "0")
		log.queued(t, "purged", "a", "1")
		log.exec(t, `UPDATE queen.log_partitions SET txns_start = 1 WHERE id = $1`, id)
		require.Equal(t, "queued", log.push(t, parcel{queue: "purged", partition: "a", ids: ids("0")})[0].Status)
		require.Equal(t, "duplicate", log.push(t, parcel{queue: "purged", partition: "a", ids: ids("1")})[0].Status)
	})

	t.Run("VerifiedOffsetsAreNotComparedAgain", func(t *testing.T) {
		t.Parallel()
		log.queued(t, "verified", "a", "0", "1", "2")
		log.queued(t, "verified", "a", "3")
		// The caller vouches wrongly, which shows that the rows up to the offset are not read.
		require.Equal(t, "queued", log.push(t, parcel{queue: "verified", partition: "a", ids: ids("3"), verified: verified(3)})[0].Status)
		require.Equal(t, "duplicate", log.push(t, parcel{queue: "verified", partition: "a", ids: ids("3"), verified: verified(3)})[0].Status)
		// An offset inside a segment: its tail is still compared.
		v := log.push(t, parcel{queue: "verified", partition: "a", ids: ids("2"), verified: verified(0)})[0]
		require.Empty(t, cmp.Diff([]duplicate{{0, 2}}, v.Dups))
	})

	t.Run("AnOffsetBeyondTheHeadVouchesForNothing", func(t *testing.T) {
		t.Parallel()
		// What went wrong: a cache that outlived delete and re-creation of a partition named an offset that the new one had not
		// reached, and the probe was skipped.
		log.queued(t, "reborn", "a", "0")
		v := log.push(t, parcel{queue: "reborn", partition: "a", ids: ids("0"), verified: verified(500)})[0]
		require.Empty(t, cmp.Diff([]duplicate{{0, 0}}, v.Dups))
	})

	t.Run("OtherPartitionsAreIndependent", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, []string{"queued", "queued", "queued"}, statuses(log.push(t, parcel{queue: "indep", partition: "a", ids: ids("1")},
			parcel{queue: "indep", partition: "b", ids: ids("1")}, parcel{queue: "indep2", partition: "a", ids: ids("1")})))
	})

	t.Run("SegmentsOfOnePartitionInOneCallTakeEffectInOrder", func(t *testing.T) {
		t.Parallel()
		id := log.queued(t, "rounds", "a", "0")
		verdicts := log.push(t,
			parcel{queue: "rounds", partition: "a", ids: ids("1", "2")},
			parcel{queue: "rounds", partition: "b", ids: ids("1")},
			parcel{queue: "rounds", partition: "a", ids: ids("0", "9")},
			parcel{queue: "rounds", partition: "a", ids: ids("2", "3")},
			parcel{queue: "rounds", partition: "a", ids: ids("9")},
			parcel{queue: "rounds", partition: "b", ids: ids("2")})
		require.Equal(t, []string{"queued", "queued", "duplicate", "duplicate", "queued", "queued"}, statuses(verdicts))
		require.Equal(t, []int64{1, 0, 3, 1}, []int64{*verdicts[0].BaseOffset, *verdicts[1].BaseOffset, *verdicts[4].BaseOffset, *verdicts[5].BaseOffset})
		require.Empty(t, cmp.Diff([]duplicate{{0, 0}}, verdicts[2].Dups))
		require.Empty(t, cmp.Diff([]duplicate{{0, 2}}, verdicts[3].Dups))
		require.EqualValues(t, 3, log.head(t, id).LastOffset)
		require.Equal(t, []int64{0, 1, 3}, scan[[]int64](t, log, `SELECT array_agg(base_offset ORDER BY base_offset) FROM queen.log_segments
			WHERE partition_id = $1`, id))
	})

	t.Run("WindowZeroLooksForNothing", func(t *testing.T) {
		t.Parallel()
		log.queued(t, "off", "a", "1")
		log.exec(t, `UPDATE queen.queues SET dedup_window_seconds = 0 WHERE name = 'off'`)
		require.Equal(t, []string{"queued", "queued"}, statuses(log.push(t,
			parcel{queue: "off", partition: "a", ids: ids("1")}, parcel{queue: "off", partition: "a", ids: ids("1")})))
	})
}

func TestPushIntoBoundedQueues(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	bounded := func(t *testing.T, limit int) string {
		t.Helper()
		name := "bounded-" + uuid.NewString()
		log.exec(t, `INSERT INTO queen.queues (name, max_queue_size) VALUES ($1, $2)`, name, limit)
		return name
	}
	figures := func(v pushVerdict) [3]int64 {
		t.Helper()
		require.NotNil(t, v.Depth, "%+v", v)
		return [3]int64{*v.Depth, *v.Limit, *v.Remaining}
	}

	t.Run("AllOfTheQueueOrNothing", func(t *testing.T) {
		t.Parallel()
		q := bounded(t, 5)
		v := log.push(t, parcel{queue: q, partition: "a", ids: ids("1", "2", "3")}, parcel{queue: "free", partition: "a", ids: ids("x")})
		require.Equal(t, []string{"queued", "queued"}, statuses(v))
		require.Equal(t, [3]int64{3, 5, 2}, figures(v[0]))
		require.Nil(t, v[1].Limit)

		v = log.push(t, parcel{queue: q, partition: "a", ids: ids("4")}, parcel{queue: "free", partition: "a", ids: ids("y")},
			parcel{queue: q, partition: "b", ids: ids("5", "6")})
		require.Equal(t, []string{"full", "queued", "full"}, statuses(v))
		require.Equal(t, [3]int64{3, 5, 2}, figures(v[0]))
		require.Equal(t, [3]int64{3, 5, 2}, figures(v[2]))

		v = log.push(t, parcel{queue: q, partition: "a", ids: ids("4")}, parcel{queue: q, partition: "b", ids: ids("5")})
		require.Equal(t, []string{"queued", "queued"}, statuses(v))
		require.Equal(t, [3]int64{5, 5, 0}, figures(v[0]))
	})

	t.Run("DuplicatesAreReportedEvenWhenFullAndHoldTheRest", func(t *testing.T) {
		t.Parallel()
		q := bounded(t, 2)
		log.queued(t, q, "a", "1", "2")
		v := log.push(t, parcel{queue: q, partition: "a", ids: ids("1", "3")}, parcel{queue: q, partition: "b", ids: ids("4")},
			parcel{queue: "free2", partition: "a", ids: ids("x")})
		require.Equal(t, []string{"duplicate", "held", "queued"}, statuses(v))
		require.Empty(t, cmp.Diff([]duplicate{{0, 0}}, v[0].Dups))
		require.Nil(t, v[1].Depth)
	})

	t.Run("PlainSegmentsHoldTheRest", func(t *testing.T) {
		t.Parallel()
		q := bounded(t, 10)
		log.exec(t, `UPDATE queen.queues SET encryption_enabled = TRUE WHERE name = $1`, q)
		v := log.push(t, parcel{queue: q, partition: "a", ids: ids("1"), plain: true}, parcel{queue: q, partition: "b", ids: ids("1")})
		require.Equal(t, []string{"config", "held"}, statuses(v))
	})

	t.Run("DepthIsWhatTheSlowestGroupHasLeft", func(t *testing.T) {
		t.Parallel()
		q := bounded(t, 4)
		id := log.queued(t, q, "a", "1", "2", "3", "4")
		full := func(want int64) {
			t.Helper()
			v := log.push(t, parcel{queue: q, partition: "b", ids: ids(idOf(1), idOf(2), idOf(3), idOf(4), idOf(5))})[0]
			require.Equal(t, "full", v.Status)
			require.Equal(t, [3]int64{want, 4, 4 - want}, figures(v))
		}
		group := func(name string, committed int64) {
			t.Helper()
			log.exec(t, `INSERT INTO queen.log_consumers (partition_id, consumer_group, committed) VALUES ($1, $2, $3)
				ON CONFLICT (partition_id, consumer_group) DO UPDATE SET committed = EXCLUDED.committed`, id, name, committed)
		}
		full(4)
		group("__QUEUE_MODE__", 2)
		full(1)
		group("slow", -1)
		full(4) // A named group outranks queue mode.
		group("slow", 0)
		group("fast", 3)
		full(3)
		log.exec(t, `UPDATE queen.log_partitions SET log_start = 2 WHERE id = $1`, id)
		full(2) // What retention removed is gone for everybody.
	})

	t.Run("FreedRoomIsSeenByTheNextPush", func(t *testing.T) {
		t.Parallel()
		q := bounded(t, 2)
		id := log.queued(t, q, "a", "1", "2")
		require.Equal(t, "full", log.push(t, parcel{queue: q, partition: "a", ids: ids("3")})[0].Status)
		log.exec(t, `INSERT INTO queen.log_consumers (partition_id, consumer_group, committed) VALUES ($1, 'g', 0)`, id)
		require.Equal(t, "full", log.push(t, parcel{queue: q, partition: "a", ids: ids("3", "4")})[0].Status)
		require.Equal(t, "queued", log.push(t, parcel{queue: q, partition: "a", ids: ids("3")})[0].Status)
		require.Equal(t, "full", log.push(t, parcel{queue: q, partition: "a", ids: ids("4")})[0].Status)
		log.exec(t, `UPDATE queen.queues SET max_queue_size = 3 WHERE name = $1`, q)
		require.Equal(t, "queued", log.push(t, parcel{queue: q, partition: "a", ids: ids("4")})[0].Status)
	})

	t.Run("PromisedMessagesAreStoredAnyway", func(t *testing.T) {
		t.Parallel()
		q := bounded(t, 1)
		log.queued(t, q, "a", "1")
		verdicts, err := callJSON[[]pushVerdict](log, pushMulti, pushArguments(true, nil, []parcel{{queue: q, partition: "a", ids: ids("2", "3")}})...)
		require.NoError(t, err)
		require.Equal(t, []string{"queued"}, statuses(verdicts))
		v := log.push(t, parcel{queue: q, partition: "a", ids: ids("4")})[0]
		require.Equal(t, [3]int64{3, 1, 0}, figures(v))
	})

	t.Run("SegmentsOfOnePartitionCountTogether", func(t *testing.T) {
		t.Parallel()
		q := bounded(t, 3)
		v := log.push(t, parcel{queue: q, partition: "a", ids: ids("1", "2")}, parcel{queue: q, partition: "a", ids: ids("3", "4")})
		require.Equal(t, []string{"full", "full"}, statuses(v))
		v = log.push(t, parcel{queue: q, partition: "a", ids: ids("1", "2")}, parcel{queue: q, partition: "a", ids: ids("3")})
		require.Equal(t, []string{"queued", "queued"}, statuses(v))
		require.Equal(t, [3]int64{3, 3, 0}, figures(v[1]))
	})
}
