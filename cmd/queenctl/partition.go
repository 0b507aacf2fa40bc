package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/output"
	"queenmq/queen"
)

var partitionColumns = []output.Column{
	output.Col("NAME", "name"), output.Num("PENDING", "pending", "messages.pending"), output.Num("PROCESSING", "processing", "messages.processing"),
	output.Num("COMPLETED", "completed", "messages.completed"), output.Num("DLQ", "dlq", "messages.deadLetter"), output.Num("TOTAL", "total", "messages.total"),
	output.Col("OLDEST", "oldestMessage").InWide(), output.Col("NEWEST", "newestMessage").InWide(), output.Col("LAST-WRITE", "lastWriteAt"), output.Col("ID", "id").InWide(),
}

func (a *app) partitionCommand() *cobra.Command {
	command := &cobra.Command{Use: "partition", Aliases: []string{"partitions", "p"}, Short: "List, show, seek, skip and unblock partitions", RunE: group}
	command.AddCommand(a.partitionListCommand(), a.partitionShowCommand(), a.partitionSeekCommand(), a.partitionSkipCommand(), a.partitionUnblockCommand())
	return command
}

func (a *app) partitionListCommand() *cobra.Command {
	var prefix, consumer, sort string
	var limit int
	command := &cobra.Command{
		Use: "list QUEUE", Aliases: []string{"ls"}, Short: "List the partitions of a queue by name, depth or age", Args: args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			return a.list(command.Context(), queen.Path("api", "v1", "resources", "queues", given[0], "partitions"),
				values("prefix", prefix, "group", consumer, "sort", sort), "partitions", limit, false, "partitions", partitionColumns)
		},
	}
	f := command.Flags()
	f.StringVar(&prefix, "prefix", "", "only those whose name begins so")
	f.StringVarP(&consumer, "group", "g", "", "figures of this group")
	f.StringVar(&sort, "sort", "", "name (the default), depth or age")
	countFlag(command, &limit, 0)
	must(command.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions([]string{"name", "depth", "age"}, cobra.ShellCompDirectiveNoFileComp)))
	return command
}

func (a *app) partitionShowCommand() *cobra.Command {
	var consumer string
	command := &cobra.Command{
		Use: "show QUEUE PARTITION", Aliases: []string{"describe"}, Short: "Describe a partition, with where it begins and ends and who holds leases", Args: args(cobra.ExactArgs(2)),
		RunE: func(command *cobra.Command, given []string) error {
			return a.showPartition(command.Context(), given[0], given[1], consumer)
		},
	}
	command.Flags().StringVarP(&consumer, "group", "g", "", "figures of this group")
	return command
}

// partitionNamed finds the entry of one partition in the list of its queue.
func (a *app) partitionNamed(ctx context.Context, queue, name, consumer string) (json.RawMessage, lane, error) {
	found, err := a.lanes(ctx, queue, consumer, []string{name})
	if err != nil {
		return nil, lane{}, err
	}
	answer, err := a.look(ctx, queen.Path("api", "v1", "resources", "queues", queue, "partitions"), values("prefix", name, "group", consumer, "limit", fmt.Sprint(pageSize)))
	if err != nil {
		return nil, lane{}, err
	}
	items, _, err := listOf(answer, "partitions")
	if err != nil {
		return nil, lane{}, err
	}
	for _, item := range items {
		if l, err := decode[lane](item); err == nil && l.ID == found[0].ID {
			return item, l, nil
		}
	}
	return nil, lane{}, empty("queue %s has no partition %q", queue, name)
}

func (a *app) showPartition(ctx context.Context, queue, name, consumer string) error {
	item, l, err := a.partitionNamed(ctx, queue, name, consumer)
	if err != nil {
		return err
	}
	edge, err := a.edge(ctx, l.ID)
	if err != nil {
		return err
	}
	leases, err := a.look(ctx, "/api/v1/leases", values("queue", queue, "partition", name))
	if err != nil {
		return err
	}
	held, _, err := listOf(leases, "leases")
	if err != nil {
		return err
	}
	if held == nil {
		held = []json.RawMessage{}
	}
	inner, err := json.Marshal(held)
	if err != nil {
		return err
	}
	whole := append(json.RawMessage(nil), item[:len(item)-1]...)
	whole = fmt.Appendf(whole, `,"queue":%s,"logStart":%d,"endOffset":%d,"leases":%s}`, jsonText(queue), edge.LogStart, edge.End, inner)
	return a.printer.Item(whole)
}

func (a *app) partitionSeekCommand() *cobra.Command {
	to := a.newSeek()
	command := a.destructive(&cobra.Command{
		Use: "seek QUEUE PARTITION", Short: "Move the cursor of a group in one partition", Args: args(cobra.ExactArgs(2)),
		RunE: func(command *cobra.Command, given []string) error {
			if to.group == "" {
				return usage("--group is missing: whose cursor?")
			}
			return a.seek(command.Context(), to, given[0], []string{given[1]})
		},
	})
	command.Flags().StringVarP(&to.group, "group", "g", "", "consumer group")
	to.bind(command)
	return command
}

func (a *app) partitionSkipCommand() *cobra.Command {
	var consumer string
	var count int64
	command := a.destructive(&cobra.Command{
		Use: "skip QUEUE PARTITION", Short: "Let a group pass over the next messages of a partition, which it then never processes",
		Args: args(cobra.ExactArgs(2)),
		RunE: func(command *cobra.Command, given []string) error {
			return a.skip(command.Context(), given[0], given[1], consumer, count)
		},
	})
	command.Flags().StringVarP(&consumer, "group", "g", "", "consumer group")
	command.Flags().Int64VarP(&count, "count", "n", 1, "messages to pass over")
	return command
}

func (a *app) skip(ctx context.Context, queue, partition, consumer string, count int64) error {
	if consumer == "" || count < 1 {
		return usage("--group is missing, or --count is below 1")
	}
	found, err := a.lanes(ctx, queue, consumer, []string{partition})
	if err != nil {
		return err
	}
	pending := found[0].Messages.Pending
	if pending == 0 {
		return empty("group %s has nothing to skip in %s", consumer, partition)
	}
	edge, err := a.edge(ctx, found[0].ID)
	if err != nil {
		return err
	}
	// Pushes between the two reads make the edge later, never the cursor: the figure is taken before it.
	next := edge.End - pending
	again, err := a.lanes(ctx, queue, consumer, []string{partition})
	if err != nil {
		return err
	}
	if again[0].Messages.Pending != pending {
		return differs("the partition is moving: %d messages were pending, now %d; stop its consumers and producers, or try again", pending, again[0].Messages.Pending)
	}
	count = min(count, pending)
	yes, err := a.confirm("let group %s pass over %s of %s/%s, offsets %d to %d", consumer, many(count, "message"), queue, partition, next, next+count-1)
	if !yes || err != nil {
		return err
	}
	return a.item(ctx, http.MethodPost, queen.Path("api", "v1", "consumer-groups", consumer, "queues", queue, "partitions", partition, "seek"), nil, map[string]int64{"offset": next + count})
}

func (a *app) partitionUnblockCommand() *cobra.Command {
	var consumer string
	command := a.destructive(&cobra.Command{
		Use: "unblock QUEUE PARTITION", Short: "End the lease of a partition, or its wait for a redelivery, so that its messages are delivered again at once",
		Args: args(cobra.ExactArgs(2)),
		RunE: func(command *cobra.Command, given []string) error {
			ctx := command.Context()
			found, err := a.lanes(ctx, given[0], "", []string{given[1]})
			if err != nil {
				return err
			}
			yes, err := a.confirm("end the lease of group %s on %s/%s; whoever holds it cannot acknowledge any more", groupOrNone(consumer), given[0], given[1])
			if !yes || err != nil {
				return err
			}
			return a.release(ctx, found[0].ID, consumer, "")
		},
	})
	command.Flags().StringVarP(&consumer, "group", "g", "", "consumer group (default: consumers without one)")
	return command
}

func groupOrNone(consumer string) string {
	if consumer == "" {
		return "(none)"
	}
	return consumer
}
