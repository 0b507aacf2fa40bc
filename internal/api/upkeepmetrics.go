package api

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// UpkeepFigures are those of the loops that run beside requests.
type UpkeepFigures struct {
	// LoopLag is how late timers of the process fire on average.
	LoopLag time.Duration
	// Maintenance tells that pushes are switched to maintenance.
	Maintenance bool
	Loops       []LoopFigures
	Retention   RetentionFigures
}

// LoopFigures are those of one loop. LastSuccess is zero before the first one.
type LoopFigures struct {
	Name             string
	Passes, Failures int64
	LastSuccess      time.Time
}

// RetentionFigures are counters since the start of this broker, which counts while it is the leader, and the gauges Leading,
// Lag, CycleTime, Due and Blocked (by phase).
type RetentionFigures struct {
	Leading                                                     bool
	Segments, Messages, Unread, Hashes, Partitions, DeadLetters int64
	Repaired, Cycles, StepFailures                              int64
	Lag, CycleTime                                              time.Duration
	Due, Blocked                                                map[string]int64
}

var (
	loopLag         = engineDesc("queen_event_loop_lag_avg_milliseconds", "How late timers of this process fire, on average since the last flush of metrics.")
	maintenanceMode = engineDesc("queen_maintenance_mode_enabled", "1 while pushes are switched to maintenance.")
	loopPasses      = engineDesc("queen_loop_passes_total", "Passes of a background loop.", "loop")
	loopFailures    = engineDesc("queen_loop_failures_total", "Passes of a background loop that failed.", "loop")
	loopSuccessAge  = engineDesc("queen_loop_last_success_age_seconds", "Time since a background loop last succeeded; absent before the first time.", "loop")

	retentionLeader     = engineDesc("queen_retention_leader", "1 on the broker that applied retention last.")
	retentionLag        = engineDesc("queen_retention_lag_seconds", "How far the oldest partition that retention can empty is past its cutoff; seen by the leader, 0 elsewhere.")
	retentionCycle      = engineDesc("queen_retention_cycle_seconds", "Length of the last retention cycle of this broker.")
	retentionCycles     = engineDesc("queen_retention_cycles_total", "Retention cycles of this broker.")
	retentionFailures   = engineDesc("queen_retention_step_failures_total", "Retention steps that failed, other than for a lock.")
	retentionSegments   = engineDesc("queen_retention_deleted_segments_total", "Segments deleted by retention.")
	retentionMessages   = engineDesc("queen_retention_deleted_messages_total", "Messages deleted by retention.")
	retentionUnread     = engineDesc("queen_retention_deleted_unread_messages_total", "Messages deleted by retention before every group (or any) had read them, because retentionSeconds or maxWaitTimeSeconds said so.")
	retentionHashes     = engineDesc("queen_retention_deleted_hash_rows_total", "Hash rows deleted by retention.")
	retentionPartitions = engineDesc("queen_retention_deleted_partitions_total", "Partitions removed because they were empty and unused.")
	retentionLetters    = engineDesc("queen_retention_deleted_dead_letters_total", "Dead letters deleted because dlqRetentionSeconds said so.")
	retentionRepaired   = engineDesc("queen_retention_repaired_watermarks_total", "Partitions whose watermarks the safety walk corrected.")
	retentionDue        = engineDesc("queen_retention_due_partitions", "Partitions on the last work list.", "phase")
	retentionBlocked    = engineDesc("queen_retention_blocked_partitions", "Partitions that are due and wait for their slowest group.", "phase")
)

// An upkeepCollector reads the figures of the loops when they are asked for.
type upkeepCollector struct{ read func() UpkeepFigures }

// Describe names every family.
func (c upkeepCollector) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range [...]*prometheus.Desc{
		loopLag, maintenanceMode, loopPasses, loopFailures, loopSuccessAge, retentionLeader, retentionLag, retentionCycle, retentionCycles,
		retentionFailures, retentionSegments, retentionMessages, retentionUnread, retentionHashes, retentionPartitions, retentionLetters,
		retentionRepaired, retentionDue, retentionBlocked,
	} {
		descs <- desc
	}
}

// Collect sends the figures.
func (c upkeepCollector) Collect(out chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	counter := func(desc *prometheus.Desc, value int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), labels...)
	}
	figures := c.read()
	gauge(loopLag, float64(figures.LoopLag)/float64(time.Millisecond))
	gauge(maintenanceMode, oneIf(figures.Maintenance))
	for _, loop := range figures.Loops {
		counter(loopPasses, loop.Passes, loop.Name)
		counter(loopFailures, loop.Failures, loop.Name)
		if !loop.LastSuccess.IsZero() {
			gauge(loopSuccessAge, time.Since(loop.LastSuccess).Seconds(), loop.Name)
		}
	}
	r := figures.Retention
	gauge(retentionLeader, oneIf(r.Leading))
	gauge(retentionLag, r.Lag.Seconds())
	gauge(retentionCycle, r.CycleTime.Seconds())
	counter(retentionCycles, r.Cycles)
	counter(retentionFailures, r.StepFailures)
	counter(retentionSegments, r.Segments)
	counter(retentionMessages, r.Messages)
	counter(retentionUnread, r.Unread)
	counter(retentionHashes, r.Hashes)
	counter(retentionPartitions, r.Partitions)
	counter(retentionLetters, r.DeadLetters)
	counter(retentionRepaired, r.Repaired)
	for phase, n := range r.Due {
		gauge(retentionDue, float64(n), phase)
	}
	for phase, n := range r.Blocked {
		gauge(retentionBlocked, float64(n), phase)
	}
}

func oneIf(condition bool) float64 {
	if condition {
		return 1
	}
	return 0
}
