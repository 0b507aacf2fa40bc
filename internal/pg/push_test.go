package pg_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
)

func TestPush(t *testing.T) {
	t.Parallel()
	t.Run("VerdictsInInputOrder", func(t *testing.T) {
		t.Parallel()
		db, _ := setup(t)
		first := push(t, db, segment("q", "b", "1", "2"))
		require.EqualValues(t, 0, first.BaseOffset)
		require.WithinDuration(t, time.Now(), first.CreatedAt, time.Minute)
		require.Equal(t, time.UTC, first.CreatedAt.Location())

		verdicts, err := db.PushMulti(t.Context(), []pg.Segment{
			segment("q", "c", "1"), segment("q", "b", "3", "2", "1"), segment("q", "a", "1", "2"),
		}, pg.PushOptions{})
		require.NoError(t, err)
		require.Equal(t, pg.PushQueued, verdicts[0].Status)
		require.Equal(t, pg.PushDuplicate, verdicts[1].Status)
		require.Equal(t, first.PartitionID, verdicts[1].PartitionID)
		require.Empty(t, cmp.Diff([]pg.Duplicate{{Frame: 1, Offset: 1}, {Frame: 2, Offset: 0}}, verdicts[1].Duplicates))
		require.Equal(t, pg.PushQueued, verdicts[2].Status)

		after := push(t, db, segment("q", "b", "4"))
		require.EqualValues(t, 2, after.BaseOffset, "a duplicate verdict took offsets")
	})
	t.Run("Nothing", func(t *testing.T) {
		t.Parallel()
		db, _ := setup(t)
		verdicts, err := db.PushMulti(t.Context(), nil, pg.PushOptions{})
		require.NoError(t, err)
		require.Empty(t, verdicts)
	})
	t.Run("TenantsAreApart", func(t *testing.T) {
		t.Parallel()
		db, _ := setup(t)
		mine, theirs := segment("q", "p", "1"), segment("q", "p", "1")
		theirs.Tenant = uuid.New()
		require.NotEqual(t, push(t, db, mine).PartitionID, push(t, db, theirs).PartitionID)
	})
	t.Run("BoundedQueue", func(t *testing.T) {
		t.Parallel()
		db, _ := setup(t)
		configure(t, db, "q", `{"maxSize":3}`)
		verdict := push(t, db, segment("q", "p", "1", "2"))
		require.EqualValues(t, []int64{2, 3}, []int64{verdict.Depth, verdict.Limit})
		more := []pg.Segment{segment("q", "p", "3", "4")}
		verdicts, err := db.PushMulti(t.Context(), more, pg.PushOptions{})
		require.NoError(t, err)
		require.Equal(t, pg.PushFull, verdicts[0].Status)
		require.EqualValues(t, []int64{2, 3, 1}, []int64{verdicts[0].Depth, verdicts[0].Limit, verdicts[0].Remaining})

		verdicts, err = db.PushMulti(t.Context(), []pg.Segment{segment("q", "p", "1"), segment("q", "r", "5")}, pg.PushOptions{})
		require.NoError(t, err)
		require.Equal(t, []pg.PushStatus{pg.PushDuplicate, pg.PushHeld}, []pg.PushStatus{verdicts[0].Status, verdicts[1].Status})

		verdicts, err = db.PushMulti(t.Context(), more, pg.PushOptions{SkipCapacity: true})
		require.NoError(t, err)
		require.Equal(t, pg.PushQueued, verdicts[0].Status)
	})
	t.Run("EncryptedQueueRefusesPlainPayloads", func(t *testing.T) {
		t.Parallel()
		db, _ := setup(t)
		configure(t, db, "q", `{"encryptionEnabled":true}`)
		s := segment("q", "p", "1")
		verdicts, err := db.PushMulti(t.Context(), []pg.Segment{s}, pg.PushOptions{})
		require.NoError(t, err)
		require.Equal(t, pg.PushConfig, verdicts[0].Status)
		s.Plain = false
		push(t, db, s)
	})
	t.Run("TraceIDsAreIndexed", func(t *testing.T) {
		t.Parallel()
		db, database := setup(t)
		id := uuid.New()
		plain, traced := segment("q", "a", "1", "2"), segment("q", "b", "3", "4", "5")
		traced.Traces = []pg.FrameTrace{{Frame: 2, ID: id}}
		verdicts, err := db.PushMulti(t.Context(), []pg.Segment{plain, traced}, pg.PushOptions{})
		require.NoError(t, err)
		var partition string
		var offset int64
		require.NoError(t, database.Pool(t).QueryRow(t.Context(), `SELECT partition_id::text, "offset" FROM queen.log_traced WHERE trace_id = $1::text::uuid`, id.String()).Scan(&partition, &offset))
		require.Equal(t, verdicts[1].PartitionID.String(), partition)
		require.EqualValues(t, 2, offset)
	})
}

func TestPushErrors(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*pg.Segment)
		want   error
	}{
		"NoMessages":    {func(s *pg.Segment) { s.Count, s.Hashes = 0, nil }, pg.ErrBadData},
		"HashesMissing": {func(s *pg.Segment) { s.Hashes = s.Hashes[:15] }, pg.ErrBadData},
		"EmptyBlob":     {func(s *pg.Segment) { s.Blob = nil }, pg.ErrBadData},
		"LongName":      {func(s *pg.Segment) { s.Queue = strings.Repeat("q", 256) }, pg.ErrBadData},
		"NULInName":     {func(s *pg.Segment) { s.Partition = "a\x00b" }, pg.ErrBadData},
		"NoQueue":       {func(s *pg.Segment) { s.Queue = "" }, pg.ErrVanished},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, database := setup(t)
			bad := segment("q", "p", "1")
			test.change(&bad)
			_, err := db.PushMulti(t.Context(), []pg.Segment{segment("other", "p", "1"), bad}, pg.PushOptions{})
			require.ErrorIs(t, err, test.want)
			var n int
			require.NoError(t, database.Pool(t).QueryRow(t.Context(), "SELECT count(*) FROM queen.log_segments").Scan(&n))
			require.Zero(t, n, "a refused bundle wrote something")
		})
	}
}

func TestSegmentAt(t *testing.T) {
	t.Parallel()
	db, _ := setup(t)
	verdict := push(t, db, segment("q", "p", "1", "2", "3"))
	push(t, db, segment("q", "p", "4"))
	for offset, want := range map[int64]struct{ base, end int64 }{0: {0, 2}, 2: {0, 2}, 3: {3, 3}} {
		found, ok, err := db.SegmentAt(t.Context(), verdict.PartitionID, offset)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, want.base, found.Base)
		require.Equal(t, want.end, found.End)
	}
	found, _, err := db.SegmentAt(t.Context(), verdict.PartitionID, 1)
	require.NoError(t, err)
	require.Equal(t, "blob of 1,2,3", string(found.Blob))
	require.Equal(t, verdict.CreatedAt, found.CreatedAt)
	for _, partition := range []uuid.UUID{verdict.PartitionID, uuid.New()} {
		_, ok, err := db.SegmentAt(t.Context(), partition, 4)
		require.NoError(t, err)
		require.False(t, ok)
	}
}
