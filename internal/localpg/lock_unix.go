//go:build unix

package localpg

import (
	"errors"
	"os"
	"syscall"
)

var errLocked = errors.New("locked by another process")

// tryLock takes an exclusive lock that ends with the process, however that ends. The file is closed on exec, so the server
// does not inherit it.
func tryLock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EWOULDBLOCK):
			return errLocked
		default:
			return err
		}
	}
}
