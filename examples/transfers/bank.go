package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"queenmq/queen"
	"queenmq/queen/pgtx"
)

// The queues of the bank. Transfers of one account stay in order, because they are one partition.
const (
	transfersQueue = "bank.transfers"
	receiptsQueue  = "bank.receipts"
	ledgerGroup    = "ledger"
)

// A transfer is the payload of a message.
type transfer struct {
	ID       int   `json:"id"`
	From, To int   `json:",omitzero"`
	Cents    int64 `json:"cents"`
}

// A bank keeps its accounts in the database that the messages lie in.
type bank struct {
	db    *pgxpool.Pool
	queue *pgtx.Client
	lease time.Duration
	// step is called between any two things that the worker does. The tests make it fatal.
	step func(ctx context.Context, name string)
}

func openBank(ctx context.Context, db *pgxpool.Pool) (*bank, error) {
	queue, err := pgtx.New(ctx, db)
	if err != nil {
		return nil, err
	}
	return &bank{db: db, queue: queue, lease: 30 * time.Second, step: func(context.Context, string) {}}, nil
}

// create makes the tables and n accounts with the same balance.
func (b *bank) create(ctx context.Context, n int, cents int64) error {
	return pgx.BeginFunc(ctx, b.db, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			CREATE TABLE IF NOT EXISTS accounts (id INT PRIMARY KEY, cents BIGINT NOT NULL);
			-- Without a unique key on purpose: it is not what keeps a transfer from being booked twice.
			CREATE TABLE IF NOT EXISTS ledger (transfer INT NOT NULL, account INT NOT NULL, cents BIGINT NOT NULL);
			TRUNCATE accounts, ledger`)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO accounts SELECT i, $2 FROM generate_series(1, $1::int) AS i`, n, cents)
		return err
	})
}

// order asks for transfers. They are booked by whoever runs work.
func (b *bank) order(ctx context.Context, transfers ...transfer) error {
	return pgx.BeginFunc(ctx, b.db, func(tx pgx.Tx) error {
		items := make([]queen.Item, len(transfers))
		for i, t := range transfers {
			item, err := queen.NewItem(transfersQueue, fmt.Sprint("account-", t.From), t)
			if err != nil {
				return err
			}
			item.TransactionID = fmt.Sprint("transfer-", t.ID)
			items[i] = item
		}
		_, err := b.queue.PushTx(ctx, tx, items...)
		return err
	})
}

// work books what one pop delivers, up to batch transfers, and returns how many. It may die anywhere: balances, ledger, receipts and the
// cursor of the group are one commit.
func (b *bank) work(ctx context.Context, batch int) (int, error) {
	popped, err := b.queue.Pop(ctx, b.db, transfersQueue, queen.PopOptions{Group: ledgerGroup, Batch: batch, Lease: b.lease})
	if err != nil || len(popped.Messages) == 0 {
		return 0, err
	}
	b.step(ctx, "popped")
	if err := pgx.BeginFunc(ctx, b.db, func(tx pgx.Tx) error { return b.bookAll(ctx, tx, popped) }); err != nil {
		return 0, err
	}
	b.step(ctx, "committed")
	return len(popped.Messages), nil
}

// bookAll does all that belongs to one batch.
func (b *bank) bookAll(ctx context.Context, tx pgx.Tx, batch *queen.Batch) (err error) {
	b.step(ctx, "begun")
	transfers := make([]transfer, len(batch.Messages))
	var touched []int
	for i := range batch.Messages {
		if transfers[i], err = queen.Decode[transfer](batch.Messages[i].Payload); err != nil {
			return err
		}
		touched = append(touched, transfers[i].From, transfers[i].To)
	}
	// In the order of their ids, so that workers with the same accounts wait for each other and do not deadlock.
	if _, err := tx.Exec(ctx, `SELECT FROM accounts WHERE id = ANY ($1) ORDER BY id FOR UPDATE`, touched); err != nil {
		return err
	}
	receipts := make([]queen.Item, len(batch.Messages))
	for i := range batch.Messages {
		if receipts[i], err = b.book(ctx, tx, transfers[i], batch.Messages[i].Partition); err != nil {
			return err
		}
	}
	if _, err := b.queue.PushTx(ctx, tx, receipts...); err != nil {
		return err
	}
	b.step(ctx, "pushed")
	if err := b.queue.AckTx(ctx, tx, batch.Completed()...); err != nil {
		return err
	}
	b.step(ctx, "acknowledged")
	return nil
}

// book moves the money of one transfer and returns its receipt.
func (b *bank) book(ctx context.Context, tx pgx.Tx, t transfer, account string) (queen.Item, error) {
	if _, err := tx.Exec(ctx, `UPDATE accounts SET cents = cents - $2 WHERE id = $1`, t.From, t.Cents); err != nil {
		return queen.Item{}, err
	}
	b.step(ctx, "debited")
	if _, err := tx.Exec(ctx, `UPDATE accounts SET cents = cents + $2 WHERE id = $1`, t.To, t.Cents); err != nil {
		return queen.Item{}, err
	}
	b.step(ctx, "credited")
	if _, err := tx.Exec(ctx, `INSERT INTO ledger VALUES ($1, $2, -$4::bigint), ($1, $3, $4)`, t.ID, t.From, t.To, t.Cents); err != nil {
		return queen.Item{}, err
	}
	b.step(ctx, "recorded")
	return queen.NewItem(receiptsQueue, account, t)
}
