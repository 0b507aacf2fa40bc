package mesh

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/pg"
)

// A Register is the list of brokers in the database.
type Register interface {
	BrokerSeen(ctx context.Context, b pg.Broker) (others int, err error)
	BrokerLeft(ctx context.Context, instance uuid.UUID) error
}

// A Registration keeps this broker in the list of brokers. It works with and without hints.
type Registration struct {
	// Broker is this broker; its uptime is filled in.
	Broker pg.Broker
	// Address is known once the broker listens.
	Address func() string
	List    Register
	// Others is told how many other brokers are listed. Nil is nobody.
	Others func(n int)
	Log    *slog.Logger
}

// leaveTimeout bounds taking leave of a database that may be away.
const leaveTimeout = time.Second

// Run renews the entry until ctx ends, deletes it and returns nil. The entry of a broker that died stays for a day.
func (r *Registration) Run(ctx context.Context) error {
	begun := time.Now()
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
		defer cancel()
		_ = r.List.BrokerLeft(last, r.Broker.Instance) // it counts as dead after 15 s all the same
	}()
	var complain complaint
	for {
		self := r.Broker
		self.Uptime, self.Address = time.Since(begun), r.Address()
		others, err := r.List.BrokerSeen(ctx, self)
		switch {
		case err == nil && r.Others != nil:
			r.Others(others)
		case err != nil && ctx.Err() == nil && complain.due():
			r.Log.WarnContext(ctx, "the entry of this broker in the list of brokers could not be renewed", slog.Any("error", err))
		}
		if !sleep(ctx, beatInterval) {
			return nil
		}
	}
}
