package pgtx_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"

	"queenmq/queen"
	"queenmq/queen/pgtx"
	"queenmq/test/stack"
)

// An account is debited, a receipt is pushed and the order is acknowledged in one commit: each happens exactly once, or none does.
func Example() {
	ctx := context.Background()
	pool := stack.Shared().DB // your own: pgxpool.New(ctx, databaseURL)
	client, err := queen.Connect(stack.Shared().URL)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	q, err := pgtx.New(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE example_accounts (name TEXT PRIMARY KEY, cents BIGINT); INSERT INTO example_accounts VALUES ('ada', 1000)`); err != nil {
		log.Fatal(err)
	}
	if _, err := client.Push(ctx, queen.Item{Queue: "example.charges", Partition: "ada", Payload: []byte(`{"cents":250}`)}); err != nil {
		log.Fatal(err)
	}

	batch, err := client.Pop(ctx, "example.charges", queen.PopOptions{Group: "ledger", Wait: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		for _, m := range batch.Messages {
			charge, err := queen.Decode[struct{ Cents int64 }](m.Payload)
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, `UPDATE example_accounts SET cents = cents - $2 WHERE name = $1`, m.Partition, charge.Cents); err != nil {
				return err
			}
			if _, err := q.PushTx(ctx, tx, queen.Item{Queue: "example.receipts", Partition: m.Partition, Payload: m.Payload}); err != nil {
				return err
			}
		}
		return q.AckTx(ctx, tx, batch.Completed()...)
	})
	if err != nil {
		log.Fatal(err) // nothing has happened: the messages come again when the lease ends
	}
	var cents int64
	if err := pool.QueryRow(ctx, `SELECT cents FROM example_accounts`).Scan(&cents); err != nil {
		log.Fatal(err)
	}
	fmt.Println(cents)
	// Output: 750
}

// In a consumer the transaction is the handler. OwnAck leaves acknowledging to it; the lease is renewed for as long as it takes.
func ExampleClient_AckTx() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	pool := stack.Shared().DB
	client, err := queen.Connect(stack.Shared().URL)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	q, err := pgtx.New(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := client.Push(ctx, queen.Item{Queue: "example.loop", Payload: []byte(`1`)}); err != nil {
		log.Fatal(err)
	}
	o := queen.ConsumeOptions{PopOptions: queen.PopOptions{Group: "ledger"}, OwnAck: true}
	err = client.ConsumeBatches(ctx, "example.loop", o, func(ctx context.Context, batch *queen.Batch) error {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			// … your own statements with tx …
			return q.AckTx(ctx, tx, batch.Completed()...)
		})
		fmt.Println(len(batch.Messages), err)
		stop()
		return err
	})
	fmt.Println(err)
	// Output:
	// 1 <nil>
	// <nil>
}
