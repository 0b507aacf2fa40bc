package localpg

import (
	"bufio"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// entry is a directory as os.Stat would describe it.
type entry struct {
	fs.FileInfo
	mode     fs.FileMode
	uid, gid uint32
}

func (e entry) Mode() fs.FileMode  { return fs.ModeDir | e.mode }
func (e entry) Sys() any           { return &syscall.Stat_t{Uid: e.uid, Gid: e.gid} }
func (e entry) ModTime() time.Time { return time.Time{} }

func TestAccountMayPass(t *testing.T) {
	t.Parallel()
	a := &account{name: "postgres", uid: 70, gid: 71}
	for _, row := range []struct {
		name string
		dir  entry
		want bool
	}{
		{"OthersMay", entry{mode: 0o711}, true},
		{"OthersMayNot", entry{mode: 0o770}, false},
		{"OwnerMay", entry{mode: 0o700, uid: 70}, true},
		{"OwnerMayNotThoughOthersMay", entry{mode: 0o001, uid: 70}, false},
		{"GroupMay", entry{mode: 0o710, gid: 71}, true},
		{"GroupMayNotThoughOthersMay", entry{mode: 0o701, gid: 71}, false},
	} {
		require.Equal(t, row.want, a.mayPass(row.dir), row.name)
	}
}

func TestClosedParentIsNamed(t *testing.T) {
	t.Parallel()
	closed, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, os.Chmod(closed, 0o700))
	_, err = prepareBase(filepath.Join(closed, "data"), &account{name: "somebody", uid: 1 << 30, gid: 1 << 30})
	require.ErrorContains(t, err, `"somebody", which may not enter `+closed)
	info, err := os.Stat(closed)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o700), info.Mode().Perm(), "it is not opened up")
}

// As root the other tests show the account that root hands the server to; this one shows a broker that is an ordinary user.
func TestOrdinaryUserRunsItsOwnServer(t *testing.T) {
	t.Parallel()
	account, err := serverAccount()
	require.NoError(t, err)
	home := filepath.Dir(dataDir(t))
	// The test binary lies where only its maker may enter.
	program := filepath.Join(home, "broker")
	copyFile(t, os.Args[0], program)
	require.NoError(t, account.own(home))

	dir := filepath.Join(home, "data")
	broker := exec.CommandContext(deadline(t), program)
	broker.Dir = home
	broker.Env = append(os.Environ(), childVariable+"="+dir)
	broker.SysProcAttr = account.attributes()
	stdin, err := broker.StdinPipe()
	require.NoError(t, err)
	stdout, err := broker.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, broker.Start())
	lines := bufio.NewReader(stdout)
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "ready")

	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o700), info.Mode().Perm())
	require.Equal(t, account.uidOrOurs(), info.Sys().(*syscall.Stat_t).Uid)

	require.NoError(t, stdin.Close())
	line, err = lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "stopped\n", line)
	require.NoError(t, broker.Wait())
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	require.NoError(t, err)
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	require.NoError(t, err)
	_, err = io.Copy(out, in)
	require.NoError(t, err)
	require.NoError(t, out.Close())
}
