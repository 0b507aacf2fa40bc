package main

import (
	"context"
	"encoding/json"
	"net/http"
	"uuid"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/output"
	"queenmq/queen"
)

var pipelineColumns = []output.Column{
	output.Col("CREATED", "createdAt"), output.Col("QUEUE", "queue"), output.Col("PARTITION", "partition"), output.Num("OFFSET", "offset").InWide(),
	output.Col("TRANSACTION", "transactionId"), output.Col("STATUS", "status"), output.Col("PARTITION-ID", "partitionId").InWide(), output.Col("DATA", "data").AtMost(60),
}

var eventColumns = []output.Column{
	output.Col("CREATED", "createdAt", "created_at"), output.Col("EVENT", "eventType", "event_type"), output.Col("NAMES", "traceName", "trace_names"),
	output.Col("GROUP", "consumer_group").InWide(), output.Col("WORKER", "worker_id").InWide(), output.Col("DATA", "data").AtMost(80),
}

func (a *app) traceCommand() *cobra.Command {
	return &cobra.Command{
		Use: "trace ID", Short: "Follow a trace across queues, or show the events of one message",
		Long: `With a trace id (a UUID): all messages that carry it, across queues, in the order of time, each with its status. With a message
(its transaction id, or PARTITION-ID/TRANSACTION-ID): the events that consumers recorded about it.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			if _, err := uuid.Parse(given[0]); err != nil {
				at, err := a.addressOf(command.Context(), given[0], "")
				if err != nil {
					return err
				}
				return a.messageTraces(command.Context(), at)
			}
			return a.list(command.Context(), queen.Path("api", "v1", "pipelines", given[0]), nil, "messages", 1000, false, "messages of this trace", pipelineColumns)
		},
	}
}

func (a *app) messageTraces(ctx context.Context, at address) error {
	answer, err := a.call(ctx, http.MethodGet, queen.Path("api", "v1", "traces", at.partitionID, at.transactionID), nil, nil)
	if err != nil {
		return err
	}
	return a.events(answer, "traces", "events of this message", eventColumns)
}

// events shows a list that comes as a whole.
func (a *app) events(answer json.RawMessage, key, what string, columns []output.Column) error {
	items, _, err := listOf(answer, key)
	if err != nil {
		return err
	}
	if err := a.show(key, items, columns); err != nil {
		return err
	}
	if len(items) == 0 {
		return empty("no %s", what)
	}
	return nil
}

func (a *app) tracesCommand() *cobra.Command {
	command := &cobra.Command{Use: "traces", Short: "Events that consumers recorded about messages, by name", RunE: group}
	var limit int
	names := &cobra.Command{
		Use: "names", Aliases: []string{"list", "ls"}, Short: "List the names under which events were recorded", Args: args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			return a.list(command.Context(), "/api/v1/traces/names", nil, "trace_names", limit, true, "names", []output.Column{
				output.Col("NAME", "name", "trace_name"), output.Num("COUNT", "count", "trace_count"), output.Num("MESSAGES", "message_count"),
				output.Col("LAST-SEEN", "lastSeen", "last_seen"), output.Col("FIRST-SEEN", "firstSeen", "first_seen").InWide(),
			})
		},
	}
	countFlag(names, &limit, 0)
	get := &cobra.Command{
		Use: "get NAME", Short: "List the events of a name, the oldest first", Args: args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			return a.list(command.Context(), queen.Path("api", "v1", "traces", "by-name", given[0]), nil, "traces", limit, true, "events", []output.Column{
				output.Col("CREATED", "createdAt", "created_at"), output.Col("EVENT", "eventType", "event_type"), output.Col("QUEUE", "queue_name"),
				output.Col("PARTITION", "partition", "partition_name"), output.Col("TRANSACTION", "transactionId", "transaction_id"),
				output.Col("GROUP", "consumer_group").InWide(), output.Col("DATA", "data").AtMost(60),
			})
		},
	}
	countFlag(get, &limit, 0)
	var event, data, consumer string
	var recorded []string
	record := &cobra.Command{
		Use: "record PARTITION-ID TRANSACTION-ID", Short: "Record an event about a message", Args: args(cobra.ExactArgs(2)),
		RunE: func(command *cobra.Command, given []string) error {
			if !json.Valid([]byte(data)) {
				return usage("--data is no JSON value")
			}
			body := map[string]any{"partitionId": given[0], "transactionId": given[1], "data": json.RawMessage(data)}
			for name, value := range map[string]string{"eventType": event, "consumerGroup": consumer} {
				if value != "" {
					body[name] = value
				}
			}
			if len(recorded) > 0 {
				body["traceNames"] = recorded
			}
			return a.item(command.Context(), http.MethodPost, "/api/v1/traces", nil, body)
		},
	}
	record.Flags().StringVar(&event, "event", "info", "type of the event")
	record.Flags().StringVarP(&data, "data", "d", "{}", "what happened, as JSON")
	record.Flags().StringVarP(&consumer, "group", "g", "", "consumer group")
	record.Flags().StringArrayVar(&recorded, "name", nil, "name to find the event by; may be repeated")
	command.AddCommand(names, get, record)
	return command
}
