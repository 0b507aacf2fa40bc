package mesh

import (
	"context"

	"queenmq/internal/pg"
)

// database is the transport over sessions of PostgreSQL.
type database struct {
	db *pg.DB
	*pg.Notifier
}

// OverDatabase returns the channel of the brokers of one database.
func OverDatabase(db *pg.DB) Transport { return database{db, db.NewNotifier(Channel)} }

func (d database) Listen(ctx context.Context) (Session, error) {
	l, err := d.db.Listen(ctx, Channel)
	if err != nil {
		return nil, err
	}
	return l, nil
}
