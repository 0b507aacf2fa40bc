package stack

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"

	"go.uber.org/goleak"
)

// shared is the broker of a test binary; see RunShared.
var shared *Stack

// RunShared runs the tests of a package with one broker that all of them, also its examples, share: call it in TestMain. It ends the
// process, with a failure when goroutines were left behind.
func RunShared(m *testing.M, settings ...map[string]string) {
	process := &wholeProcess{}
	shared = Start(process, settings...)
	code := m.Run()
	process.end()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if process.failed && code == 0 {
		code = 1
	}
	os.Exit(code)
}

// Shared is the broker that RunShared started. Tests tell themselves apart by the names of their queues.
func Shared() *Stack { return shared }

// wholeProcess stands for a test that lasts as long as the process.
type wholeProcess struct {
	testing.TB
	cleanups []func()
	failed   bool
}

func (p *wholeProcess) Helper()                  {}
func (p *wholeProcess) Cleanup(f func())         { p.cleanups = append(p.cleanups, f) }
func (p *wholeProcess) Context() context.Context { return context.Background() }
func (p *wholeProcess) Name() string             { return "shared" }

func (p *wholeProcess) TempDir() string {
	dir, err := os.MkdirTemp("", "queen-shared-")
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (p *wholeProcess) Errorf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	p.failed = true
}

func (p *wholeProcess) Fatal(args ...any) {
	fmt.Fprintln(os.Stderr, args...)
	p.end()
	os.Exit(1)
}

func (p *wholeProcess) Fatalf(format string, args ...any) { p.Fatal(fmt.Sprintf(format, args...)) }

func (p *wholeProcess) end() {
	for _, cleanup := range slices.Backward(p.cleanups) {
		cleanup()
	}
	p.cleanups = nil
}
