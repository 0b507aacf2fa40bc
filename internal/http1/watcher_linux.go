package http1

import (
	"fmt"
	"os"
	"sync"
	"syscall"
)

// Supported tells whether this system can serve connections here. Elsewhere they are all for net/http.
const Supported = true

// A watcher learns from the kernel that the input of a connection has ended, without reading from it. It is an epoll instance of its own:
// the one of the Go runtime tells readers only. The runtime watches the instance like a file, so that waiting takes no thread.
type watcher struct {
	file *os.File
	raw  syscall.RawConn
	once sync.Once
}

func newWatcher() (*watcher, error) {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	if err := syscall.SetNonblock(fd, true); err != nil { // or the runtime would not watch it
		_ = syscall.Close(fd)
		return nil, fmt.Errorf("epoll instance: %w", err)
	}
	file := os.NewFile(uintptr(fd), "epoll")
	raw, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("epoll instance: %w", err)
	}
	return &watcher{file: file, raw: raw}, nil
}

// add watches a connection until it is closed or removed. It tells once that the input has ended, also when it has ended before.
func (w *watcher) add(conn syscall.RawConn, id uint64) error {
	event := syscall.EpollEvent{Events: syscall.EPOLLRDHUP | edgeTriggered, Fd: int32(uint32(id)), Pad: int32(uint32(id >> 32))}
	return w.control(syscall.EPOLL_CTL_ADD, conn, &event)
}

// edgeTriggered is EPOLLET, which the syscall package has as a negative number.
const edgeTriggered = 1 << 31

// remove stops watching a connection that stays open.
func (w *watcher) remove(conn syscall.RawConn) {
	_ = w.control(syscall.EPOLL_CTL_DEL, conn, new(syscall.EpollEvent)) // it was never added
}

func (w *watcher) control(operation int, conn syscall.RawConn, event *syscall.EpollEvent) (err error) {
	outer := w.raw.Control(func(instance uintptr) {
		inner := conn.Control(func(fd uintptr) { err = syscall.EpollCtl(int(instance), operation, int(fd), event) })
		if inner != nil {
			err = inner
		}
	})
	if outer != nil {
		return outer
	}
	return err
}

// run tells about connections until the watcher is closed.
func (w *watcher) run(tell func(id uint64, broken bool)) {
	events := make([]syscall.EpollEvent, 128)
	for {
		var n int
		err := w.raw.Read(func(instance uintptr) bool {
			n, _ = syscall.EpollWait(int(instance), events, 0)
			return n > 0 // nothing, or interrupted: the runtime waits
		})
		if err != nil {
			return
		}
		for _, event := range events[:n] {
			tell(uint64(uint32(event.Fd))|uint64(uint32(event.Pad))<<32, event.Events&(syscall.EPOLLERR|syscall.EPOLLHUP) != 0)
		}
	}
}

// close ends run.
func (w *watcher) close() { w.once.Do(func() { _ = w.file.Close() }) }

// inputEnded tells whether a read would find the end of the input, or an error, and nothing before it.
func inputEnded(conn syscall.RawConn) (ended bool) {
	var one [1]byte
	err := conn.Control(func(fd uintptr) {
		n, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		ended = err == nil && n == 0 || err != nil && err != syscall.EAGAIN && err != syscall.EINTR
	})
	return ended || err != nil
}
