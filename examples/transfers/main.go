// Transfers moves money between accounts that lie in the same PostgreSQL database as the messages that ask for it: each transfer is
// booked exactly once, whatever dies in the middle. It runs a broker of its own inside the process.
//
//	DATABASE_URL=postgres://… go run ./examples/transfers
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"

	"github.com/jackc/pgx/v5/pgxpool"

	"queenmq/broker"
	"queenmq/queen"
)

const (
	accounts  = 10
	transfers = 1000
	opening   = 100_00
	workers   = 4
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	databaseURL := os.Getenv("DATABASE_URL")
	if databaseURL == "" {
		return fmt.Errorf("set DATABASE_URL: the accounts and the messages share a database")
	}
	// A broker inside the program: it applies the schema, and serves whoever else wants to push or pop.
	cfg, err := broker.LoadConfig(setting, nil)
	if err != nil {
		return err
	}
	serving, stopServing := context.WithCancel(ctx)
	// It waits for a database that does not answer, and says so.
	server := broker.New(cfg, broker.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))))
	ended := make(chan error, 1)
	go func() { ended <- server.Run(serving) }()
	defer func() { stopServing(); <-ended }()
	select {
	case <-server.Ready():
	case err := <-ended:
		ended <- nil
		if err == nil {
			return context.Cause(ctx) // interrupted while it waited
		}
		return fmt.Errorf("start the broker: %w", err)
	}

	db, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer db.Close()
	b, err := openBank(ctx, db)
	if err != nil {
		return err
	}
	if err := b.create(ctx, accounts, opening); err != nil {
		return err
	}
	var orders []transfer
	for id := range transfers {
		orders = append(orders, transfer{ID: id, From: 1 + rand.IntN(accounts), To: 1 + rand.IntN(accounts), Cents: 1 + rand.Int64N(50_00)}) //nolint:gosec // no secret
	}
	if err := b.order(ctx, orders...); err != nil {
		return err
	}
	if err := b.workAll(ctx); err != nil {
		return err
	}
	var booked, total int64
	if err := db.QueryRow(ctx, `SELECT (SELECT count(DISTINCT transfer) FROM ledger), (SELECT sum(cents) FROM accounts)`).Scan(&booked, &total); err != nil {
		return err
	}
	fmt.Printf("%d transfers booked; the accounts hold %d.%02d, as they did before\n", booked, total/100, total%100)
	return nil
}

// setting reads the environment. What it leaves open is chosen so that a broker which runs here already keeps its port and its directory.
func setting(name string) (string, bool) {
	if text, set := os.LookupEnv(name); set {
		return text, true
	}
	text, set := map[string]string{"PORT": "0", "FILE_BUFFER_DIR": "off", "DB_POOL_SIZE": "16"}[name]
	return text, set
}

// workAll books with several workers until nothing is left.
func (b *bank) workAll(ctx context.Context) error {
	results := make(chan error, workers)
	for range workers {
		go func() {
			for {
				n, err := b.work(ctx, 50)
				if errors.Is(err, queen.ErrLeaseLost) {
					continue // nothing was booked, and another worker has the messages
				}
				if err != nil || n == 0 {
					results <- err
					return
				}
			}
		}()
	}
	var failed error
	for range workers {
		if err := <-results; err != nil {
			failed = err
		}
	}
	return failed
}
