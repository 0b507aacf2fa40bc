package spool

import (
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

func TestRefusedRecordsAreSetAsideAndHoldNothingUp(t *testing.T) {
	t.Parallel()
	db, dir := newDatabase(), t.TempDir()
	f := start(t, dir, db)
	db.fail(errAway)
	for i := range 6 {
		f.push(t, "q", "p", fmt.Sprint(i))
	}
	db.fail(nil)
	db.refuse["2"] = fmt.Errorf("store: %w: a poison", pg.ErrBadData)
	db.refuse["4"] = push.ErrInternal // passes, perhaps
	for range maxStrange + 1 {
		_, err := f.Drain(context.Background(), db)
		require.ErrorIs(t, err, push.ErrInternal)
	}
	f.drain(t)
	require.Equal(t, []string{"0", "1", "3", "5"}, db.lane("q/p"))
	stats := f.Stats()
	require.Zero(t, stats.Pending)
	require.EqualValues(t, 2, stats.Failed)
	reasons, err := filepath.Glob(filepath.Join(dir, failedDir, "*.txt"))
	require.NoError(t, err)
	require.Len(t, reasons, 2)
	text, err := os.ReadFile(reasons[0])
	require.NoError(t, err)
	require.Contains(t, string(text), "a poison")
	f.stop()

	// An operator who has removed the cause moves the file back.
	clear(db.refuse)
	failed, err := filepath.Glob(filepath.Join(dir, failedDir, "*.buf"))
	require.NoError(t, err)
	require.NoError(t, os.Rename(failed[0], filepath.Join(dir, filepath.Base(failed[0]))))
	f = start(t, dir, db)
	require.Equal(t, 1, f.drain(t))
	require.Equal(t, "2", db.lane("q/p")[4])
	require.EqualValues(t, 1, f.Stats().Failed)
}

// When the database refuses a segment for good, only the message at fault is set aside: its neighbours in the partition are stored, in order.
func TestOnePoisonAmongManyIsSetAsideAlone(t *testing.T) {
	t.Parallel()
	for _, fault := range []error{fmt.Errorf("store: %w", pg.ErrBadData), push.ErrInternal, nil} { // nil panics
		db := newDatabase()
		db.fail(errAway)
		f := start(t, t.TempDir(), db)
		for i := range 20 {
			f.push(t, "q", "p", fmt.Sprint(i))
			f.push(t, "q", "other", fmt.Sprint(i))
		}
		db.fail(nil)
		poisoned := storeFunc(func(ctx context.Context, messages []push.Accepted) ([]push.Verdict, error) {
			bad := map[string]bool{}
			for i := range messages {
				bad[messages[i].Partition] = bad[messages[i].Partition] || messages[i].Partition == "p" && string(messages[i].Payload) == "7"
			}
			if fault == nil && len(bad) > 0 && bad["p"] {
				panic("poison")
			}
			verdicts := make([]push.Verdict, len(messages))
			for i := range messages {
				if bad[messages[i].Partition] { // a segment is stored as a whole or not at all
					verdicts[i] = push.Verdict{Status: push.StatusFailed, Err: fault}
					continue
				}
				one, err := db.Replay(ctx, messages[i:i+1])
				require.NoError(t, err)
				verdicts[i] = one[0]
			}
			return verdicts, nil
		})
		require.Eventually(t, func() bool {
			_, err := f.Drain(t.Context(), poisoned)
			return err == nil
		}, limit, time.Microsecond)
		require.Len(t, db.lane("q/other"), 20)
		var want []string
		for i := range 20 {
			if i != 7 {
				want = append(want, fmt.Sprint(i))
			}
		}
		require.Equal(t, want, db.lane("q/p"))
		require.EqualValues(t, 1, f.Stats().Failed)
		require.Zero(t, f.Stats().Pending)
	}
}

// A broker that ends between setting something aside and deleting the file sets the same aside again: it lies there once. What another file
// of the same name brought stays beside it.
func TestSettingAsideAgainIsHarmless(t *testing.T) {
	t.Parallel()
	f := start(t, t.TempDir(), newDatabase())
	const base = "queen-1700000000000-00000000"
	for _, contents := range []string{"one", "one", "two", "one", "two"} {
		require.NoError(t, f.dir.setAside(base, 4, []byte(contents), "a reason"))
	}
	bases, strange, err := f.dir.list(failedDir, completeSuffix)
	require.NoError(t, err)
	require.Empty(t, strange)
	require.Equal(t, []string{base + ".4", base + ".5"}, bases)
	for i, contents := range []string{"one", "two"} {
		text, err := os.ReadFile(filepath.Join(f.cfg.Dir, failedDir, bases[i]+completeSuffix))
		require.NoError(t, err)
		require.Equal(t, contents, string(text))
		_, err = os.Stat(filepath.Join(f.cfg.Dir, failedDir, bases[i]+reasonSuffix))
		require.NoError(t, err)
	}
}

func TestDamagedFilesAreReported(t *testing.T) {
	t.Parallel()
	db, dir := newDatabase(), t.TempDir()
	data, messages, ends := sample(4)
	data[ends[1]-6] ^= 0xff // in the second record
	require.NoError(t, os.WriteFile(filepath.Join(dir, "queen-1700000000000-00000000.buf"), data, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "queen-1700000000001-00000000.tmp"), data[:ends[0]+5], 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "queen-1700000000002-00000000.tmp"), []byte(header), 0o600))
	f := start(t, dir, db)
	require.Equal(t, 4, f.drain(t), "the first record of the second file is a duplicate")
	require.Len(t, db.ids, 3)
	for i, m := range messages {
		_, stored := db.ids[m.ID]
		require.Equal(t, i != 1, stored)
	}
	require.EqualValues(t, 1, f.Stats().Failed)
	require.Contains(t, f.log.String(), "set aside")
	require.Contains(t, f.log.String(), "tail of an interrupted write")
}

// Files that are not the spool's are left alone and named.
func TestStrangeFilesAreReported(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "queen-1-2.buf"), []byte("?"), 0o600))
	f := start(t, dir, newDatabase())
	require.Contains(t, f.log.String(), "queen-1-2.buf")
	require.Zero(t, f.drain(t))
	require.FileExists(t, filepath.Join(dir, "queen-1-2.buf"))
}
