//go:build !linux

package http1

import (
	"errors"
	"syscall"
)

// Supported tells whether this system can serve connections here. Elsewhere they are all for net/http.
const Supported = false

type watcher struct{}

func newWatcher() (*watcher, error) {
	return nil, errors.New("connections can be watched on Linux only")
}

func (*watcher) add(syscall.RawConn, uint64) error { return nil }
func (*watcher) remove(syscall.RawConn)            {}
func (*watcher) run(func(id uint64, broken bool))  {}
func (*watcher) close()                            {}
func inputEnded(syscall.RawConn) bool              { return false }
