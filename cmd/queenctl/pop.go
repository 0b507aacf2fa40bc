package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/output"
	"queenmq/queen"
)

// popOptions are the flags of pop.
type popOptions struct {
	queue, partition, namespace, task, group string
	batch, partitions                        int
	wait                                     time.Duration
	lease                                    time.Duration
	autoAck, ack                             bool
	mode, from                               string
}

var popColumns = []output.Column{
	output.Col("PARTITION", "partition"), output.Col("TRANSACTION", "transactionId"), output.Col("CREATED", "createdAt"),
	output.Col("QUEUE", "queue").InWide(), output.Col("PARTITION-ID", "partitionId").InWide(), output.Col("LEASE", "leaseId").InWide(),
	output.Col("GROUP", "consumerGroup").InWide(), output.Col("PRODUCER", "producerSub").InWide(), output.Col("DATA", "data").AtMost(80),
}

func (a *app) popCommand() *cobra.Command {
	var o popOptions
	command := &cobra.Command{
		Use: "pop [QUEUE]", Short: "Claim messages under a lease",
		Long: `Claim messages. They are leased: acknowledge them with ack before the lease ends, or they come again. --ack does it once they
are printed, --auto-ack inside the pop. To look without claiming use peek or tail.

Without QUEUE give --namespace or --task. Nothing to deliver is exit code 4.`,
		Example: `  queenctl pop orders --group billing --batch 10 --wait 30s -o ndjson > batch && queenctl ack --file batch
  queenctl pop orders --group billing --ack`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			if len(given) > 0 {
				o.queue = given[0]
			}
			return a.pop(command.Context(), o)
		},
	}
	f := command.Flags()
	f.StringVarP(&o.partition, "partition", "p", "", "only from this partition")
	f.StringVarP(&o.group, "group", "g", "", "consumer group")
	f.StringVar(&o.namespace, "namespace", "", "from any queue of this namespace")
	f.StringVar(&o.task, "task", "", "from any queue of this task")
	f.IntVarP(&o.batch, "batch", "n", 1, "most messages")
	f.IntVar(&o.partitions, "partitions", 1, "most partitions; 0 is any number")
	f.DurationVar(&o.wait, "wait", 0, "wait so long for messages")
	f.DurationVar(&o.lease, "lease", 0, "length of the lease (default: the queue's leaseTime)")
	f.BoolVar(&o.autoAck, "auto-ack", false, "acknowledge inside the pop: at most once")
	f.BoolVar(&o.ack, "ack", false, "acknowledge after printing")
	f.StringVar(&o.mode, "subscription-mode", "", "where a new group starts: all or new")
	f.StringVar(&o.from, "subscription-from", "", "where a new group starts: now, or a time")
	return command
}

func (o *popOptions) path() (string, error) {
	switch {
	case o.queue == "" && o.namespace == "" && o.task == "":
		return "", usage("name a queue, or give --namespace or --task")
	case o.queue != "" && (o.namespace != "" || o.task != ""):
		return "", usage("give a queue, or --namespace and --task, not both")
	case o.partition != "" && o.queue == "":
		return "", usage("--partition needs a queue")
	case o.autoAck && o.ack:
		return "", usage("give --ack or --auto-ack, not both")
	case o.batch < 1 || o.batch > 10_000:
		return "", usage("--batch must be between 1 and 10000")
	case o.wait < 0 || o.wait > time.Hour:
		return "", usage("--wait must be between 0 and 1h")
	case o.queue == "":
		return "/api/v1/pop", nil
	case o.partition == "":
		return queen.Path("api", "v1", "pop", "queue", o.queue), nil
	}
	return queen.Path("api", "v1", "pop", "queue", o.queue, "partition", o.partition), nil
}

func (o *popOptions) query() url.Values {
	query := values("consumerGroup", o.group, "namespace", o.namespace, "task", o.task, "subscriptionMode", o.mode, "subscriptionFrom", o.from)
	query.Set("batch", strconv.Itoa(o.batch))
	if o.partitions != 1 {
		query.Set("partitions", strconv.Itoa(o.partitions))
	}
	if o.wait > 0 {
		query.Set("wait", "true")
		query.Set("timeout", strconv.FormatInt(o.wait.Milliseconds(), 10))
	}
	if o.lease > 0 {
		query.Set("leaseSeconds", strconv.Itoa(int((o.lease+time.Second-1)/time.Second)))
	}
	if o.autoAck {
		query.Set("autoAck", "true")
	}
	return query
}

func (a *app) pop(ctx context.Context, o popOptions) error {
	path, err := o.path()
	if err != nil {
		return err
	}
	answer, err := a.call(ctx, http.MethodGet, path, o.query(), nil)
	if err != nil {
		return err
	}
	if len(answer) == 0 {
		return empty("no messages")
	}
	messages, _, err := listOf(answer, "messages")
	if err != nil {
		return err
	}
	if a.printer.Format.Whole() {
		err = a.printer.Item(answer)
	} else {
		err = a.printer.List("messages", messages, popColumns)
	}
	if err = errors.Join(err, a.flush()); err != nil || !o.ack {
		return err // unprinted messages are not acknowledged: their lease ends and they come again
	}
	return a.ackPrinted(ctx, messages)
}

// ackPrinted acknowledges what was shown.
func (a *app) ackPrinted(ctx context.Context, messages []json.RawMessage) error {
	var acks []queen.Ack
	for _, raw := range messages {
		message, err := decode[queen.Message](raw)
		if err != nil {
			return err
		}
		acks = append(acks, message.Completed())
	}
	_, err := a.client.Ack(ctx, acks...)
	return err
}
