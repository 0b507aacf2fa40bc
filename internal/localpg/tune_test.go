package localpg

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func settings(parameters []parameter) map[string]string {
	m := map[string]string{}
	for _, p := range parameters {
		m[p.name] = p.value
	}
	return m
}

func megabytes(t require.TestingT, text string) int64 {
	n, err := strconv.ParseInt(strings.TrimSuffix(text, "MB"), 10, 64)
	require.NoError(t, err, text)
	return n
}

func TestTuneFollowsTheMachine(t *testing.T) {
	t.Parallel()
	small := settings(tune(size{cores: 2, memory: gib, freeDisk: 4 * gib}, 32))
	require.Equal(t, "52", small["max_connections"])
	require.Equal(t, "204MB", small["shared_buffers"])
	require.Equal(t, "256MB", small["max_wal_size"])
	require.Equal(t, "0", small["max_parallel_workers_per_gather"])
	large := settings(tune(size{cores: 32, memory: 256 * gib, freeDisk: 1000 * gib}, 160))
	require.Equal(t, "180", large["max_connections"])
	require.Equal(t, "8192MB", large["shared_buffers"])
	require.Equal(t, "4096MB", large["max_wal_size"])
}

func TestTuneStaysDurableAndInsideTheMachine(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := size{
			cores:    rapid.IntRange(1, 512).Draw(t, "cores"),
			memory:   rapid.Int64Range(512*mib, 4096*gib).Draw(t, "memory"),
			freeDisk: rapid.Int64Range(0, 1<<50).Draw(t, "disk"),
		}
		have := settings(tune(s, rapid.IntRange(4, 10000).Draw(t, "connections")))
		for _, name := range []string{"fsync", "full_page_writes", "synchronous_commit"} {
			require.Equal(t, "on", have[name], name)
		}
		total := megabytes(t, have["shared_buffers"]) + megabytes(t, have["wal_buffers"])
		require.LessOrEqual(t, total*mib, s.memory/2)
		require.LessOrEqual(t, megabytes(t, have["min_wal_size"]), megabytes(t, have["max_wal_size"]))
	})
}

func TestMemTotal(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, 24683724, memTotal([]byte("MemTotal:       24683724 kB\nMemFree:        23741000 kB\n")))
	require.Zero(t, memTotal([]byte("MemTotal: lots\n")))
	require.Zero(t, memTotal(nil))
}

func TestRenderQuotes(t *testing.T) {
	t.Parallel()
	require.Contains(t, string(render([]parameter{{"a", "it's"}})), "a = 'it''s'\n")
}
