package localpg

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// programs makes a directory with programs that only tell their version.
func programs(t *testing.T, banner string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	for _, name := range []string{"postgres", "initdb"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\necho '"+banner+"'\n"), 0o755))
	}
	return dir
}

func TestFindBinaries(t *testing.T) {
	t.Parallel()
	v14 := programs(t, "postgres (PostgreSQL) 14.9")
	v15 := programs(t, "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)")
	v16 := programs(t, "postgres (PostgreSQL) 16beta2")
	broken := programs(t, "command not found")
	incomplete := programs(t, "postgres (PostgreSQL) 19.0")
	require.NoError(t, os.Remove(filepath.Join(incomplete, "initdb")))
	linked := t.TempDir()
	require.NoError(t, os.Symlink(filepath.Join(v15, "postgres"), filepath.Join(linked, "postgres")))

	for _, row := range []struct {
		name  string
		path  []string
		dirs  []string
		major int
		want  binaries
	}{
		{"NewestWinsWhereverItIs", []string{v15}, []string{v16, v14}, 0, binaries{v16, 16, "16beta2"}},
		{"MajorOfTheDataDirectoryDecides", []string{v16}, []string{v15}, 15, binaries{v15, 15, "15.18"}},
		{"LinkOnPathIsFollowed", []string{linked}, nil, 0, binaries{v15, 15, "15.18"}},
		{"TooOldIsNotFound", []string{v14}, nil, 0, binaries{}},
		{"OtherMajorIsNotFound", []string{v15}, nil, 16, binaries{}},
		{"BrokenAndIncompleteAreNotFound", []string{broken, "", "/nowhere"}, []string{incomplete}, 0, binaries{}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			have, err := findBinaries(t.Context(), strings.Join(row.path, string(filepath.ListSeparator)), row.dirs, row.major)
			require.Equal(t, row.want, have)
			if row.want.dir == "" {
				require.ErrorIs(t, err, ErrNoBinaries)
			} else {
				require.NoError(t, err)
			}
		})
	}
}

// repository serves one archive of programs, whatever version and system is asked for.
func repository(t *testing.T) string {
	t.Helper()
	archive, err := os.ReadFile("testdata/programs.txz")
	require.NoError(t, err)
	var jar bytes.Buffer
	w := zip.NewWriter(&jar)
	f, err := w.Create("postgres.txz")
	require.NoError(t, err)
	_, err = f.Write(archive)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, ".jar"):
			_, _ = w.Write(jar.Bytes())
		case strings.HasSuffix(r.URL.Path, ".jar.sha256"):
			_, _ = fmt.Fprintf(w, "%x", sha256.Sum256(jar.Bytes()))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(func() {
		server.Close()
		// The library asks with the default client.
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	return server.URL
}

func TestDownload(t *testing.T) {
	t.Parallel()

	t.Run("ProgramsAreFoundAfterwards", func(t *testing.T) {
		t.Parallel()
		dir, err := filepath.EvalSymlinks(t.TempDir())
		require.NoError(t, err)
		require.NoError(t, download(t.Context(), dir, 0, repository(t)))
		have, err := findBinaries(t.Context(), "", []string{filepath.Join(dir, "*", "bin")}, 0)
		require.NoError(t, err)
		require.Equal(t, binaries{filepath.Join(dir, "17", "bin"), 17, "17.5"}, have)
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, left, 1, "neither archive nor decoy stay")
	})

	t.Run("FailureIsOneLine", func(t *testing.T) {
		t.Parallel()
		server := httptest.NewServer(http.NotFoundHandler())
		t.Cleanup(func() { server.Close(); http.DefaultTransport.(*http.Transport).CloseIdleConnections() })
		err := download(t.Context(), t.TempDir(), 16, server.URL)
		require.ErrorContains(t, err, "no version found")
		require.NotContains(t, err.Error(), "\n")
	})

	t.Run("MajorWithoutDownload", func(t *testing.T) {
		t.Parallel()
		require.ErrorContains(t, download(t.Context(), t.TempDir(), 99, ""), "no download of version 99")
	})

	t.Run("CancelledStartDoesNotWait", func(t *testing.T) {
		t.Parallel()
		reached, release := make(chan struct{}), make(chan struct{})
		server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			close(reached)
			<-release
		}))
		dir := t.TempDir()
		ctx, cancel := context.WithCancel(t.Context())
		finished := make(chan error)
		go func() { finished <- download(ctx, dir, 16, server.URL) }()
		<-reached
		cancel()
		require.ErrorIs(t, <-finished, context.Canceled)

		// What goes on behind it ends with the transfer and leaves nothing.
		close(release)
		require.Eventually(t, func() bool {
			_, err := os.Stat(filepath.Join(dir, "decoy"))
			return errors.Is(err, os.ErrNotExist)
		}, 30*time.Second, time.Millisecond)
		server.Close()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
}

func TestDataDirOfAnotherMajorSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(base, "postgres"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(base, "postgres", "PG_VERSION"), []byte("99\n"), 0o600))
	_, err := openCluster(t.Context(), base, nil, nil, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "PostgreSQL 99, which made this data directory, is not installed")
	require.ErrorContains(t, err, "DATABASE_URL")
	require.NotContains(t, err.Error(), "\n")
}
