package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/output"
	"queenmq/queen"
)

// ackOptions are the flags of ack and nack.
type ackOptions struct {
	partitionID, lease, group, file string
	status, reason                  string
	delay                           time.Duration
	delayed                         bool
}

// An ackItem is one acknowledgment as the broker reads it.
type ackItem struct {
	TransactionID string `json:"transactionId"`
	PartitionID   string `json:"partitionId"`
	Status        string `json:"status"`
	LeaseID       string `json:"leaseId,omitempty"`
	Error         string `json:"error,omitempty"`
	DelayMs       *int64 `json:"delayMs,omitempty"`
}

var ackColumns = []output.Column{
	output.Col("TRANSACTION", "transactionId"), output.Col("DONE", "success"), output.Col("LEASE-RELEASED", "leaseReleased"),
	output.Col("DEAD-LETTER", "dlq"), output.Col("REPEATED", "noop"), output.Col("QUEUE", "queueName").InWide(),
	output.Col("PARTITION", "partitionName").InWide(), output.Col("ERROR", "error"),
}

func (a *app) ackCommand() *cobra.Command {
	o := ackOptions{status: "completed"}
	command := &cobra.Command{
		Use: "ack [TRANSACTION-ID...]", Short: "Acknowledge messages that were popped",
		Long: `Acknowledge messages: those named by their transaction ids and --partition-id, or those that pop printed with -o ndjson or -o json
(--file FILE, - is stdin). Acknowledging a message acknowledges everything before it in its partition.`,
		Example: `  queenctl pop orders -g billing -n 10 -o ndjson | tee batch | process && queenctl ack --file batch`,
		RunE: func(command *cobra.Command, given []string) error {
			return a.ack(command.Context(), o, given)
		},
	}
	o.bind(command)
	return command
}

func (a *app) nackCommand() *cobra.Command {
	var o ackOptions
	var retry, dead bool
	command := &cobra.Command{
		Use: "nack [TRANSACTION-ID...]", Short: "Give messages back: failed, to be retried, or dead",
		Long: `Give back messages that were not processed; they are named as with ack. By default each counts as failed: after the queue's
retryLimit it becomes a dead letter. --retry spends no retry, --dlq makes it a dead letter at once.`,
		RunE: func(command *cobra.Command, given []string) error {
			o.status = "failed"
			switch {
			case retry && dead:
				return usage("give --retry or --dlq, not both")
			case retry:
				o.status = "retry"
			case dead:
				o.status = "dlq"
			}
			o.delayed = command.Flags().Changed("delay")
			return a.ack(command.Context(), o, given)
		},
	}
	o.bind(command)
	command.Flags().StringVar(&o.reason, "error", "", "reason, kept with a dead letter")
	command.Flags().DurationVar(&o.delay, "delay", 0, "deliver again only after this time (at most 24h); 0 is at once")
	command.Flags().BoolVar(&retry, "retry", false, "spend no retry")
	command.Flags().BoolVar(&dead, "dlq", false, "make it a dead letter")
	return command
}

func (o *ackOptions) bind(command *cobra.Command) {
	f := command.Flags()
	f.StringVar(&o.partitionID, "partition-id", "", "id of the partition (a UUID)")
	f.StringVar(&o.lease, "lease", "", "lease id, which proves that the message is still ours")
	f.StringVarP(&o.group, "group", "g", "", "consumer group")
	f.StringVarP(&o.file, "file", "f", "", "take the messages from what pop printed; - is stdin")
}

func (a *app) ack(ctx context.Context, o ackOptions, ids []string) error {
	byGroup, order, err := a.ackItems(o, ids)
	if err != nil {
		return err
	}
	var all []json.RawMessage
	refused := 0
	for _, group := range order {
		body := struct {
			Group *string   `json:"consumerGroup,omitempty"`
			Acks  []ackItem `json:"acknowledgments"`
		}{Acks: byGroup[group]}
		if group != "" && group != "__QUEUE_MODE__" {
			body.Group = &group
		}
		answer, err := a.call(ctx, http.MethodPost, "/api/v1/ack/batch", nil, body)
		if err != nil {
			return err
		}
		results, _, err := listOf(answer, "")
		if err != nil {
			return err
		}
		for _, raw := range results {
			result, err := decode[struct{ Success bool }](raw)
			if err != nil {
				return err
			}
			if !result.Success {
				refused++
			}
		}
		all = append(all, results...)
	}
	if err := a.printer.List("", all, ackColumns); err != nil {
		return err
	}
	if refused > 0 {
		return differs("%d of %d acknowledgments were refused", refused, len(all))
	}
	return nil
}

// ackItems gathers what is to be acknowledged, by group in the order of their first message.
func (a *app) ackItems(o ackOptions, ids []string) (map[string][]ackItem, []string, error) {
	byGroup := map[string][]ackItem{}
	var order []string
	add := func(group string, item ackItem) {
		if _, known := byGroup[group]; !known {
			order = append(order, group)
		}
		item.Status, item.Error = o.status, o.reason
		if o.delayed {
			item.DelayMs = new(o.delay.Milliseconds())
		}
		byGroup[group] = append(byGroup[group], item)
	}
	if o.file == "" {
		if len(ids) == 0 || o.partitionID == "" {
			return nil, nil, usage("name messages by transaction id and --partition-id, or give --file with what pop printed")
		}
		for _, id := range ids {
			add(o.group, ackItem{TransactionID: id, PartitionID: o.partitionID, LeaseID: o.lease})
		}
		return byGroup, order, nil
	}
	if len(ids) > 0 {
		return nil, nil, usage("give transaction ids or --file, not both")
	}
	text, err := a.readAll(o.file)
	if err != nil {
		return nil, nil, err
	}
	messages, err := popped(text)
	if err != nil {
		return nil, nil, usage("%s: %w", o.file, err)
	}
	for _, m := range messages {
		group := m.Group
		if o.group != "" {
			group = o.group
		}
		add(group, ackItem{TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: m.LeaseID})
	}
	if len(messages) == 0 {
		return nil, nil, empty("%s holds no messages", o.file)
	}
	return byGroup, order, nil
}

// popped reads messages as pop prints them: one object a line, or whole answers.
func popped(text []byte) ([]queen.Message, error) {
	var messages []queen.Message
	for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
		var value struct {
			queen.Message
			Messages []queen.Message `json:"messages"`
		}
		err := decoder.Decode(&value)
		if errors.Is(err, io.EOF) {
			return messages, nil
		}
		if err != nil {
			return nil, err
		}
		if value.Messages != nil {
			messages = append(messages, value.Messages...)
			continue
		}
		if value.TransactionID == "" || value.PartitionID == "" {
			return nil, errors.New("an object has no transactionId or no partitionId; it is not what pop prints")
		}
		messages = append(messages, value.Message)
	}
}

func (a *app) extendCommand() *cobra.Command {
	var length time.Duration
	command := &cobra.Command{
		Use: "extend LEASE-ID", Short: "Lengthen the lease of everything one pop claimed", Args: args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			seconds := int((length + time.Second - 1) / time.Second)
			if seconds < 1 || seconds > 86_400 {
				return usage("--seconds must be between 1 and 86400, --for between 1s and 24h")
			}
			answer, err := a.call(command.Context(), http.MethodPost, queen.Path("api", "v1", "lease", given[0], "extend"), nil, map[string]int{"seconds": seconds})
			if err != nil {
				return err
			}
			if err := a.printer.Item(answer); err != nil {
				return err
			}
			if result, err := decode[struct{ Success bool }](answer); err != nil || !result.Success {
				return errors.Join(err, differs("the lease has ended; its messages go to other workers"))
			}
			return nil
		},
	}
	command.Flags().DurationVar(&length, "for", time.Minute, "length from now on")
	command.Flags().Var(secondsValue{&length}, "seconds", "the same in seconds")
	return command
}
