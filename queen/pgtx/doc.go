// Package pgtx pushes and acknowledges messages inside a PostgreSQL transaction of the caller's own, beside the caller's own rows.
//
// When the effects of processing a message are rows in the same database, this makes processing exactly once: the rows, the messages
// that follow from them and the cursor of the consumer group become visible in one commit, or none of them does. There is no
// moment at which one is there without the others, whatever process dies when.
//
//	queue, err := pgtx.New(ctx, pool)
//	// …
//	batch, err := client.Pop(ctx, "transfers", queen.PopOptions{Group: "ledger", Wait: 30 * time.Second}) // through a broker
//	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		for _, m := range batch.Messages {
//			// … UPDATE accounts SET … with tx
//			if _, err := queue.PushTx(ctx, tx, queen.Item{Queue: "receipts", Partition: m.Partition, Payload: receipt}); err != nil {
//				return err
//			}
//		}
//		return queue.AckTx(ctx, tx, batch.Completed()...)
//	})
//
// Partitions stay ordered and groups independent: what this package stores and reads are the queues of the brokers beside it, which
// see such pushes as soon as they are committed. It needs the schema of Queen in the caller's database, and no broker.
//
// # Rules
//
//   - READ COMMITTED is enough. A stricter level works too, except for pushes into queues with a maxSize.
//   - After an error, roll back. Most errors have ended the transaction already.
//   - Push, then acknowledge, then commit. A push after an acknowledgment is refused: it could deadlock with brokers. Transactions that
//     push to the same partitions in different orders can deadlock with each other; PostgreSQL then ends one of them with
//     40P01, to be repeated.
//   - A push locks its partitions until the transaction ends, and everybody else who pushes to them waits, with brokers also whatever
//     they commit together with it. Push late and commit soon.
//   - The first push to a queue or partition creates it, and until the transaction ends everybody else who uses the new name waits.
//     Configure queues beforehand.
//   - A transaction whose commit was answered by an error may have been committed. The acknowledgment settles it: it is
//     [queen.ErrLeaseLost] when the first attempt was, because no message is completed twice.
//
// # Rights
//
// The functions behind this package run with the rights of the schema's owner and are granted to nobody. A role needs
//
//	GRANT USAGE ON SCHEMA queen TO app;
//	GRANT EXECUTE ON FUNCTION queen.log_caller_push_v1, queen.log_caller_ack_v1, queen.log_caller_pop_v1, queen.log_caller_extend_v1 TO app;
//
// of them those that it calls, and can then push to, or read from, every queue of every tenant; tables of Queen stay out of its reach.
package pgtx
