package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/output"
	"queenmq/queen"
)

var deadLetterColumns = []output.Column{
	output.Col("FAILED", "failedAt"), output.Col("QUEUE", "queue"), output.Col("PARTITION", "partition"), output.Col("GROUP", "consumerGroup"), output.Num("RETRIES", "retryCount"),
	output.Col("TRANSACTION", "transactionId"), output.Col("ERROR", "errorMessage").AtMost(60), output.Col("ID", "id").InWide(), output.Col("PARTITION-ID", "partitionId").InWide(), output.Col("DATA", "data").InWide(),
}

// A deadLetterFilter chooses dead letters; the same filter serves list, count, groups, redrive and purge.
type deadLetterFilter struct {
	queue, partition, group, text, shape, transaction, partitionID string
	since, until                                                   moment
	all                                                            bool
}

func (a *app) newDeadLetterFilter(command *cobra.Command) *deadLetterFilter {
	filter := &deadLetterFilter{since: moment{now: a.now}, until: moment{now: a.now}}
	f := command.Flags()
	f.StringVar(&filter.queue, "queue", "", "of this queue")
	f.StringVarP(&filter.partition, "partition", "p", "", "of this partition")
	f.StringVarP(&filter.group, "group", "g", "", "of this consumer group")
	f.StringVar(&filter.text, "error", "", "whose error text contains this")
	f.StringVar(&filter.shape, "shape", "", "whose error has this shape (dlq groups shows the shapes)")
	f.StringVar(&filter.transaction, "transaction-id", "", "of this message")
	f.StringVar(&filter.partitionID, "partition-id", "", "of the partition with this id")
	f.Var(&filter.since, "since", "failed at or after this time")
	f.Var(&filter.until, "until", "failed before this time")
	return filter
}

// members are the filter as the broker reads it, without what was not given.
func (f *deadLetterFilter) members() map[string]string {
	members := map[string]string{}
	for name, value := range map[string]string{
		"queue": f.queue, "partition": f.partition, "consumerGroup": f.group, "error": f.text, "shape": f.shape, "transactionId": f.transaction,
		"partitionId": f.partitionID, "from": f.since.String(), "to": f.until.String(),
	} {
		if value != "" {
			members[name] = value
		}
	}
	return members
}

func (f *deadLetterFilter) query() []string {
	var pairs []string
	for name, value := range f.members() {
		pairs = append(pairs, name, value)
	}
	return pairs
}

func (a *app) deadLetterCommand() *cobra.Command {
	command := &cobra.Command{Use: "dlq", Aliases: []string{"dead-letters"}, Short: "List, group, redrive and purge dead letters", RunE: group}
	command.AddCommand(a.deadLetterListCommand(), a.deadLetterCountCommand(), a.deadLetterGroupsCommand(), a.deadLetterShowCommand(), a.redriveCommand(), a.deadLetterPurgeCommand())
	return command
}

func (a *app) deadLetterListCommand() *cobra.Command {
	var limit int
	command := &cobra.Command{Use: "list [QUEUE]", Aliases: []string{"ls"}, Short: "List dead letters, the newest failure first", Args: args(cobra.MaximumNArgs(1))}
	filter := a.newDeadLetterFilter(command)
	countFlag(command, &limit, 100)
	command.RunE = func(command *cobra.Command, given []string) error {
		if len(given) > 0 {
			filter.queue = given[0]
		}
		return a.list(command.Context(), "/api/v1/dlq", values(filter.query()...), "messages", limit, false, "dead letters", deadLetterColumns)
	}
	return command
}

func (a *app) deadLetterCountCommand() *cobra.Command {
	command := &cobra.Command{Use: "count", Short: "Count dead letters", Args: args(cobra.NoArgs)}
	filter := a.newDeadLetterFilter(command)
	command.RunE = func(command *cobra.Command, _ []string) error {
		return a.item(command.Context(), http.MethodGet, "/api/v1/dlq/count", values(filter.query()...), nil)
	}
	return command
}

func (a *app) deadLetterGroupsCommand() *cobra.Command {
	command := &cobra.Command{Use: "groups", Aliases: []string{"shapes"}, Short: "Group dead letters by the shape of their error texts", Args: args(cobra.NoArgs)}
	filter := a.newDeadLetterFilter(command)
	command.RunE = func(command *cobra.Command, _ []string) error {
		answer, err := a.call(command.Context(), http.MethodGet, "/api/v1/dlq/shapes", values(filter.query()...), nil)
		if err != nil {
			return err
		}
		return a.events(answer, "groups", "dead letters", []output.Column{
			output.Num("COUNT", "count"), output.Col("SHAPE", "shape").AtMost(80), output.Col("QUEUES", "queues"), output.Col("FIRST", "firstFailedAt").InWide(), output.Col("LAST", "lastFailedAt"), output.Col("SAMPLE", "sample").InWide(),
		})
	}
	return command
}

func (a *app) deadLetterShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show TRANSACTION-ID", Aliases: []string{"get"}, Short: "Show the dead letters of one message in full", Args: args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			items, _, err := a.pages(command.Context(), "/api/v1/dlq", values("transactionId", given[0]), "messages", 0, false)
			if err != nil {
				return err
			}
			if len(items) == 0 {
				return empty("no dead letter of %s", given[0])
			}
			for i := range items {
				items[i] = withoutTwin(items[i])
			}
			if !a.printer.Format.Table() {
				return a.printer.List("messages", items, nil)
			}
			for i, item := range items {
				if i > 0 {
					fmt.Fprintln(a.stdout)
				}
				if err := a.printer.Item(item); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// bulkOptions are the flags of redrive and purge.
type bulkOptions struct {
	kind, id, to, toPartition string
	rate                      int
	background                bool
}

func (a *app) redriveCommand() *cobra.Command {
	o := bulkOptions{kind: "redrive"}
	command := a.destructive(&cobra.Command{
		Use: "redrive", Aliases: []string{"retry"}, Short: "Move dead letters back into their queues, or into another one",
		Long: `Move dead letters back. Each becomes a new message at the end of its partition, for every group of the queue, and its dead letter is
deleted in the same transaction. A filter or --all is required; the count comes first.`,
		Example: "  queenctl dlq redrive --queue orders --error timeout --rate 100 --dry-run\n  queenctl dlq redrive --queue orders --to orders-repair --yes",
		Args:    args(cobra.NoArgs),
	})
	filter := a.newDeadLetterFilter(command)
	a.bindBulk(command, filter, &o)
	command.Flags().StringVar(&o.id, "id", "", "only the dead letter with this id")
	command.Flags().StringVar(&o.to, "to", "", "into this queue instead")
	command.Flags().StringVar(&o.toPartition, "to-partition", "", "into this partition instead")
	command.RunE = func(command *cobra.Command, _ []string) error {
		if o.id != "" {
			return a.redriveOne(command.Context(), o)
		}
		return a.bulk(command.Context(), filter, o)
	}
	return command
}

func (a *app) deadLetterPurgeCommand() *cobra.Command {
	o := bulkOptions{kind: "purge"}
	command := a.destructive(&cobra.Command{
		Use: "purge [QUEUE]", Aliases: []string{"drain"}, Short: "Delete dead letters for good",
		Long: "Delete dead letters for good. A filter or --all is required; the count comes first. (Older tools call this drain; it deletes.)",
		Args: args(cobra.MaximumNArgs(1)),
	})
	filter := a.newDeadLetterFilter(command)
	a.bindBulk(command, filter, &o)
	command.RunE = func(command *cobra.Command, given []string) error {
		if len(given) > 0 {
			filter.queue = given[0]
		}
		return a.bulk(command.Context(), filter, o)
	}
	return command
}

func (a *app) bindBulk(command *cobra.Command, filter *deadLetterFilter, o *bulkOptions) {
	f := command.Flags()
	f.BoolVar(&filter.all, "all", false, "all dead letters")
	f.IntVar(&o.rate, "rate", 0, "most messages a second; 0 is any number")
	f.BoolVar(&o.background, "background", false, "start it and do not wait; task watch shows it")
}

func (a *app) redriveOne(ctx context.Context, o bulkOptions) error {
	yes, err := a.confirm("move the dead letter %s back", o.id)
	if !yes || err != nil {
		return err
	}
	return a.item(ctx, http.MethodPost, queen.Path("api", "v1", "dlq", o.id, "replay"), nil, o.destination())
}

func (o *bulkOptions) destination() map[string]string {
	destination := map[string]string{}
	if o.to != "" {
		destination["queue"] = o.to
	}
	if o.toPartition != "" {
		destination["partition"] = o.toPartition
	}
	return destination
}

// bulk counts, asks, starts a task at the broker and watches it.
func (a *app) bulk(ctx context.Context, filter *deadLetterFilter, o bulkOptions) error {
	members := filter.members()
	if len(members) == 0 && !filter.all {
		return usage("give a filter, or --all for all dead letters")
	}
	body := map[string]any{"kind": o.kind, "filter": members}
	if o.rate > 0 {
		body["rate"] = o.rate
	}
	if destination := o.destination(); len(destination) > 0 {
		body["destination"] = destination
	}
	var count struct{ Total int64 }
	if !a.flags.explain {
		body["dryRun"] = true
		answer, err := a.call(ctx, http.MethodPost, "/api/v1/dlq/tasks", nil, body)
		if err != nil {
			return err
		}
		if count, err = decode[struct{ Total int64 }](answer); err != nil {
			return err
		}
		delete(body, "dryRun")
		if count.Total == 0 {
			return empty("no dead letters match")
		}
	}
	verb := map[string]string{"redrive": "move", "purge": "delete"}[o.kind]
	if o.kind == "redrive" {
		if verb = "move back"; o.to != "" {
			verb = "move into " + o.to
		}
	}
	if yes, err := a.confirm("%s %s", verb, many(count.Total, "dead letter")); !yes || err != nil {
		return err
	}
	answer, err := a.call(ctx, http.MethodPost, "/api/v1/dlq/tasks", nil, body)
	if err != nil {
		return err
	}
	if o.background {
		return a.printer.Item(answer)
	}
	started, err := decode[task](answer)
	if err != nil {
		return err
	}
	err = a.watch(ctx, started.ID)
	if interrupted(ctx, err) {
		a.remark("the task goes on at the broker: queenctl task watch %s, or task cancel", started.ID)
		return errors.New("interrupted")
	}
	return err
}

// A task is bulk work over dead letters.
type task struct {
	ID        string  `json:"id"`
	Kind      string  `json:"kind"`
	State     string  `json:"state"`
	Total     int64   `json:"total"`
	Moved     int64   `json:"moved"`
	Deleted   int64   `json:"deleted"`
	Duplicate int64   `json:"duplicate"`
	Skipped   int64   `json:"skipped"`
	Remaining int64   `json:"remaining"`
	LastError *string `json:"lastError"`
}

func (t *task) done() int64 { return t.Moved + t.Deleted + t.Duplicate + t.Skipped }
