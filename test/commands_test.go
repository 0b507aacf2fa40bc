package test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"queenmq/test/documents"
)

// What the documents tell a reader to run is there: targets of make, programs, tests and benchmarks. The commands of queen, queenctl and
// bench are held against the programs in their own packages.
func TestDocumentedCommandsExist(t *testing.T) {
	t.Parallel()
	commands, err := documents.Commands("..")
	require.NoError(t, err)
	text, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	targets := submatches(regexp.MustCompile(`(?m)^([a-z-]+):`), text)
	seen := map[string]int{}
	for _, command := range commands {
		if args, called := command.Args("make"); called {
			seen["make"]++
			for _, arg := range args {
				if name, _, isVariable := strings.Cut(arg, "="); isVariable {
					require.Contains(t, string(text), name+" ?=", "%s", command)
				} else {
					require.Contains(t, targets, arg, "%s", command)
				}
			}
		}
		if args, called := command.Args("go"); called && len(args) > 1 && (args[0] == "run" || args[0] == "test") {
			seen[args[0]]++
			requireRunnable(t, command, args[1:])
		}
	}
	require.Greater(t, seen["make"], 20)
	require.Greater(t, seen["run"], 20)
	require.Greater(t, seen["test"], 10)
}

// requireRunnable looks for the package of a go command and for the tests and benchmarks that it chooses.
func requireRunnable(t *testing.T, command documents.Command, args []string) {
	t.Helper()
	dir := ""
	var chosen []string
	for i, arg := range args {
		switch {
		case dir == "" && (arg == "." || arg == "./..."): // a module of its own
			dir = filepath.Join("..", command.Dir)
		case dir == "" && strings.HasPrefix(arg, "./"):
			dir = filepath.Join("..", arg)
		case (arg == "-run" || arg == "-bench") && i+1 < len(args):
			chosen = append(chosen, args[i+1])
		}
	}
	sources, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	require.NotEmpty(t, sources, "%s: no package in %q", command, dir)
	var names []string
	for _, source := range sources {
		text, err := os.ReadFile(source)
		require.NoError(t, err)
		names = append(names, submatches(regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)\w*)\(`), text)...)
	}
	for _, pattern := range chosen {
		if pattern == "-" || pattern == "^$" {
			continue // none of them, on purpose
		}
		for one := range strings.SplitSeq(pattern, "|") {
			first, _, _ := strings.Cut(one, "/")
			wanted, err := regexp.Compile(first)
			require.NoError(t, err, "%s", command)
			require.True(t, slices.ContainsFunc(names, wanted.MatchString), "%s: nothing in %s matches %s", command, dir, first)
		}
	}
}

// Every setting that a document or a file of deploy names is one that something reads.
func TestDocumentedSettingsExist(t *testing.T) {
	t.Parallel()
	setting := regexp.MustCompile(`\b((?:QUEEN|QUEENCTL|JWT|PG|DATABASE|FILE_BUFFER|RETENTION|DEFAULT|METRICS|LOG)_[A-Z0-9_]*[A-Z0-9])\b`)
	read := map[string]bool{}
	for _, pattern := range []string{"../cmd/*/*.go", "../cmd/*/*/*.go", "../internal/config/*.go", "../broker/*.go", "../examples/*/*.go", "../test/dashboard/*.go", "../deploy/*.sh"} {
		for _, path := range glob(t, pattern) {
			if strings.HasSuffix(path, "_test.go") && !strings.Contains(path, "test/dashboard") {
				continue
			}
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			for _, name := range submatches(setting, text) {
				read[name] = true
			}
		}
	}
	paths, err := documents.Paths("..")
	require.NoError(t, err)
	named := 0
	for _, path := range slices.Concat(paths, glob(t, "../deploy/*"), glob(t, "../deploy/*/*"), []string{"../Makefile"}) {
		text, err := os.ReadFile(path)
		if info, _ := os.Stat(path); info != nil && info.IsDir() {
			continue
		}
		require.NoError(t, err)
		for _, name := range submatches(setting, text) {
			named++
			if !read[name] {
				t.Errorf("%s names the setting %s, which nothing reads", path, name)
			}
		}
	}
	require.Greater(t, named, 100)
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.NotEmpty(t, found, pattern)
	return found
}

// submatches are the first groups of all matches.
func submatches(pattern *regexp.Regexp, text []byte) []string {
	var found []string
	for _, match := range pattern.FindAllSubmatch(text, -1) {
		found = append(found, string(match[1]))
	}
	return found
}
