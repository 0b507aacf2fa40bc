// Package stack starts whole brokers for tests that cross rooms: inside the test process where speed matters, in processes
// of their own where something is going to be killed.
package stack

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"queenmq/broker"
	"queenmq/internal/testdb"
	"queenmq/test/wire"
)

// A Stack is one broker inside the test process in front of a fresh database.
type Stack struct {
	Client *wire.Client
	DB     *pgxpool.Pool
	URL    string
}

// Start runs a broker on a fresh database until the test ends. Settings are environment variables of the broker.
func Start(t testing.TB, settings ...map[string]string) *Stack {
	t.Helper()
	database := testdb.New(t)
	url := Serve(t, database.ConnString(), settings...)
	s := &Stack{Client: wire.NewClient(url, 128), DB: database.Pool(t), URL: url}
	t.Cleanup(s.Client.Close)
	return s
}

// Serve runs a broker on databaseURL until the test ends and returns where it listens.
func Serve(t testing.TB, databaseURL string, settings ...map[string]string) string {
	t.Helper()
	env := map[string]string{"DATABASE_URL": databaseURL, "PORT": "0", "QUEEN_BIND_ADDR": "127.0.0.1", "DB_POOL_SIZE": "24", "FILE_BUFFER_DIR": t.TempDir()}
	for _, more := range settings {
		for name, value := range more {
			env[name] = value
		}
	}
	cfg, err := broker.LoadConfig(func(name string) (string, bool) { value, ok := env[name]; return value, ok }, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := broker.New(cfg)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the broker stopped with an error: %v", err)
		}
	})
	select {
	case <-b.Ready():
	case err := <-ended:
		ended <- err
		t.Fatalf("the broker did not start: %v", err)
	case <-time.After(readyTimeout):
		t.Fatal("the broker did not start in time")
	}
	return b.URL()
}
