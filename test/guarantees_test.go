package test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every test that docs/guarantees.md names exists, so that no promise loses its attacker unnoticed.
func TestGuaranteesAreAttacked(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/guarantees.md")
	require.NoError(t, err)
	tests := map[string]bool{}
	for _, pattern := range []string{"../*/*_test.go", "../*/*/*_test.go", "../*/*/*/*_test.go", "../*/*/*/*/*_test.go"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, file := range files {
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, match := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`).FindAllSubmatch(source, -1) {
				tests[string(match[1])] = true
			}
		}
	}
	rows := regexp.MustCompile(`(?m)^\| \*\*.*$`).FindAll(text, -1)
	require.Greater(t, len(rows), 15)
	for _, row := range rows {
		named := regexp.MustCompile("`((?:Test|Fuzz)\\w*)`").FindAllSubmatch(row, -1)
		require.NotEmpty(t, named, "a promise that nothing attacks: %s", row)
	}
	for _, match := range regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllSubmatch(text, -1) {
		require.True(t, tests[string(match[1])], "docs/guarantees.md names %s, which does not exist", match[1])
	}
}
