package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"queenmq/queen"
)

// A lane is a partition as its queue lists it.
type lane struct {
	ID          string    `json:"id"`
	Name        string    `json:"name"`
	LastWriteAt time.Time `json:"lastWriteAt"`
	Messages    struct {
		Total   int64 `json:"total"`
		Pending int64 `json:"pending"`
	} `json:"messages"`
}

// lanes reads the partitions of a queue by name; with names only those, and a missing one is an error. group, when it is given,
// decides what counts as pending.
func (a *app) lanes(ctx context.Context, queue, group string, names []string) ([]lane, error) {
	if len(names) == 0 {
		return a.lanesWith(ctx, queue, values("group", group), "")
	}
	var all []lane
	for _, name := range names {
		// A prefix that is the whole name leads to it in the order of names.
		found, err := a.lanesWith(ctx, queue, values("group", group, "prefix", name), name)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, empty("queue %s has no partition %q", queue, name)
		}
		all = append(all, found...)
	}
	return all, nil
}

// lanesWith reads pages of partitions; with only it looks for one name and ends as soon as it has it.
func (a *app) lanesWith(ctx context.Context, queue string, query url.Values, only string) ([]lane, error) {
	var all []lane
	for {
		query.Set("limit", strconv.Itoa(pageSize))
		answer, err := a.look(ctx, queen.Path("api", "v1", "resources", "queues", queue, "partitions"), query)
		if err != nil {
			return nil, err
		}
		page, err := decode[struct {
			Partitions []lane  `json:"partitions"`
			Next       *string `json:"nextCursor"`
		}](answer)
		if err != nil {
			return nil, err
		}
		for _, l := range page.Partitions {
			if only == "" {
				all = append(all, l)
			} else if l.Name == only {
				return []lane{l}, nil
			}
		}
		if page.Next == nil || len(page.Partitions) == 0 {
			return all, nil
		}
		query.Set("cursor", *page.Next)
	}
}

// A part is a run of stored messages of one partition, oldest first.
type part struct {
	PartitionID string          `json:"partitionId"`
	Queue       string          `json:"queue"`
	Partition   string          `json:"partition"`
	LogStart    int64           `json:"logStart"`
	End         int64           `json:"endOffset"`
	Next        int64           `json:"nextOffset"`
	Messages    []storedMessage `json:"messages"`
}

// A storedMessage is one message as the broker keeps it. Raw is the whole object of the answer.
type storedMessage struct {
	ID            string  `json:"id"`
	TransactionID string  `json:"transactionId"`
	TraceID       *string `json:"traceId"`
	Traceparent   *string `json:"traceparent"`
	ProducerSub   *string `json:"producerSub"`
	Encrypted     bool    `json:"isEncrypted"`
	// Unreadable says why the broker cannot read a message that it has.
	Unreadable *string         `json:"unreadable"`
	Offset     int64           `json:"offset"`
	CreatedAt  time.Time       `json:"createdAt"`
	Data       json.RawMessage `json:"data"`

	Raw json.RawMessage `json:"-"`
}

// UnmarshalJSON keeps the object beside its members.
func (m *storedMessage) UnmarshalJSON(text []byte) error {
	type plain storedMessage
	if err := json.Unmarshal(text, (*plain)(m)); err != nil {
		return err
	}
	m.Raw = append(json.RawMessage(nil), text...)
	return nil
}

// read returns up to limit messages of a partition from an offset on; below zero it counts back from the end. Nothing changes at the
// broker.
func (a *app) read(ctx context.Context, partitionID string, offset int64, limit int) (part, error) {
	answer, err := a.call(ctx, http.MethodGet, queen.Path("api", "v1", "partitions", partitionID, "messages"),
		values("offset", strconv.FormatInt(offset, 10), "limit", strconv.Itoa(min(limit, pageSize))), nil)
	if err != nil {
		return part{}, err
	}
	return decode[part](answer)
}

// in returns a message with the names of where it lies, as one object.
func (m *storedMessage) in(p *part) json.RawMessage {
	head := fmt.Appendf(nil, `{"queue":%s,"partition":%s,"partitionId":%s,`, jsonText(p.Queue), jsonText(p.Partition), jsonText(p.PartitionID))
	return append(head, m.Raw[1:]...)
}
