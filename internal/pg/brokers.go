package pg

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// A Broker is one run of a broker, as it describes itself in the database.
type Broker struct {
	// Instance is of this run; ID is the operator's name for the broker.
	Instance    uuid.UUID
	ID, Version string
	// Address is the host:port of its HTTP listener.
	Address string
	// Uptime is since its start, by its own monotonic clock; times in the table are the database's.
	Uptime time.Duration
}

// BrokerSeen notes that the broker lives and returns how many others were seen in the last 15 s.
func (db *DB) BrokerSeen(ctx context.Context, b Broker) (others int, err error) {
	err = db.run(ctx, "note that this broker lives", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT queen.broker_seen_v1($1::uuid, $2::text, $3::text, $4::text, $5::bigint)`,
			b.Instance, b.ID, b.Version, b.Address, b.Uptime.Milliseconds()).Scan(&others)
	})
	return others, err
}

// BrokerLeft forgets a broker that stops.
func (db *DB) BrokerLeft(ctx context.Context, instance uuid.UUID) error {
	return db.run(ctx, "forget this broker", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SELECT queen.broker_left_v1($1::uuid)`, instance)
		return err
	})
}

// Brokers lists the brokers of the database as {"brokers":[{id, instance, version, address, startedAt, lastSeen, alive, self}]}, oldest
// first. self marks the instance that asks.
func (db *DB) Brokers(ctx context.Context, instance uuid.UUID) (list json.RawMessage, err error) {
	err = db.run(ctx, "list brokers", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT queen.list_brokers_v1($1::uuid)::text`, instance).Scan(&list)
	})
	return list, err
}
