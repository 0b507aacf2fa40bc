package test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var fuzzTarget = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)

// Every fuzz target has a committed corpus, and every committed corpus its target: what once was found interesting runs with every test.
func TestFuzzTargetsHaveTheirCorpora(t *testing.T) {
	t.Parallel()
	targets, corpora := map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if entry.IsDir() && filepath.Base(filepath.Dir(path)) == "fuzz" && strings.HasSuffix(filepath.Dir(path), filepath.Join("testdata", "fuzz")) {
			entries, err := os.ReadDir(path)
			corpora[filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(path))), entry.Name())] = len(entries) > 0
			return err
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, match := range fuzzTarget.FindAllSubmatch(text, -1) {
			targets[filepath.Join(filepath.Dir(path), string(match[1]))] = true
		}
		return err
	})
	require.NoError(t, err)
	require.Greater(t, len(targets), 15)
	for target := range targets {
		require.True(t, corpora[target], "%s has no corpus: run it with -fuzz and commit what it keeps of $(go env GOCACHE)/fuzz under testdata/fuzz", target)
	}
	for corpus := range corpora {
		require.True(t, targets[corpus], "%s is a corpus without a target", corpus)
	}
}
