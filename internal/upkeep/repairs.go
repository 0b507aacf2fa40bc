package upkeep

import (
	"context"
	"log/slog"
	"time"
)

// repairsInterval is how soon a seek or a deleted group reaches the consumers of the other brokers.
const repairsInterval = time.Second

// Repairs is the loop that follows the markers which seeks, released leases and deleted groups leave in the database: what a broker
// remembers of such a group is wrong from then on.
type Repairs struct{ *Loop }

// NewRepairs makes the loop. follow reads the markers of the last minutes and drops what they name.
func NewRepairs(follow func(context.Context) error, log *slog.Logger) *Repairs {
	return &Repairs{newLoop("repairs", repairsInterval, repairsInterval, log, follow)}
}
