package testdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"
)

// minMajor is the oldest PostgreSQL the schema works on.
const minMajor = 15

// binDirPatterns are the places where distributions install PostgreSQL's server programs, which are often not on PATH.
var binDirPatterns = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/local/pgsql/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/opt/homebrew/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// findBinaries returns the directory with the newest usable initdb and postgres.
func findBinaries() (string, error) {
	var candidates []string
	if dir := os.Getenv("QUEEN_TEST_PG_BIN"); dir != "" {
		candidates = []string{dir}
	} else {
		if path, err := exec.LookPath("initdb"); err == nil {
			// The programs find their siblings and libraries from where they really lie.
			if real, err := filepath.EvalSymlinks(path); err == nil {
				candidates = append(candidates, filepath.Dir(real))
			}
		}
		for _, pattern := range binDirPatterns {
			dirs, err := filepath.Glob(pattern)
			if err != nil {
				return "", fmt.Errorf("look for PostgreSQL in %s: %w", pattern, err)
			}
			candidates = append(candidates, dirs...)
		}
	}
	best, bestMajor := "", 0
	for _, dir := range candidates {
		if major := serverMajor(dir); major > bestMajor {
			best, bestMajor = dir, major
		}
	}
	if bestMajor < minMajor {
		return "", fmt.Errorf("tests need PostgreSQL %d or newer: install it (initdb and postgres), set QUEEN_TEST_PG_BIN to its bin directory, "+
			"or point QUEEN_TEST_DATABASE_URL at a server", minMajor)
	}
	return best, nil
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// serverMajor returns the major version of the programs in dir, 0 when they are not complete.
func serverMajor(dir string) int {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return 0
	}
	match := versionPattern.FindSubmatch(out)
	if match == nil {
		return 0
	}
	major, err := strconv.Atoi(string(match[1]))
	if err != nil {
		return 0
	}
	return major
}

// unprivileged returns the identity under which the server must run: nil for ours, and that of "postgres" or "nobody" when we
// are root, whom initdb and postgres refuse.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // nil is a valid Credential: keep ours
	}
	for _, name := range []string{"postgres", "nobody"} {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.ParseUint(account.Uid, 10, 32)
		gid, errGID := strconv.ParseUint(account.Gid, 10, 32)
		if errUID != nil || errGID != nil {
			continue
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("PostgreSQL does not run as root and there is no account \"postgres\" or \"nobody\" to run it as")
}
