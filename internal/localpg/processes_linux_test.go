package localpg

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Root without the right to trace, as in a container, sees of other accounts only what everybody may read.
func TestServerIsFoundWhereWorkingDirectoriesAreClosed(t *testing.T) {
	t.Parallel()
	s := start(t, dataDir(t), nil)
	closed := func(string, string) (bool, error) { return false, os.ErrPermission }
	found := findProcesses(s.cluster.dir, closed)
	require.Contains(t, found, s.process.pid())
	require.Greater(t, len(found), 1, "its children too")
	all := serverProcesses(s.cluster.dir, 0)
	for _, pid := range found {
		require.True(t, slices.Contains(all, pid), "a process of another server")
	}
	require.Empty(t, findProcesses(s.cluster.dir+"x", closed))
}
