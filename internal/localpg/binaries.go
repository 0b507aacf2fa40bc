package localpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// usualDirs are where distributions put PostgreSQL's server programs, which are often not on PATH.
var usualDirs = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/local/pgsql*/bin",
	"/usr/local/bin",
	"/usr/libexec/postgresql*",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/opt/homebrew/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// binaries is a directory with PostgreSQL's programs.
type binaries struct {
	dir     string
	major   int
	version string // as the program prints it, like 15.18
}

func (b binaries) path(program string) string { return filepath.Join(b.dir, program) }

// ErrNoBinaries means that no usable PostgreSQL is installed.
var ErrNoBinaries = errors.New("no PostgreSQL server programs found")

// findBinaries returns the newest programs of major version minMajor or later, or exactly of version major when it is not 0:
// a data directory can only be run by the major version that made it. searchPath is in the form of PATH.
func findBinaries(ctx context.Context, searchPath string, dirs []string, major int) (binaries, error) {
	candidates := filepath.SplitList(searchPath)
	for _, pattern := range dirs {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return binaries{}, fmt.Errorf("look for PostgreSQL in %s: %w", pattern, err)
		}
		candidates = append(candidates, found...)
	}
	var usable []binaries
	seen := map[string]bool{}
	for _, dir := range candidates {
		// A link on PATH points to one program; its siblings and libraries are where it really lies.
		program, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres"))
		if err != nil || seen[program] {
			continue
		}
		seen[program] = true
		if b, ok := inspect(ctx, filepath.Dir(program)); ok && b.major >= minMajor && (major == 0 || b.major == major) {
			usable = append(usable, b)
		}
	}
	if len(usable) == 0 {
		return binaries{}, ErrNoBinaries
	}
	return slices.MaxFunc(usable, func(a, b binaries) int { return cmp.Compare(a.major, b.major) }), nil
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) ((\d+)\S*)`)

// inspect asks the programs in dir for their version. They must be complete and run on this machine.
func inspect(ctx context.Context, dir string) (binaries, bool) {
	if _, err := exec.LookPath(filepath.Join(dir, "initdb")); err != nil {
		return binaries{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return binaries{}, false
	}
	match := versionPattern.FindSubmatch(out)
	if match == nil {
		return binaries{}, false
	}
	major, err := strconv.Atoi(string(match[2]))
	return binaries{dir: dir, major: major, version: string(match[1])}, err == nil
}

// Programs returns the directory of the newest PostgreSQL programs installed on this machine, of version 15 or later. It is
// [ErrNoBinaries] when there are none.
func Programs(ctx context.Context) (string, error) {
	found, err := findBinaries(ctx, os.Getenv("PATH"), usualDirs, 0)
	return found.dir, err
}

// installed is findBinaries on this machine, with what an earlier start downloaded as a further place.
func installed(ctx context.Context, downloads string, major int) (binaries, error) {
	return findBinaries(ctx, os.Getenv("PATH"), append(slices.Clone(usualDirs), filepath.Join(downloads, "*", "bin")), major)
}

// obtain is installed, and as the last resort downloads the programs into downloads.
func obtain(ctx context.Context, downloads string, major int, log *slog.Logger) (binaries, error) {
	found, err := installed(ctx, downloads, major)
	if !errors.Is(err, ErrNoBinaries) {
		return found, err
	}
	wanted := fmt.Sprintf("PostgreSQL %d or newer", minMajor)
	if major != 0 {
		wanted = fmt.Sprintf("PostgreSQL %d, which made this data directory,", major)
	}
	log.WarnContext(ctx, "no installed postgresql fits, downloading one", slog.String("wanted", wanted))
	if err := download(ctx, downloads, major, ""); err != nil {
		return binaries{}, fmt.Errorf("%s is not installed and could not be downloaded (%w): install its server package "+
			"(on Debian: apt-get install postgresql), or set DATABASE_URL", wanted, err)
	}
	return installed(ctx, downloads, major)
}
