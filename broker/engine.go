package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/uuid"

	"queenmq/internal/api"
	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/browse"
	"queenmq/internal/engine/meter"
	"queenmq/internal/engine/pop"
	"queenmq/internal/engine/push"
	"queenmq/internal/engine/push/dedup"
	"queenmq/internal/engine/ready"
	"queenmq/internal/engine/replay"
	"queenmq/internal/engine/segment"
	"queenmq/internal/engine/stream"
	"queenmq/internal/engine/tail"
	"queenmq/internal/engine/transaction"
	"queenmq/internal/pg"
	"queenmq/internal/telemetry"
	"queenmq/internal/upkeep"
)

// engine is the parts of a broker that share a pool. Those with loops of their own are run by the broker.
type engine struct {
	gates   *ready.Gates
	pusher  *push.Pusher
	dedup   *dedup.Cache // nil when it is off
	popper  *pop.Server
	acker   *ack.Server
	flags   *upkeep.Flags
	tail    *tail.Hub
	loops   *loops
	handler http.Handler

	requests   requests // in flight
	neighbours *neighbours
	buffer     *buffer // nil when there is none
}

// newEngine constructs the parts in the order in which they need each other.
func (b *Broker) newEngine(db *pg.DB, trusted trust) (*engine, error) {
	packer, err := segment.NewPacker(b.cfg.Push.ZstdLevel)
	if err != nil {
		return nil, fmt.Errorf("QUEEN_V2_ZSTD_LEVEL: %w", err)
	}

	sealer, opener, stateRing := ciphers(trusted.ring)
	var tokens api.Verifier
	if trusted.verifier != nil {
		tokens = trusted.verifier
	}

	slots := admission.New(admission.Config{
		PoolSize: b.cfg.Database.PoolSize, Reserve: b.cfg.Admission.PoolReserve, Max: b.cfg.Admission.Max, Cores: b.databaseCores(),
		MaintenanceCap: b.cfg.Retention.Parallelism + 1,
	})
	gates := b.newGates()
	var cache *dedup.Cache
	var verifier push.Verifier
	if b.cfg.Push.DedupCache {
		cache = dedup.New(dedup.Config{MaxBytes: b.cfg.Push.DedupMB << 20, Logger: b.log}, db)
		verifier = cache
	}
	var popper *pop.Server
	pushing := b.pushConfig(packer, verifier, sealer)
	if b.cfg.Pop.Handover {
		pushing.Handover = func(segments []pg.Segment) ([]pg.Handover, func(context.Context, []pg.PushVerdict)) {
			return popper.Handover(segments)
		}
	}
	pusher := push.New(pushing, db, slots, func(tenant uuid.UUID, queue, partition string, _ uuid.UUID, n int) {
		gates.Stored(tenant, queue, partition, n)
	})
	counted := meter.New()
	flags := upkeep.NewFlags(db, min(flagsInterval, b.cfg.Caches.RefreshInterval), gates.WakeAll, b.log)
	keys := upkeep.NewKeys(db, trusted.ringIDs(), b.log)
	acking := b.ackConfig()
	acking.Sealer, acking.Demanded = sealer, pusher.Encrypts
	acker := ack.New(acking, db, gates, slots)
	popping := b.popConfig(opener)
	popping.Paused, popping.KeyMissing = flags.PopsPaused, keyMissing(keys)
	popping.DeadLetter, popping.Delivered = filePoison(acker, counted), func(d pop.Delivery) { acker.Delivered(ack.Delivery(d)) }
	popper = pop.New(popping, db, gates, slots)
	encryption := push.Encryption{Demanded: pusher.Encrypts, Forget: pusher.ForgetQueue, Sealer: sealer}
	transactor := transaction.New(transaction.Config{Packer: packer, Encryption: encryption}, db, acker, gates, slots)

	replays := replay.Keys{Sealer: sealer, Opener: opener, Demanded: pusher.Encrypts}
	redrives := replay.NewRunner(b.cfg.Server.ServerID+" "+segment.NewID().String(), packer, db, gates, slots, flags.PushesPaused, replays)
	loops := b.newLoops(db, slots, gates, counted, redrives, popper, keys)

	neighbours := b.newNeighbours(db, pusher, popper, gates, flags, loops.reconcile)
	var meshFigures func() api.MeshFigures
	if neighbours.mesh != nil {
		meshFigures = neighbours.figures
	}

	kept := b.newBuffer(pusher, flags, sealer)
	var front interface {
		Push(ctx context.Context, r push.Request) ([]push.Verdict, error)
	} = pusher
	var bufferFigures func() api.BufferFigures
	if kept != nil {
		front, bufferFigures = kept.pusher, kept.figures
	}

	reader := browse.New(db, opener)
	watching := tail.New(tail.Config{Log: b.log}, reader)

	handler := api.New(b.apiConfig(), api.Deps{
		Pusher: counted.Pusher(front), Popper: counted.Popper(popper), Acker: counted.Acker(acker), Transactor: counted.Transactor(transactor),
		Store: db, Verifier: tokens,
		Browser: reader, Tail: watching, Settings: b.settings, Replayer: replay.New(packer, db, gates, slots, replays),
		Traces:   browse.Traces{DB: db, Demanded: pusher.Encrypts, Sealer: sealer, Opener: opener},
		Streamer: stream.New(stream.Config{Packer: packer, Encryption: encryption, Ring: stateRing}, db, acker, gates, slots), Flags: flags,
		Ready:        append([]api.Check{{Name: "schema", Run: b.checkStarted}}, loops.checks()...),
		Starting:     func() bool { return !b.started.Load() },
		Stopping:     b.stopping.Load,
		QueueChanged: neighbours.queueChanged,
		GroupChanged: neighbours.groupChanged,
		FlagsChanged: neighbours.flagsChanged,
		Brokers: func(ctx context.Context, filter pg.BrokerFilter) (json.RawMessage, error) {
			return db.Brokers(ctx, b.instance, filter)
		},
		Mesh:         meshFigures,
		Buffer:       bufferFigures,
		Wake:         gates.Wake,
		RefreshStats: loops.stats.Refresh,
		Admission:    slots.Stats,
		DedupStats:   dedupStats(cache),
		PushStats:    pusher.Stats,
		PopStats:     popper.Stats,
		AckStats:     acker.Stats,
		LongPolls:    gates.EachWaiting,
		Cluster: func(ctx context.Context) (pg.ClusterMetrics, error) {
			return db.ClusterMetrics(ctx, b.cfg.Tenancy.LabelsMetrics())
		},
		Upkeep:   func() api.UpkeepFigures { return loops.figures(flags) },
		Page:     consolePage,
		Registry: telemetry.NewRegistry(),
	})
	return &engine{gates: gates, pusher: pusher, dedup: cache, popper: popper, acker: acker, flags: flags, tail: watching, loops: loops, handler: handler, neighbours: neighbours, buffer: kept}, nil
}

func (b *Broker) checkStarted(context.Context) error {
	if !b.started.Load() {
		return errors.New("the schema is not applied yet")
	}
	return nil
}

// close ends what still reads in the background once nothing else runs any more, and gives up what was never run.
func (e *engine) close() {
	if e.buffer != nil {
		e.buffer.spool.Close()
	}
	if e.dedup != nil {
		e.dedup.Close()
	}
}

// dedupStats is nil when the cache is off.
func dedupStats(cache *dedup.Cache) func() dedup.Stats {
	if cache == nil {
		return nil
	}
	return cache.Stats
}
