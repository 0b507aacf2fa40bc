package api

import (
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/pop"
	"queenmq/internal/engine/push"
	"queenmq/internal/engine/push/dedup"
	"queenmq/internal/pg"
)

func engineDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	admissionBudget   = engineDesc("queen_admission_budget", "Most write transactions in flight.")
	admissionInFlight = engineDesc("queen_admission_inflight", "Write transactions in flight.", "lane")
	admissionWaiting  = engineDesc("queen_admission_waiting", "Requests that wait for a slot.", "lane")
	admissionTrains   = engineDesc("queen_admission_trains_per_s", "Groups of write transactions that one flush of the WAL released together, a second, over the last 10 seconds.")
	admissionAboard   = engineDesc("queen_admission_txn_per_train", "Write transactions in such a group, on average over the last 10 seconds; absent without any.")
	admissionCycle    = engineDesc("queen_admission_cycle_ms", "Median time from one such group to the next, of the newest ones; absent while there are less than three.")
	admissionWaits    = engineDesc("queen_admission_waits_total", "Requests that had to wait for a slot.", "lane")

	batchesFired   = engineDesc("queen_batches_fired_total", "Commits that carried out what requests had in common, for pop the claims.", "op")
	batchItems     = engineDesc("queen_batch_items_fired_total", "What those commits carried out: messages pushed or delivered, batches acknowledged.", "op")
	itemsPerBatch  = engineDesc("queen_fusion_items_per_batch", "Messages or, for ack, batches a commit, on average since the start.", "op")
	batchRoundTrip = engineDesc("queen_batch_rtt_milliseconds", "Time of a call of the database that pushes, claims or acknowledges, estimated from a histogram since the start.", "op", "quantile")

	dedupClaims    = engineDesc("queen_dedup_claims_total", "Segments pushed: vouched for as new (vouched), with an id that may be known (suspected), of a partition that is not followed (unknown).", "result")
	dedupReads     = engineDesc("queen_dedup_reads_total", "Partitions read from the database into the dedup cache.")
	dedupGivenUp   = engineDesc("queen_dedup_given_up_total", "Partitions that left the dedup cache for room (evicted), or did not fit or could not be read (suppressed).", "reason")
	dedupFollowed  = engineDesc("queen_dedup_partitions", "Partitions in the dedup cache.")
	dedupBytes     = engineDesc("queen_dedup_bytes", "Memory of the dedup cache.")
	popTargeted    = engineDesc("queen_pop_targeted_total", "Claims of named partitions.")
	popWildcard    = engineDesc("queen_pop_wildcard_total", "Claims that searched a queue.")
	popUndecodable = engineDesc("queen_pop_undecodable_segments_total", "Stored segments that could not be read, once per attempt.")
	ackRecognised  = engineDesc("queen_ack_recognised_total", "Completions under a lease: of a whole batch delivered here (hit), or resolved by transaction ids (miss).", "result")
	ackBatches     = engineDesc("queen_ack_delivered_batches", "Delivered batches remembered until they are acknowledged.")
	ackBytes       = engineDesc("queen_ack_delivered_batches_bytes", "Memory of the delivered batches remembered.")
	ackFailures    = engineDesc("queen_ack_flush_failures_total", "Common commits of acknowledgements that failed.")
	popFills       = engineDesc("queen_pop_fill_wait_total", "Pops that waited for a fuller batch (minPopWaitTime).")
	popFillTime    = engineDesc("queen_pop_fill_wait_microseconds_total", "Time that pops waited for a fuller batch, in microseconds.")
	popShortened   = engineDesc("queen_pop_shortened_total", "Pops of which only a part of the claim fitted into one answer (QUEEN_MAX_ANSWER_BYTES).")
	popAnswerBytes = engineDesc("queen_pop_answer_bytes", "Memory of the answers under way, at most QUEEN_MAX_INFLIGHT_ANSWER_BYTES.")
	popRoomWaits   = engineDesc("queen_pop_answer_waits_total", "Pops that waited for memory for their answer.")
	popSealed      = engineDesc("queen_pop_undecryptable_messages_total", "Messages that no key opens, once per attempt to deliver them.")
	popFiled       = engineDesc("queen_pop_dead_letters_total", "Messages filed as dead letters instead of being delivered: delivered too often, or not decryptable.")
	longPolls      = queueDesc("queen_parked_long_polls", "Long polls that wait for a queue")
)

// laneNames are the values of the lane label.
var laneNames = map[admission.Lane]string{
	admission.Push: "push", admission.Pop: "pop", admission.Ack: "ack", admission.Maintenance: "maint",
}

// An engineCollector reads the figures of the engine at the moment they are asked for.
type engineCollector struct {
	deps *Deps
	// tenants gives the series of queues a label with their tenant.
	tenants bool
}

// Describe names every family, also those that a broker without the part leaves out.
func (c engineCollector) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range [...]*prometheus.Desc{
		admissionBudget, admissionInFlight, admissionWaiting, admissionWaits, admissionTrains, admissionAboard, admissionCycle, batchesFired, batchItems, itemsPerBatch, batchRoundTrip,
		dedupClaims, dedupReads, dedupGivenUp, dedupFollowed, dedupBytes,
		popTargeted, popWildcard, popUndecodable, popSealed, popFiled, popShortened, popAnswerBytes, popRoomWaits, popFills, popFillTime, ackRecognised, ackBatches, ackBytes, ackFailures, longPolls.desc(c.tenants),
	} {
		descs <- desc
	}
}

// Collect sends the figures of the parts that are there.
func (c engineCollector) Collect(metrics chan<- prometheus.Metric) {
	out := figures{metrics}
	if c.deps.Admission != nil {
		out.admission(c.deps.Admission())
	}
	if c.deps.PushStats != nil {
		out.pushes(c.deps.PushStats())
	}
	if c.deps.DedupStats != nil {
		out.dedup(c.deps.DedupStats())
	}
	if c.deps.PopStats != nil {
		out.pops(c.deps.PopStats())
	}
	if c.deps.AckStats != nil {
		out.acks(c.deps.AckStats())
	}
	if c.deps.LongPolls != nil {
		c.collectPolls(metrics)
	}
}

// collectPolls counts the parked pops by queue, and by tenant where series say so.
func (c engineCollector) collectPolls(metrics chan<- prometheus.Metric) {
	polls := make(map[queueLabels]int)
	c.deps.LongPolls(func(tenant uuid.UUID, queue string, n int) {
		key := queueLabels{queue: queue}
		if c.tenants {
			key.tenant = tenant.String()
		}
		polls[key] += n
	})
	for key, waiting := range capPolls(polls) {
		metrics <- longPolls.gauge(c.tenants, float64(waiting), key)
	}
}

// figures sends what the parts of the engine say of themselves.
type figures struct{ metrics chan<- prometheus.Metric }

func (f figures) gauge(desc *prometheus.Desc, value float64, labels ...string) {
	f.metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}

func (f figures) counter(desc *prometheus.Desc, value float64, labels ...string) {
	f.metrics <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value, labels...)
}

func (f figures) roundTrips(op string, counts *pg.RoundTripCounts) {
	for label, share := range map[string]float64{"0.5": 0.5, "0.99": 0.99} {
		f.gauge(batchRoundTrip, float64(counts.Quantile(share))/float64(time.Millisecond), op, label)
	}
}

// batches says how many batches an operation sent and what they carried together.
func (f figures) batches(op string, fired, items float64) {
	f.counter(batchesFired, fired, op)
	f.counter(batchItems, items, op)
	f.gauge(itemsPerBatch, items/math.Max(fired, 1), op)
}

func (f figures) admission(stats admission.Stats) {
	f.gauge(admissionBudget, float64(stats.Budget))
	for lane, name := range laneNames {
		figures := stats.Lanes[lane]
		f.gauge(admissionInFlight, float64(figures.InFlight), name)
		f.gauge(admissionWaiting, float64(figures.Waiting), name)
		f.counter(admissionWaits, float64(figures.Saturated), name)
	}
	f.gauge(admissionTrains, stats.Trains.PerSecond)
	if stats.Trains.Aboard > 0 {
		f.gauge(admissionAboard, stats.Trains.Aboard)
	}
	if stats.Trains.Cycle > 0 {
		f.gauge(admissionCycle, float64(stats.Trains.Cycle)/float64(time.Millisecond))
	}
}

func (f figures) pushes(stats push.Stats) {
	f.batches("push", float64(stats.Commits), float64(stats.Frames))
	f.roundTrips("push", &stats.RoundTrips)
}

func (f figures) dedup(stats dedup.Stats) {
	f.counter(dedupClaims, float64(stats.Vouched), "vouched")
	f.counter(dedupClaims, float64(stats.Suspected), "suspected")
	f.counter(dedupClaims, float64(stats.Unknown), "unknown")
	f.counter(dedupReads, float64(stats.Reads))
	f.counter(dedupGivenUp, float64(stats.Evictions), "evicted")
	f.counter(dedupGivenUp, float64(stats.Suppressions), "suppressed")
	f.gauge(dedupFollowed, float64(stats.Partitions))
	f.gauge(dedupBytes, float64(stats.Bytes))
}

func (f figures) pops(stats pop.Stats) {
	f.roundTrips("pop", &stats.RoundTrips)
	f.counter(popTargeted, float64(stats.Targeted))
	f.counter(popWildcard, float64(stats.Wildcard))
	f.batches("pop", float64(stats.Targeted+stats.Wildcard), float64(stats.Messages))
	f.counter(popFills, float64(stats.Fills))
	f.counter(popFillTime, float64(stats.FillTime.Microseconds()))
	f.counter(popUndecodable, float64(stats.Undecodable))
	f.counter(popSealed, float64(stats.Undecryptable))
	f.counter(popFiled, float64(stats.DeadLetters))
	f.counter(popShortened, float64(stats.Shortened))
	f.gauge(popAnswerBytes, float64(stats.InflightBytes))
	f.counter(popRoomWaits, float64(stats.RoomWaits))
}

func (f figures) acks(stats ack.Stats) {
	f.roundTrips("ack", &stats.RoundTrips)
	f.batches("ack", float64(stats.Flushes), float64(stats.Rows))
	f.counter(ackRecognised, float64(stats.Hits), "hit")
	f.counter(ackRecognised, float64(stats.Misses), "miss")
	f.counter(ackFailures, float64(stats.Failures))
	f.gauge(ackBatches, float64(stats.Batches))
	f.gauge(ackBytes, float64(stats.RegistryBytes))
}

// capPolls sums up all but the queues with the most polls.
func capPolls(polls map[queueLabels]int) map[queueLabels]int {
	if len(polls) <= maxQueueSeries {
		return polls
	}
	type waiting struct {
		queueLabels
		n int
	}
	all := make([]waiting, 0, len(polls))
	for queue, n := range polls {
		all = append(all, waiting{queue, n})
	}
	all = foldBeyond(all, func(w *waiting) *string { return &w.queue }, func(w *waiting) float64 { return float64(w.n) },
		func(sum, w *waiting) { sum.n += w.n })
	capped := make(map[queueLabels]int, len(all))
	for _, w := range all {
		capped[w.queueLabels] = w.n
	}
	return capped
}
