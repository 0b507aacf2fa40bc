package spool

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// running opens and runs a spool without tying it.
func running(t *testing.T, dir string) (s *Spool, stop func()) {
	t.Helper()
	s, err := Open(Config{Dir: dir})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Run(ctx) }()
	return s, func() { cancel(); <-ended }
}

// A broker with a database of its own made /var/lib/queen for its buffer so that nobody else could enter it. A later one with a private
// PostgreSQL, which runs as another account and lies beside the buffer, could not start then.
func TestOthersPassTheDirectoriesAbove(t *testing.T) {
	t.Parallel()
	above := filepath.Join(t.TempDir(), "lib", "queen")
	_, stop := running(t, filepath.Join(above, "buffers"))
	defer stop()
	for path, want := range map[string]os.FileMode{filepath.Dir(above): 0o711, above: 0o711, filepath.Join(above, "buffers"): 0o700} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, want, info.Mode().Perm(), path)
	}
}

func TestDirectoryBelongsToItsDatabase(t *testing.T) {
	t.Parallel()
	dir, db, other := t.TempDir(), newDatabase(), uuid.New()
	db.fail(errAway)
	f := start(t, dir, db)
	f.push(t, "q", "p", "1")
	f.push(t, "q", "p", "2")
	f.stop()
	db.fail(nil)

	s, stop := running(t, dir)
	n, err := s.Drain(t.Context(), db)
	require.ErrorIs(t, err, errUntied)
	require.Zero(t, n)
	err = s.Tie(t.Context(), other, "the wrong one")
	require.ErrorIs(t, err, ErrOtherDatabase)
	for _, says := range []string{"2 messages that wait", home.String(), "the database of the tests", other.String(), "the wrong one", "FILE_BUFFER_DIR", filepath.Join(dir, tieName)} {
		require.ErrorContains(t, err, says)
	}
	_, err = s.Drain(t.Context(), db)
	require.ErrorIs(t, err, errUntied)
	require.Empty(t, db.lane("q/p"), "nothing went to the wrong database")
	stop()

	f = start(t, dir, db)
	require.Equal(t, 2, f.drain(t), "and nothing is lost for the right one")
	f.stop()
	s, stop = running(t, dir)
	require.NoError(t, s.Tie(t.Context(), other, "the next one"), "an empty directory takes any database")
	stop()
	s, stop = running(t, dir)
	require.NoError(t, s.Tie(t.Context(), other, "the next one"))
	stop()
}

// What was set aside belongs to a database, too: it may be moved back.
func TestWhatWasSetAsideTiesTheDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := start(t, dir, newDatabase())
	require.NoError(t, f.dir.setAside("queen-1700000000000-00000000", 4, []byte(header), "a reason"))
	f.stop()
	s, stop := running(t, dir)
	defer stop()
	require.ErrorContains(t, s.Tie(t.Context(), uuid.New(), "other"), "1 files that were set aside")
	require.NoError(t, s.Tie(t.Context(), home, "home"))
}

// A directory of a version that did not tie it belongs to the database that it is started with, also when its messages wait.
func TestDirectoryOfAnEarlierVersionIsTied(t *testing.T) {
	t.Parallel()
	dir, db := t.TempDir(), newDatabase()
	data, messages, _ := sample(3)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "queen-1700000000000-00000000.buf"), data, 0o600))
	f := start(t, dir, db)
	require.Contains(t, f.log.String(), "was not tied to a database")
	text, err := os.ReadFile(filepath.Join(dir, tieName))
	require.NoError(t, err)
	require.Equal(t, home.String()+"\nthe database of the tests\n", string(text))
	require.Equal(t, len(messages), f.drain(t))
}

// A tie that cannot be understood is none to trust.
func TestDamagedTieIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data, _, _ := sample(1)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "queen-1700000000000-00000000.buf"), data, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, tieName), nil, 0o600))
	s, stop := running(t, dir)
	defer stop()
	require.ErrorIs(t, s.Tie(t.Context(), home, "home"), ErrOtherDatabase)
}
