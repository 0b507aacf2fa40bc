package queen

import (
	"context"
	"iter"
	"net/http"
	"time"
)

// QueueOptions are the settings of a queue. On the way in, nil leaves a setting as it is; new(value) makes the pointer. On the way
// out all of them are set. The broker's documentation has bounds and defaults; times are in seconds where the name does not say
// otherwise.
type QueueOptions struct {
	// Namespace and Task are the names by which pops can choose among queues. A queue that its first message created has the parts of
	// its name before and after the first dot. On the way out see [QueueDetail].
	Namespace *string `json:"-"`
	Task      *string `json:"-"`

	LeaseTime                 *int  `json:"leaseTime,omitempty"`
	RetryLimit                *int  `json:"retryLimit,omitempty"`
	RedeliveryDelayMs         *int  `json:"redeliveryDelayMs,omitempty"`
	MaxDeliveries             *int  `json:"maxDeliveries,omitempty"`
	DeadLetterQueue           *bool `json:"deadLetterQueue,omitempty"`
	DLQAfterMaxRetries        *bool `json:"dlqAfterMaxRetries,omitempty"`
	DLQRetentionSeconds       *int  `json:"dlqRetentionSeconds,omitempty"`
	MaxSize                   *int  `json:"maxSize,omitempty"`
	DedupWindowSeconds        *int  `json:"dedupWindowSeconds,omitempty"`
	DelayedProcessing         *int  `json:"delayedProcessing,omitempty"`
	WindowBuffer              *int  `json:"windowBuffer,omitempty"`
	MinPopWaitTime            *int  `json:"minPopWaitTime,omitempty"`
	MaxWaitTimeSeconds        *int  `json:"maxWaitTimeSeconds,omitempty"`
	RetentionEnabled          *bool `json:"retentionEnabled,omitempty"`
	RetentionSeconds          *int  `json:"retentionSeconds,omitempty"`
	CompletedRetentionSeconds *int  `json:"completedRetentionSeconds,omitempty"`
	EncryptionEnabled         *bool `json:"encryptionEnabled,omitempty"`
	// Stored and shown, without effect in this version.
	Priority   *int `json:"priority,omitempty"`
	RetryDelay *int `json:"retryDelay,omitempty"`
	TTL        *int `json:"ttl,omitempty"`
}

// Configure creates a queue or changes the options that o names, and returns all of them. [ErrInvalid] names the option that is out
// of bounds; then nothing was changed.
func (a Admin) Configure(ctx context.Context, queue string, o QueueOptions) (QueueOptions, error) {
	answer, err := change[struct {
		Options QueueOptions `json:"options"`
	}](ctx, a.client, http.MethodPost, "/api/v1/configure", nil, bodyOf(struct {
		Queue     string       `json:"queue"`
		Namespace *string      `json:"namespace,omitempty"`
		Task      *string      `json:"task,omitempty"`
		Options   QueueOptions `json:"options"`
	}{queue, o.Namespace, o.Task, o}))
	return answer.Options, err
}

// Options returns the options of a queue.
func (a Admin) Options(ctx context.Context, queue string) (QueueOptions, error) {
	answer, err := get[struct {
		Options QueueOptions `json:"options"`
	}](ctx, a.client, queuePath(queue, "options"), nil)
	return answer.Options, err
}

func queuePath(queue string, rest ...string) string {
	return Path(append([]string{"api", "v1", "resources", "queues", queue}, rest...)...)
}

// Counters count messages of a queue or partition.
type Counters struct {
	Total      int64 `json:"total"`
	Pending    int64 `json:"pending"`
	Processing int64 `json:"processing"`
	Completed  int64 `json:"completed"`
	DeadLetter int64 `json:"deadLetter"`
}

// A QueueSummary is one line of the list of queues.
type QueueSummary struct {
	ID            string    `json:"id"`
	Name          string    `json:"name"`
	Namespace     string    `json:"namespace"`
	Task          string    `json:"task"`
	CreatedAt     time.Time `json:"createdAt"`
	Partitions    int       `json:"partitions"`
	RetainedBytes int64     `json:"retainedBytes"`
	Messages      Counters  `json:"messages"` // Total, Pending and Processing
}

// QueueFilter chooses queues. Empty fields choose all.
type QueueFilter struct {
	Namespace, Task string
	// Limit is the most queues to return, at most 100,000; 0 is the broker's default. Offset leaves out the first ones.
	Limit, Offset int
	// Cached takes the counters of the last statistics, some seconds old, which costs the database much less.
	Cached bool
}

// Queues lists queues, the newest first.
func (a Admin) Queues(ctx context.Context, filter QueueFilter) ([]QueueSummary, error) {
	query := newValues().text("namespace", filter.Namespace).text("task", filter.Task).number("limit", filter.Limit).number("offset", filter.Offset)
	if filter.Cached {
		query.text("stats", "cached")
	}
	answer, err := get[struct {
		Queues []QueueSummary `json:"queues"`
	}](ctx, a.client, "/api/v1/resources/queues", query.Values)
	return answer.Queues, err
}

// A QueueDetail describes one queue.
type QueueDetail struct {
	ID             string       `json:"id"`
	Name           string       `json:"name"`
	Namespace      string       `json:"namespace"`
	Task           string       `json:"task"`
	CreatedAt      time.Time    `json:"createdAt"`
	PartitionCount int          `json:"partitionCount"`
	Totals         Counters     `json:"totals"`
	RetainedBytes  int64        `json:"retainedBytes"`
	Options        QueueOptions `json:"options"`
}

// Queue describes a queue. Its partitions are listed by Partitions.
func (a Admin) Queue(ctx context.Context, queue string) (QueueDetail, error) {
	return get[QueueDetail](ctx, a.client, queuePath(queue), newValues().number("limit", 1).Values)
}

// A Partition is one partition of a queue.
type Partition struct {
	ID            string     `json:"id"`
	Name          string     `json:"name"`
	CreatedAt     time.Time  `json:"createdAt"`
	LastWriteAt   *time.Time `json:"lastWriteAt"`
	Messages      Counters   `json:"messages"`
	OldestMessage *time.Time `json:"oldestMessage"`
	NewestMessage *time.Time `json:"newestMessage"`
}

// PartitionFilter chooses partitions and their order.
type PartitionFilter struct {
	Prefix string // of their names
	Group  string // count as this group sees it
	Sort   string // "name", "depth" or "age"
}

// Partitions lists the partitions of a queue, page by page. It ends with the first error.
func (a Admin) Partitions(ctx context.Context, queue string, filter PartitionFilter) iter.Seq2[Partition, error] {
	type page struct {
		Partitions []Partition `json:"partitions"`
		NextCursor string      `json:"nextCursor"`
	}
	query := newValues().text("prefix", filter.Prefix).text("group", filter.Group).text("sort", filter.Sort)
	return pages(ctx, a.client, queuePath(queue, "partitions"), query.Values, func(p *page) ([]Partition, string) { return p.Partitions, p.NextCursor })
}

// Depth counts what a group has not consumed; "" is the slowest group.
func (a Admin) Depth(ctx context.Context, queue, group string) (int64, error) {
	answer, err := get[struct {
		Depth int64 `json:"depth"`
	}](ctx, a.client, queuePath(queue, "depth"), newValues().text("group", group).Values)
	return answer.Depth, err
}

// DeleteQueue deletes a queue with everything in it, and tells whether it was there.
func (a Admin) DeleteQueue(ctx context.Context, queue string) (existed bool, err error) {
	answer, err := change[struct {
		Existed bool `json:"existed"`
	}](ctx, a.client, http.MethodDelete, queuePath(queue), nil, nil)
	return answer.Existed, err
}

// PurgeOptions says what Purge deletes. The zero value deletes what every group has consumed.
type PurgeOptions struct {
	// Partition limits it to one partition.
	Partition string
	// Unread also deletes what nobody has consumed.
	Unread bool
	// DryRun only counts.
	DryRun bool
}

// Purged is what Purge deleted, or would.
type Purged struct {
	Messages int64 `json:"messages"`
	Unread   int64 `json:"unread"` // of them, what nobody had consumed
}

// Purge deletes stored messages and keeps queue, partitions and groups.
func (a Admin) Purge(ctx context.Context, queue string, o PurgeOptions) (Purged, error) {
	mode := "consumed"
	if o.Unread {
		mode = "all"
	}
	request := bodyOf(struct {
		Mode      string `json:"mode"`
		Partition string `json:"partition,omitempty"`
		DryRun    bool   `json:"dryRun"`
	}{mode, o.Partition, o.DryRun})
	var total Purged
	for {
		step, err := change[struct {
			Purged
			Done bool `json:"done"`
		}](ctx, a.client, http.MethodPost, queuePath(queue, "purge"), nil, request)
		total.Messages += step.Messages
		total.Unread += step.Unread
		if err != nil || step.Done || o.DryRun {
			return total, err
		}
	}
}
