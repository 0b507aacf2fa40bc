package localpg

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// childVariable makes the test binary a broker that does nothing but run a private server, so that tests can kill one.
const childVariable = "QUEEN_LOCALPG_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childVariable); dir != "" {
		os.Exit(child(dir))
	}
	goleak.VerifyTestMain(m)
}

// child starts a server on dir, says so on standard output, and runs until it is killed or its standard input ends.
func child(dir string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := Start(ctx, Options{DataDir: dir, MaxConnections: 10, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		fmt.Println("failed:", err)
		return 1
	}
	fmt.Println("ready", s.process.pid())
	_, _ = os.Stdin.Read(make([]byte, 1))
	if err := s.Stop(ctx); err != nil {
		fmt.Println("failed:", err)
		return 1
	}
	fmt.Println("stopped")
	return 0
}
