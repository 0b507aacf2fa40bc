package localpg

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// An account is who the server's processes run as when the broker is root, which PostgreSQL refuses to run as.
type account struct {
	name     string
	uid, gid uint32
}

// serverAccount is nil when the broker is not root: the server then runs as the broker's own user.
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // no account is a legal answer: keep ours
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.ParseUint(found.Uid, 10, 32)
		gid, errGID := strconv.ParseUint(found.Gid, 10, 32)
		if errUID == nil && errGID == nil && uid != 0 {
			return &account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New(`PostgreSQL does not run as root and there is no account "postgres" or "nobody" to run it as: ` +
		`run the broker as another user, or set DATABASE_URL`)
}

// Credential is what a server process must run as that this process starts: nil for our own account, that of "postgres" or "nobody"
// when we are root, whom PostgreSQL refuses.
func Credential() (*syscall.Credential, error) {
	a, err := serverAccount()
	if a == nil || err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid}, nil
}

// attributes make a child run as the account, in a session of its own: Ctrl-C on the terminal must reach the broker alone,
// which stops the server last.
func (a *account) attributes() *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{Setsid: true}
	if a != nil {
		attributes.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return attributes
}

func (a *account) uidOrOurs() uint32 {
	if a == nil {
		return uint32(os.Geteuid()) //nolint:gosec // a user id is not negative
	}
	return a.uid
}

// own hands a file to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Lchown(path, int(a.uid), int(a.gid))
}

// prepareBase creates the data directory and makes sure that the account can reach what lies in it.
func prepareBase(dir string, a *account) (string, error) {
	if dir == "" {
		return "", errors.New("the data directory (QUEEN_DATA_DIR) has no name")
	}
	base, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("data directory (QUEEN_DATA_DIR): %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(base), 0o755); err != nil {
		return "", fmt.Errorf("data directory (QUEEN_DATA_DIR): %w", err)
	}
	// The account passes through here to its own directories; nobody needs to list it.
	mode := os.FileMode(0o700)
	if a != nil {
		mode = 0o711
	}
	if err := os.Mkdir(base, mode); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("data directory (QUEEN_DATA_DIR): %w", err)
	}
	// PostgreSQL resolves symbolic links of its data directory; so do we, to recognise its processes.
	if base, err = filepath.EvalSymlinks(base); err != nil {
		return "", fmt.Errorf("data directory (QUEEN_DATA_DIR): %w", err)
	}
	return base, a.checkReach(base)
}

// checkReach finds the first directory on the way to path that the account may not pass. It is named rather than opened up:
// directories that existed before are not ours to change.
func (a *account) checkReach(path string) error {
	if a == nil {
		return nil
	}
	for dir := path; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("data directory (QUEEN_DATA_DIR): %w", err)
		}
		if !info.IsDir() {
			return fmt.Errorf("data directory (QUEEN_DATA_DIR): %s is not a directory", dir)
		}
		if !a.mayPass(info) {
			return fmt.Errorf("PostgreSQL runs as the account %q, which may not enter %s: allow it (chmod o+x), or set QUEEN_DATA_DIR to another directory", a.name, dir)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

func (a *account) mayPass(info os.FileInfo) bool {
	mode := info.Mode().Perm()
	if owner, ok := info.Sys().(*syscall.Stat_t); ok {
		switch {
		case owner.Uid == a.uid:
			return mode&0o100 != 0
		case owner.Gid == a.gid:
			return mode&0o010 != 0
		}
	}
	return mode&0o001 != 0
}
