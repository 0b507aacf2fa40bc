package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// client calls a broker.
type client struct{ url string }

const (
	pushBatch = 100
	popBatch  = 500
	// A pop takes from several partitions at once, so that few rounds empty the queue.
	popPartitions = 10
)

// push sends the lines in order. The transaction id of a line is its number, so a repeated push would be recognised.
func (c *client) push(ctx context.Context, queue string, lines []line) error {
	for first := 0; first < len(lines); first += pushBatch {
		batch := lines[first:min(first+pushBatch, len(lines))]
		var body bytes.Buffer
		body.WriteString(`{"items":[`)
		for i, l := range batch {
			if i > 0 {
				body.WriteByte(',')
			}
			// The payload is written as it stands in the file: an encoder would change spaces and escapes.
			fmt.Fprintf(&body, `{"queue":%s,"partition":%s,"transactionId":"line-%d","payload":%s}`, quoted(queue), quoted(l.customer), first+i+1, l.payload)
		}
		body.WriteString(`]}`)
		var verdicts []struct{ Status, Error string }
		if err := c.call(ctx, http.MethodPost, "/api/v1/push", body.Bytes(), &verdicts); err != nil {
			return err
		}
		if len(verdicts) != len(batch) {
			return fmt.Errorf("%d verdicts for %d records", len(verdicts), len(batch))
		}
		for i, v := range verdicts {
			if v.Status != "queued" {
				return fmt.Errorf("record %d is %s %s", first+i+1, v.Status, v.Error)
			}
		}
	}
	return nil
}

// quoted is text as a JSON string.
func quoted(text string) []byte {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string can always be marshalled
	}
	return b
}

type message struct {
	TransactionID string `json:"transactionId"`
	PartitionID   string `json:"partitionId"`
	Partition     string
	LeaseID       string `json:"leaseId"`
	Data          json.RawMessage
}

type acknowledgment struct {
	TransactionID string `json:"transactionId"`
	PartitionID   string `json:"partitionId"`
	LeaseID       string `json:"leaseId"`
	Status        string `json:"status"`
}

// consume pops and acknowledges until it has want records, and looks once more for any that should not be there. It returns
// the payloads of each partition in the order of delivery.
func (c *client) consume(ctx context.Context, queue, group string, want int) (map[string][][]byte, error) {
	received := map[string][][]byte{}
	for count := 0; ; {
		query := url.Values{
			"consumerGroup": {group}, "batch": {fmt.Sprint(popBatch)}, "partitions": {fmt.Sprint(popPartitions)},
		}
		if count < want {
			query.Set("wait", "true")
			query.Set("timeout", "10000")
		}
		var answer struct{ Messages []message }
		if err := c.call(ctx, http.MethodGet, "/api/v1/pop/queue/"+url.PathEscape(queue)+"?"+query.Encode(), nil, &answer); err != nil {
			return nil, fmt.Errorf("pop: %w", err)
		}
		if len(answer.Messages) == 0 {
			if count < want {
				return nil, fmt.Errorf("nothing more came after %d of %d records", count, want)
			}
			return received, nil
		}
		for _, m := range answer.Messages {
			received[m.Partition] = append(received[m.Partition], m.Data)
		}
		count += len(answer.Messages)
		if err := c.acknowledge(ctx, group, answer.Messages); err != nil {
			return nil, fmt.Errorf("ack: %w", err)
		}
	}
}

func (c *client) acknowledge(ctx context.Context, group string, messages []message) error {
	request := struct {
		ConsumerGroup   string           `json:"consumerGroup"`
		Acknowledgments []acknowledgment `json:"acknowledgments"`
	}{ConsumerGroup: group}
	for _, m := range messages {
		request.Acknowledgments = append(request.Acknowledgments, acknowledgment{m.TransactionID, m.PartitionID, m.LeaseID, "completed"})
	}
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	var results []struct {
		Success bool
		Error   string
	}
	if err := c.call(ctx, http.MethodPost, "/api/v1/ack/batch", body, &results); err != nil {
		return err
	}
	if len(results) != len(messages) {
		return fmt.Errorf("%d results for %d messages", len(results), len(messages))
	}
	for i, r := range results {
		if !r.Success {
			return fmt.Errorf("message %s: %s", messages[i].TransactionID, r.Error)
		}
	}
	return nil
}

func (c *client) deleteQueue(ctx context.Context, queue string) error {
	var answer json.RawMessage
	return c.call(ctx, http.MethodDelete, "/api/v1/resources/queues/"+url.PathEscape(queue), nil, &answer)
}

// call makes one request and decodes its answer. 204 leaves the answer as it is.
func (c *client) call(ctx context.Context, method, path string, body []byte, answer any) error {
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("%w (is the broker running?)", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return err
	case response.StatusCode == http.StatusNoContent:
		return nil
	case response.StatusCode >= http.StatusBadRequest:
		return errors.New(response.Status + ": " + string(text))
	}
	return json.Unmarshal(text, answer)
}
