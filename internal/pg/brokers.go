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

// A BrokerFilter chooses brokers. The zero filter chooses all.
type BrokerFilter struct {
	// Contains stands somewhere in the id, the address or the version, in any case.
	Contains string
	// Alive has only those that live, or with false only those that are gone; nil has both.
	Alive *bool
	// Limit is the most rows of a page; 0 is 100. Cursor is that of the page before, "" for the first one.
	Limit  int
	Cursor string
}

// Brokers returns a page of the brokers of the database as {"brokers":[{id, instance, version, address, startedAt, lastSeen, alive, self}],
// "total", "nextCursor"}, oldest first. self marks the instance that asks. Errors: ErrInvalidCursor.
func (db *DB) Brokers(ctx context.Context, instance uuid.UUID, b BrokerFilter) (json.RawMessage, error) {
	after, err := decodePosition(b.Cursor, deadLetterPosition)
	if err != nil {
		return nil, err
	}
	f := filter{"contains": b.Contains, "alive": b.Alive, "after": after}
	return db.paged(ctx, "list brokers", "brokers_page_v1", instance, f.limited(b.Limit, 0))
}
