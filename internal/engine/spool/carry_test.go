package spool

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/push"
	"queenmq/internal/pg"
)

// held is a store for which one partition cannot be stored in time.
type held struct {
	db        *database
	partition string
	attempts  int
	fault     error // why not; nil stands for its locks
}

func (h *held) Replay(ctx context.Context, messages []push.Accepted) ([]push.Verdict, error) {
	verdicts := make([]push.Verdict, len(messages))
	tried := false
	for i := range messages {
		if messages[i].Partition == h.partition {
			tried = true
			verdicts[i] = push.Verdict{Status: push.StatusFailed, Err: fmt.Errorf("push: %w", cmp.Or(h.fault, pg.ErrLockTimeout))}
			continue
		}
		one, err := h.db.Replay(ctx, messages[i:i+1])
		if err != nil {
			return nil, err
		}
		verdicts[i] = one[0]
	}
	if tried {
		h.attempts++
	}
	return verdicts, nil
}

func files(t *testing.T, dir string) int {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*"+completeSuffix))
	require.NoError(t, err)
	return len(found)
}

// A partition that somebody keeps locked holds up nobody else, in its file and in those behind it, and loses neither messages nor their order;
// not over the end of the broker either.
func TestPartitionThatCannotBeStoredHoldsUpNobody(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint("Restart", restart), func(t *testing.T) {
			t.Parallel()
			dir, db := t.TempDir(), newDatabase()
			db.fail(errAway)
			f := start(t, dir, db, func(c *Config) { c.RecordsPerFile = 30 })
			var want []string
			for i := range 100 {
				f.push(t, "q", "locked", fmt.Sprint(i))
				f.push(t, "q", fmt.Sprint("p", i%7), fmt.Sprint(i))
				want = append(want, fmt.Sprint(i))
			}
			db.fail(nil)
			<-f.scanned
			store := &held{db: db, partition: "locked"}
			stored, err := f.Drain(t.Context(), store)
			require.ErrorIs(t, err, pg.ErrLockTimeout)
			require.Equal(t, 100, stored)
			require.Equal(t, 1, store.attempts, "once is enough for now")
			require.EqualValues(t, 100, f.Stats().Pending)
			require.Positive(t, files(t, dir), "they hold what is not stored")
			for i := range 7 {
				require.NotEmpty(t, db.lane(fmt.Sprint("q/p", i)))
			}

			// Later ones of the partition stay behind it, others go on.
			f.push(t, "q", "locked", "last")
			want = append(want, "last")
			f.push(t, "q", "p0", "free")
			_, err = f.Drain(t.Context(), store)
			require.ErrorIs(t, err, pg.ErrLockTimeout)
			require.Contains(t, db.lane("q/p0"), "free")
			require.Empty(t, db.lane("q/locked"))

			if restart {
				f.stop()
				f = start(t, dir, db)
				<-f.scanned
			} else {
				f.carry.retryAt = time.Now()
				_, err = f.Drain(t.Context(), store)
				require.ErrorIs(t, err, pg.ErrLockTimeout)
				require.Equal(t, 2, store.attempts)
				require.True(t, f.carry.retryAt.After(time.Now()), "not at once again")
				f.carry.retryAt = time.Now()
				ended, end := context.WithCancel(t.Context())
				end()
				_, err = f.Drain(ended, store)
				require.ErrorIs(t, err, context.Canceled)
				_, err = f.retryCarried(ended, store)
				require.NoError(t, err)
				require.Equal(t, 2, store.attempts, "whoever stops does not wait for it")
			}
			store.partition = ""
			_, err = f.Drain(t.Context(), store)
			require.NoError(t, err)
			require.Equal(t, want, db.lane("q/locked"))
			require.Zero(t, f.Stats().Pending)
			require.Zero(t, files(t, dir))
			require.Zero(t, f.Stats().Bytes)
			require.Empty(t, f.carry.records)
			require.Zero(t, f.carry.bytes)
			require.Empty(t, f.carry.lanes)
			require.Empty(t, f.carry.ended)
			require.Equal(t, push.StatusQueued, f.push(t, "q", "locked", "direct").Status)
			left, err := os.ReadDir(filepath.Join(dir, "failed"))
			require.True(t, os.IsNotExist(err) || len(left) == 0)
		})
	}
}

// More than may be carried waits with everything behind it, as long as it takes.
func TestWhatCannotBeCarriedWaits(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	db.fail(errAway)
	f := start(t, t.TempDir(), db)
	for i := range mostCarriedLanes + 1 {
		f.push(t, "q", fmt.Sprint(i), "m")
	}
	db.fail(fmt.Errorf("push: %w", pg.ErrTimeout))
	<-f.scanned
	for range 3 {
		_, err := f.Drain(t.Context(), db)
		require.ErrorIs(t, err, pg.ErrTimeout)
		require.Empty(t, f.carry.records)
	}
	db.fail(nil)
	require.Equal(t, mostCarriedLanes+1, f.drain(t))
}

// What fails again and again for a reason that should not last is set aside when it is carried too, instead of being tried for ever.
func TestWhatIsCarriedAndStaysStrangeIsSetAside(t *testing.T) {
	t.Parallel()
	dir, db := t.TempDir(), newDatabase()
	db.fail(errAway)
	f := start(t, dir, db)
	f.push(t, "q", "locked", "poison")
	db.fail(nil)
	<-f.scanned
	store := &held{db: db, partition: "locked"}
	_, err := f.Drain(t.Context(), store)
	require.ErrorIs(t, err, pg.ErrLockTimeout)
	store.fault = push.ErrInternal
	for range maxStrange {
		f.carry.retryAt = time.Now()
		_, err = f.Drain(t.Context(), store)
		require.ErrorIs(t, err, push.ErrInternal)
	}
	f.carry.retryAt = time.Now()
	_, err = f.Drain(t.Context(), store)
	require.NoError(t, err)
	require.EqualValues(t, 1, f.Stats().Failed)
	require.Zero(t, f.Stats().Pending)
	require.Zero(t, files(t, dir))
}
