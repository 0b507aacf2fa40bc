package main

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var tourBlock = regexp.MustCompile("(?s)(<!-- tour of queenctl: .*? -->\n```console\n)(.*?)(```\n<!-- end of the tour -->)")

// The lines of the tour in the README do what stands below them.
func TestTour(t *testing.T) {
	t.Parallel()
	const document = "../../README.md"
	text, err := os.ReadFile(document)
	require.NoError(t, err)
	block := tourBlock.FindSubmatch(text)
	require.NotNil(t, block, "the README has no tour")
	server, dir := serve(t, nil), t.TempDir()
	var real strings.Builder
	for line := range strings.Lines(string(block[2])) {
		command, is := strings.CutPrefix(line, "$ ")
		if !is {
			continue // what an earlier run printed
		}
		shell := exec.CommandContext(t.Context(), "sh", "-c", command)
		shell.Dir = dir
		shell.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "QUEEN_SERVER=" + server}
		out, err := shell.CombinedOutput()
		require.NoError(t, err, "%s%s", line, out)
		real.WriteString(line)
		real.Write(bytes.ReplaceAll(out, []byte(server), []byte("http://localhost:6632")))
	}
	if *update {
		text = tourBlock.ReplaceAllFunc(text, func([]byte) []byte {
			return []byte(string(block[1]) + real.String() + string(block[3]))
		})
		require.NoError(t, os.WriteFile(document, text, 0o644))
		return
	}
	require.Equal(t, withoutTimes(string(block[2])), withoutTimes(real.String()), "go test ./cmd/queenctl -run Tour -update writes it anew")
}

// withoutTimes leaves out what differs from run to run.
func withoutTimes(text string) string {
	return uuids.ReplaceAllString(times.ReplaceAllString(text, "TIME"), "UUID")
}
