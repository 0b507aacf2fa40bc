package api

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"queenmq/internal/pg"
)

const (
	// clusterTimeout bounds the read of the database's part, clusterTTL is how long one read serves: scrapers come in
	// bunches, and one that finds the database away is answered without it at once.
	clusterTimeout = 2 * time.Second
	clusterTTL     = 5 * time.Second
	// maxQueueSeries is the most queues with series of their own in a family. The busiest are shown, the rest is summed up as
	// the queue "other".
	maxQueueSeries = 1000
	otherQueues    = "other"
)

var (
	clusterCounters = []struct {
		desc  *prometheus.Desc
		value func(*pg.ClusterMetrics) int64
	}{
		{clusterDesc("queen_cluster_push_requests_total", "Push requests of all brokers, ever."), func(m *pg.ClusterMetrics) int64 { return m.Totals.PushRequests }},
		{clusterDesc("queen_cluster_pop_requests_total", "Pop requests of all brokers, ever."), func(m *pg.ClusterMetrics) int64 { return m.Totals.PopRequests }},
		{clusterDesc("queen_cluster_ack_requests_total", "Ack requests of all brokers, ever."), func(m *pg.ClusterMetrics) int64 { return m.Totals.AckRequests }},
		{clusterDesc("queen_cluster_transactions_total", "Transactions of all brokers, ever."), func(m *pg.ClusterMetrics) int64 { return m.Totals.Transactions }},
		{clusterDesc("queen_cluster_push_messages_total", "Messages stored by all brokers, ever."), func(m *pg.ClusterMetrics) int64 { return m.Totals.PushMessages }},
		{clusterDesc("queen_cluster_pop_messages_total", "Messages delivered by all brokers, ever."), func(m *pg.ClusterMetrics) int64 { return m.Totals.PopMessages }},
		{clusterDesc("queen_cluster_ack_messages_total", "Acknowledgments taken by all brokers, ever."), func(m *pg.ClusterMetrics) int64 { return m.Totals.AckMessages }},
		{clusterDesc("queen_cluster_db_errors_total", "Database calls of all brokers that failed, ever."), func(m *pg.ClusterMetrics) int64 { return m.Totals.DBErrors }},
		{clusterDesc("queen_cluster_dlq_total", "Dead letters filed by all brokers, ever."), func(m *pg.ClusterMetrics) int64 { return m.Totals.DeadLetters }},
	}
	clusterAcks = engineDesc("queen_cluster_ack_total", "Acknowledgments of all brokers, ever, by what the consumer reported.", "scope", "result")

	queueGauges = []struct {
		family queueFamily
		value  func(*pg.QueueMinute) float64
	}{
		{queueDesc("queen_queue_pop_messages_per_minute", "Messages delivered in the newest minute of a queue"), func(q *pg.QueueMinute) float64 { return q.PopMessages }},
		{queueDesc("queen_queue_push_requests_per_minute", "Push requests in the newest minute of a queue"), func(q *pg.QueueMinute) float64 { return q.PushRequests }},
		{queueDesc("queen_queue_push_messages_per_minute", "Messages stored in the newest minute of a queue"), func(q *pg.QueueMinute) float64 { return q.PushMessages }},
		{queueDesc("queen_queue_pop_empty_per_minute", "Pops that found nothing in the newest minute of a queue"), func(q *pg.QueueMinute) float64 { return q.PopEmpty }},
		{queueDesc("queen_queue_transactions_per_minute", "Transactions that pushed to a queue in its newest minute"), func(q *pg.QueueMinute) float64 { return q.Transactions }},
		{queueDesc("queen_queue_parked_consumers", "Long polls parked on a queue at all brokers, averaged over its newest minute"), func(q *pg.QueueMinute) float64 { return q.Parked }},
		{queueDesc("queen_queue_metrics_age_seconds", "Age of the newest minute of a queue"), func(q *pg.QueueMinute) float64 { return q.Age }},
	}
	queueAcks   = queueDesc("queen_queue_ack_per_minute", "Acknowledgments in the newest minute of a queue, by what the consumer reported", "result")
	queueLag    = newQueueFamily("queen_queue_pop_lag_milliseconds", "Age of the messages that were delivered in the newest minute of a queue; absent when there were none.", "stat")
	dlqDepth    = engineDesc("queen_dlq_depth", "Dead letters that are kept, as of the last statistics.", "scope")
	dlqPerQueue = queueDesc("queen_dlq_depth_by_queue", "Dead letters that are kept of a queue, as of the last statistics")

	depthTotal   = queueDesc("queen_queue_depth_total", "Messages that a queue holds, as of the last statistics; absent for an empty queue", "storage")
	depthPending = queueDesc("queen_queue_depth_pending", "Messages of a queue that its slowest group has not consumed, as of the last statistics; absent for an empty queue", "storage")
)

func clusterDesc(name, help string) *prometheus.Desc { return engineDesc(name, help, "scope") }

func queueDesc(name, help string, labels ...string) queueFamily {
	return newQueueFamily(name, help+"; the queues beyond 1000 are summed up as other.", labels...)
}

// A queueFamily is one with a series for each queue. Where tenants are told apart, a label says whose queue it is; "other" is
// everybody's and its tenant is empty.
type queueFamily struct{ plain, byTenant *prometheus.Desc }

func newQueueFamily(name, help string, labels ...string) queueFamily {
	return queueFamily{
		plain:    engineDesc(name, help, append([]string{"queue"}, labels...)...),
		byTenant: engineDesc(name, help, append([]string{"tenant", "queue"}, labels...)...),
	}
}

// queueLabels say which queue a series is about. The tenant is empty where queues of one name are summed.
type queueLabels struct{ tenant, queue string }

func (f queueFamily) desc(tenants bool) *prometheus.Desc {
	if tenants {
		return f.byTenant
	}
	return f.plain
}

func (f queueFamily) gauge(tenants bool, value float64, of queueLabels, labels ...string) prometheus.Metric {
	values := append([]string{of.queue}, labels...)
	if tenants {
		values = append([]string{of.tenant}, values...)
	}
	return prometheus.MustNewConstMetric(f.desc(tenants), prometheus.GaugeValue, value, values...)
}

// A clusterCollector reads what all brokers reported to the database. Without a database its families are absent.
type clusterCollector struct {
	read func(context.Context) (pg.ClusterMetrics, error)
	// tenants gives the series of queues a label with their tenant.
	tenants bool

	mu      sync.Mutex
	fresh   time.Time
	metrics *pg.ClusterMetrics
}

// Describe names every family.
func (c *clusterCollector) Describe(descs chan<- *prometheus.Desc) {
	for _, family := range clusterCounters {
		descs <- family.desc
	}
	for _, family := range queueGauges {
		descs <- family.family.desc(c.tenants)
	}
	for _, desc := range [...]*prometheus.Desc{clusterAcks, queueAcks.desc(c.tenants), queueLag.desc(c.tenants), dlqDepth, dlqPerQueue.desc(c.tenants), depthTotal.desc(c.tenants), depthPending.desc(c.tenants)} {
		descs <- desc
	}
}

// Collect sends the figures of the last few seconds, if they can be had.
func (c *clusterCollector) Collect(out chan<- prometheus.Metric) {
	m := c.current()
	if m == nil {
		return
	}
	const scope = "cluster"
	counter := func(desc *prometheus.Desc, value int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), labels...)
	}
	gauge := func(family queueFamily, value float64, of queueLabels, labels ...string) {
		out <- family.gauge(c.tenants, value, of, labels...)
	}
	for _, family := range clusterCounters {
		counter(family.desc, family.value(m), scope)
	}
	counter(clusterAcks, m.Totals.AckSuccess, scope, "success")
	counter(clusterAcks, m.Totals.AckFailed, scope, "failed")
	for i := range m.Queues {
		queue := &m.Queues[i]
		of := queueLabels{queue.Tenant, queue.Queue}
		for _, family := range queueGauges {
			gauge(family.family, family.value(queue), of)
		}
		gauge(queueAcks, queue.AckSuccess, of, "success")
		gauge(queueAcks, queue.AckFailed, of, "failed")
		if queue.AvgLag != nil && queue.MaxLag != nil {
			gauge(queueLag, max(*queue.AvgLag, 0), of, "avg")
			gauge(queueLag, max(*queue.MaxLag, 0), of, "max")
		}
	}
	out <- prometheus.MustNewConstMetric(dlqDepth, prometheus.GaugeValue, float64(m.DeadLetters.Total), scope)
	for _, queue := range m.DeadLetters.PerQueue {
		gauge(dlqPerQueue, queue.Count, queueLabels{queue.Tenant, queue.Queue})
	}
	for _, queue := range m.Depths {
		of := queueLabels{queue.Tenant, queue.Queue}
		gauge(depthTotal, queue.Total, of, "segments")
		gauge(depthPending, queue.Pending, of, "segments")
	}
}

// current reads the figures, or returns those of a moment ago. Nil means that they cannot be had.
func (c *clusterCollector) current() *pg.ClusterMetrics {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.fresh.IsZero() && time.Since(c.fresh) < clusterTTL {
		return c.metrics
	}
	ctx, cancel := context.WithTimeout(context.Background(), clusterTimeout)
	defer cancel()
	metrics, err := c.read(ctx)
	c.fresh, c.metrics = time.Now(), nil
	if err == nil {
		metrics.Queues = capQueues(metrics.Queues)
		metrics.DeadLetters.PerQueue = capDeadLetters(metrics.DeadLetters.PerQueue)
		metrics.Depths = capDepths(metrics.Depths)
		c.metrics = &metrics
	}
	return c.metrics
}

// capQueues folds all but the busiest queues into one. A queue that happens to be named like it is folded too.
func capQueues(queues []pg.QueueMinute) []pg.QueueMinute {
	busy := func(q *pg.QueueMinute) float64 { return q.PushMessages + q.PopMessages + q.AckSuccess + q.AckFailed }
	return foldBeyond(queues, func(q *pg.QueueMinute) *string { return &q.Queue }, busy, func(sum, q *pg.QueueMinute) {
		if q.AvgLag != nil {
			if sum.AvgLag == nil {
				sum.AvgLag, sum.MaxLag = new(float64), new(float64)
			}
			// Weighted by what was delivered, which is what was sampled.
			*sum.AvgLag = (*sum.AvgLag*sum.PopMessages + *q.AvgLag*q.PopMessages) / max(sum.PopMessages+q.PopMessages, 1)
		}
		if q.MaxLag != nil && sum.MaxLag != nil {
			*sum.MaxLag = max(*sum.MaxLag, *q.MaxLag)
		}
		sum.PopMessages += q.PopMessages
		sum.PushRequests += q.PushRequests
		sum.PushMessages += q.PushMessages
		sum.PopEmpty += q.PopEmpty
		sum.AckSuccess += q.AckSuccess
		sum.AckFailed += q.AckFailed
		sum.Transactions += q.Transactions
		sum.Parked += q.Parked
		sum.Age = max(sum.Age, q.Age)
	})
}

func capDeadLetters(queues []pg.QueueDeadLetter) []pg.QueueDeadLetter {
	return foldBeyond(queues, func(q *pg.QueueDeadLetter) *string { return &q.Queue }, func(q *pg.QueueDeadLetter) float64 { return q.Count },
		func(sum, q *pg.QueueDeadLetter) { sum.Count += q.Count })
}

// capDepths keeps the queues with the longest backlogs.
func capDepths(queues []pg.QueueDepthFigures) []pg.QueueDepthFigures {
	return foldBeyond(queues, func(q *pg.QueueDepthFigures) *string { return &q.Queue }, func(q *pg.QueueDepthFigures) float64 { return q.Pending },
		func(sum, q *pg.QueueDepthFigures) { sum.Total, sum.Pending = sum.Total+q.Total, sum.Pending+q.Pending })
}

// foldBeyond keeps the maxQueueSeries heaviest elements and folds the rest into one more with the name of the others.
func foldBeyond[T any](all []T, name func(*T) *string, weight func(*T) float64, fold func(sum, one *T)) []T {
	if len(all) <= maxQueueSeries {
		return all
	}
	slices.SortStableFunc(all, func(a, b T) int { return cmp.Compare(weight(&b), weight(&a)) })
	var rest T
	*name(&rest) = otherQueues
	kept := all[:0:0]
	for i := range all {
		if i < maxQueueSeries && *name(&all[i]) != otherQueues {
			kept = append(kept, all[i])
		} else {
			fold(&rest, &all[i])
		}
	}
	return append(kept, rest)
}
