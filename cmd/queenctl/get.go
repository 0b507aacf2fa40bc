package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/output"
)

func (a *app) getCommand() *cobra.Command {
	var queue string
	var data bool
	command := &cobra.Command{
		Use: "get MESSAGE", Short: "Show one message and how far each group is with it",
		Long: `Show one message: MESSAGE is its transaction id, or PARTITION-ID/TRANSACTION-ID. With --data only the payload is written, byte for
byte as it was pushed.`,
		Args: args(cobra.RangeArgs(1, 2)),
		RunE: func(command *cobra.Command, given []string) error {
			text := given[0]
			if len(given) == 2 {
				text += "/" + given[1]
			}
			return a.get(command.Context(), text, queue, data)
		},
	}
	command.Flags().StringVar(&queue, "queue", "", "look for the transaction id in this queue only")
	command.Flags().BoolVar(&data, "data", false, "write the payload only")
	return command
}

func (a *app) get(ctx context.Context, text, queue string, data bool) error {
	at, err := a.addressOf(ctx, text, queue)
	if err != nil {
		return err
	}
	answer, err := a.message(ctx, at)
	if err != nil {
		return err
	}
	if !data {
		return a.printer.Item(withoutTwin(answer))
	}
	message, err := decode[struct{ Data json.RawMessage }](answer)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "%s\n", message.Data)
	return err
}

// withoutTwin leaves out "payload", which repeats "data" for older clients.
func withoutTwin(message json.RawMessage) json.RawMessage {
	kept, err := output.Without(message, "payload")
	if err != nil {
		return message
	}
	return kept
}

var messageColumns = []output.Column{
	output.Col("CREATED", "createdAt"), output.Col("QUEUE", "queue"), output.Col("PARTITION", "partition"), output.Num("OFFSET", "offset").InWide(),
	output.Col("TRANSACTION", "transactionId"), output.Col("STATUS", "status"), output.Num("RETRIES", "retryCount").InWide(),
	output.Col("PARTITION-ID", "partitionId").InWide(), output.Col("PRODUCER", "producerSub").InWide(), output.Col("DATA", "data").AtMost(60),
}

func (a *app) messagesCommand() *cobra.Command {
	command := &cobra.Command{Use: "messages", Aliases: []string{"message", "msg"}, Short: "List stored messages with their status, and their traces", RunE: group}
	var filter struct{ queue, partition, namespace, task, status, group, transaction, trace string }
	var limit int
	since, until := moment{now: a.now}, moment{now: a.now}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List messages, the newest first", Args: args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			query := values("queue", filter.queue, "partition", filter.partition, "namespace", filter.namespace, "task", filter.task, "status", filter.status,
				"group", filter.group, "transactionId", filter.transaction, "traceId", filter.trace, "from", since.String(), "to", until.String())
			return a.list(command.Context(), "/api/v1/messages", query, "messages", limit, false, "messages", messageColumns)
		},
	}
	f := list.Flags()
	f.StringVar(&filter.queue, "queue", "", "of this queue")
	f.StringVarP(&filter.partition, "partition", "p", "", "of this partition")
	f.StringVar(&filter.namespace, "namespace", "", "of this namespace")
	f.StringVar(&filter.task, "task", "", "of this task")
	f.StringVar(&filter.status, "status", "", "pending, processing, completed or dead_letter")
	f.StringVarP(&filter.group, "group", "g", "", "status as this group sees it")
	f.StringVar(&filter.transaction, "transaction-id", "", "with this transaction id")
	f.StringVar(&filter.trace, "trace-id", "", "with this trace id")
	f.Var(&since, "since", "stored at or after this time (default: an hour ago)")
	f.Var(&until, "until", "stored before this time")
	countFlag(list, &limit, 100)
	traces := &cobra.Command{
		Use: "traces PARTITION-ID TRANSACTION-ID", Short: "List the events that were recorded about a message", Args: args(cobra.ExactArgs(2)),
		RunE: func(command *cobra.Command, given []string) error {
			return a.messageTraces(command.Context(), address{given[0], given[1]})
		},
	}
	show := a.getCommand()
	command.AddCommand(list, show, traces)
	return command
}
