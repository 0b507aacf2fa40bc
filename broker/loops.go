package broker

import (
	"context"
	"time"

	"queenmq/internal/api"
	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/meter"
	"queenmq/internal/engine/pop"
	"queenmq/internal/engine/ready"
	"queenmq/internal/pg"
	"queenmq/internal/upkeep"
)

// flagsInterval is how often the maintenance switches are read: all brokers follow one within a second.
const flagsInterval = time.Second

// A loop runs beside requests from the moment the database is prepared until the last request is answered.
type loop interface {
	Run(ctx context.Context) error
	Check(ctx context.Context) error
	Status() upkeep.LoopStatus
}

type loops struct {
	retention *upkeep.Retention
	stats     *upkeep.Stats
	bytes     *upkeep.RetainedBytes
	collector *upkeep.Collector
	reconcile *upkeep.Reconcile
	repairs   *upkeep.Repairs
	tasks     *upkeep.Tasks
	keys      *upkeep.Keys
}

// newLoops makes the loops. redrives works on the tasks over dead letters; popper remembers what is to be read again now and then.
func (b *Broker) newLoops(db *pg.DB, slots *admission.Controller, gates *ready.Gates, counted *meter.Meter, redrives upkeep.TaskRunner, popper *pop.Server, keys *upkeep.Keys) *loops {
	retention, metrics := b.cfg.Retention, b.cfg.Metrics
	return &loops{
		retention: upkeep.NewRetention(upkeep.RetentionConfig{
			Interval: retention.Interval, BatchSize: retention.BatchSize, Parallelism: retention.Parallelism, DueCap: retention.DueCap,
			SafetyWalk: retention.SafetyWalk, CleanupDays: retention.CleanupDays, Cleanup: retention.CleanupEnabled, MetricsDays: retention.MetricsDays,
		}, db, db.NewLeader(pg.RetentionLock), slots, b.log),
		stats: upkeep.NewStats(db, metrics.StatsInterval, b.log),
		bytes: upkeep.NewRetainedBytes(db, metrics.RetainedBytesInterval, b.log),
		collector: upkeep.NewCollector(upkeep.CollectorConfig{
			Hostname: b.cfg.Server.ServerID, Port: b.cfg.Server.Port, Interval: metrics.FlushInterval,
		}, db, counted, gates.EachWaiting, b.log),
		reconcile: upkeep.NewReconcile(b.cfg.Caches.RefreshInterval, popper.ForgetAll, b.log),
		repairs:   upkeep.NewRepairs(popper.Repair, b.log),
		tasks:     upkeep.NewTasks(redrives, b.log),
		keys:      keys,
	}
}

func (l *loops) all() []loop {
	return []loop{l.retention, l.stats, l.bytes, l.collector, l.reconcile, l.repairs, l.tasks, l.keys}
}

// checks are the conditions that /readyz shows. A broker whose loops are late serves all the same.
func (l *loops) checks() []api.Check {
	var checks []api.Check
	for _, one := range l.all() {
		checks = append(checks, api.Check{Name: one.Status().Name, Run: one.Check, Advisory: true})
	}
	return checks
}

// figures puts the figures of the loops in the form of the metrics page.
func (l *loops) figures(flags *upkeep.Flags) api.UpkeepFigures {
	figures := api.UpkeepFigures{LoopLag: l.collector.LoopLag(), Maintenance: flags.PushesPaused()}
	for _, one := range l.all() {
		status := one.Status()
		figures.Loops = append(figures.Loops, api.LoopFigures{Name: status.Name, Passes: status.Passes, Failures: status.Failures, LastSuccess: status.LastSuccess})
	}
	stats := l.retention.Stats()
	figures.Retention = api.RetentionFigures{
		Leading: stats.Leading, Segments: stats.Segments, Messages: stats.Messages, Unread: stats.Unread, Hashes: stats.Hashes,
		Partitions: stats.Partitions, DeadLetters: stats.DeadLetters, Repaired: stats.Repaired, Cycles: stats.Cycles,
		StepFailures: stats.StepFailures, Lag: stats.Lag, CycleTime: stats.CycleTime, Due: map[string]int64{}, Blocked: map[string]int64{},
	}
	for phase, n := range stats.Due {
		figures.Retention.Due[string(phase)] = n
	}
	for phase, n := range stats.Blocked {
		figures.Retention.Blocked[string(phase)] = n
	}
	return figures
}
