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

var groupColumns = []output.Column{
	output.Col("NAME", "name"), output.Col("QUEUE", "queue", "queueName"), output.Num("MEMBERS", "members"), output.Num("PARTITIONS", "partitionCursors", "partitions"),
	output.Num("LAGGING", "partitionsWithLag"), output.Num("LAG", "lagMessages", "totalLag"), output.Num("LAG-SECONDS", "lagSeconds", "maxTimeLag"), output.Col("STATE", "state"),
	output.Col("STARTED", "subscriptionTimestamp").InWide(), output.Col("MODE", "subscriptionMode").InWide(),
}

func (a *app) groupCommand() *cobra.Command {
	command := &cobra.Command{
		Use: "group", Aliases: []string{"groups", "cg", "consumer-group"}, Short: "List, show, seek, clone and delete consumer groups",
		RunE: group,
	}
	command.AddCommand(a.groupListCommand(), a.groupShowCommand(), a.lagCommand(), a.groupSeekCommand(), a.groupResetCommand(), a.groupCloneCommand(), a.groupSubscriptionCommand(), a.groupDeleteCommand())
	return command
}

func (a *app) groupListCommand() *cobra.Command {
	var queue string
	command := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the consumer groups of each queue with their lag", Args: args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			items, err := a.groups(command.Context(), "", queue)
			if err != nil {
				return err
			}
			if err := a.show("", items, groupColumns); err != nil {
				return err
			}
			if len(items) == 0 {
				return empty("no consumer groups")
			}
			return nil
		},
	}
	command.Flags().StringVar(&queue, "queue", "", "of this queue")
	return command
}

// groups reads the list of groups, of one name and one queue where they are given.
func (a *app) groups(ctx context.Context, name, queue string) ([]json.RawMessage, error) {
	answer, err := a.call(ctx, http.MethodGet, "/api/v1/consumer-groups", nil, nil)
	if err != nil {
		return nil, err
	}
	items, _, err := listOf(answer, "")
	if err != nil {
		return nil, err
	}
	var kept []json.RawMessage
	for _, item := range items {
		g, err := decode[struct{ Name, QueueName string }](item)
		if err != nil {
			return nil, err
		}
		if (name == "" || g.Name == name) && (queue == "" || g.QueueName == queue) {
			kept = append(kept, item)
		}
	}
	return kept, nil
}

func (a *app) groupShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show GROUP", Aliases: []string{"describe"}, Short: "Describe a group, queue by queue and partition by partition", Args: args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			answer, err := a.call(command.Context(), http.MethodGet, queen.Path("api", "v1", "consumer-groups", given[0]), nil, nil)
			if err != nil {
				return err
			}
			queues, rows, err := groupRows(answer)
			if err != nil {
				return err
			}
			if queues == 0 {
				return empty("no consumer group %s", given[0])
			}
			if a.printer.Format.Whole() {
				return a.printer.Item(answer)
			}
			return a.printer.List("partitions", rows, []output.Column{
				output.Col("QUEUE", "queue"), output.Col("PARTITION", "partition"), output.Num("LAG", "offsetLag"), output.Num("LAG-SECONDS", "timeLagSeconds"),
				output.Num("CONSUMED", "totalConsumed"), output.Col("LEASED", "leaseActive"), output.Col("LAST-CONSUMED", "lastConsumedAt").InWide(), output.Col("WORKER", "workerId").InWide(),
			})
		},
	}
}

// groupRows turns {"queue": {"partitions": [...]}} into rows that name their queue.
func groupRows(answer json.RawMessage) (queues int, rows []json.RawMessage, err error) {
	names, values, err := output.Members(answer)
	if err != nil {
		return 0, nil, badAnswer(err)
	}
	for i, name := range names {
		items, _, err := listOf(values[i], "partitions")
		if err != nil {
			return 0, nil, err
		}
		for _, item := range items {
			rows = append(rows, append(fmt.Appendf(nil, `{"queue":%s,`, jsonText(name)), item[1:]...))
		}
	}
	return len(names), rows, nil
}

func (a *app) lagCommand() *cobra.Command {
	var queue string
	var least int
	command := &cobra.Command{
		Use: "lag [GROUP]", Short: "List the partitions that groups are behind in, the worst first", Args: args(cobra.MaximumNArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			answer, err := a.call(command.Context(), http.MethodGet, "/api/v1/consumer-groups/lagging", values("minLagSeconds", fmt.Sprint(least)), nil)
			if err != nil {
				return err
			}
			items, _, err := listOf(answer, "")
			if err != nil {
				return err
			}
			var kept []json.RawMessage
			for _, item := range items {
				l, err := decode[struct {
					Group string `json:"consumer_group"`
					Queue string `json:"queue_name"`
				}](item)
				if err != nil {
					return err
				}
				if (len(given) == 0 || l.Group == given[0]) && (queue == "" || l.Queue == queue) {
					kept = append(kept, item)
				}
			}
			if err := a.show("", kept, []output.Column{
				output.Col("GROUP", "consumer_group", "name"), output.Col("QUEUE", "queue_name", "queue"), output.Col("PARTITION", "partition_name"),
				output.Num("LAG", "offset_lag", "lagMessages"), output.Num("LAG-SECONDS", "time_lag_seconds", "lagSeconds"), output.Col("OLDEST", "oldest_unconsumed_at").InWide(),
				output.Col("WORKER", "worker_id").InWide(),
			}); err != nil {
				return err
			}
			if len(kept) == 0 {
				return empty("nobody lags")
			}
			return nil
		},
	}
	command.Flags().StringVar(&queue, "queue", "", "in this queue")
	command.Flags().IntVar(&least, "min-seconds", 0, "only lags of more than this many seconds")
	return command
}

func (a *app) groupSeekCommand() *cobra.Command {
	to := a.newSeek()
	var partitions []string
	command := a.destructive(&cobra.Command{
		Use: "seek GROUP QUEUE", Short: "Move the cursors of a group in a queue",
		Long: `Move a group in a queue to the end, to a time, or to an offset. Its leases end and its retry counts are reset. --preview shows how many
messages would be delivered again and how many skipped.`,
		Example: "  queenctl group seek billing orders --to 2026-11-01T10:00:00Z --preview",
		Args:    args(cobra.ExactArgs(2)),
		RunE: func(command *cobra.Command, given []string) error {
			to.group = given[0]
			return a.seek(command.Context(), to, given[1], partitions)
		},
	})
	to.bind(command)
	command.Flags().StringArrayVarP(&partitions, "partition", "p", nil, "only this partition; may be repeated")
	return command
}

func (a *app) groupResetCommand() *cobra.Command {
	return a.destructive(&cobra.Command{
		Use: "reset GROUP QUEUE", Short: "Move a group back to the oldest message of a queue", Args: args(cobra.ExactArgs(2)),
		RunE: func(command *cobra.Command, given []string) error {
			return a.seek(command.Context(), &seek{group: given[0], hasOffset: true}, given[1], nil)
		},
	})
}

func (a *app) groupCloneCommand() *cobra.Command {
	var queue string
	command := a.destructive(&cobra.Command{
		Use: "clone GROUP NEW-GROUP", Short: "Put a group where another one is, in one queue",
		Long: `Put the cursors of NEW-GROUP in a queue where those of GROUP are. While GROUP consumes, the clone starts at or before where it is:
it may see a message that GROUP has just finished, and misses none.`,
		Args: args(cobra.ExactArgs(2)),
		RunE: func(command *cobra.Command, given []string) error {
			if queue == "" || given[0] == given[1] {
				return usage("--queue is missing, or both groups are the same")
			}
			return a.cloneGroup(command.Context(), given[0], given[1], queue)
		},
	})
	command.Flags().StringVar(&queue, "queue", "", "queue")
	return command
}

func (a *app) cloneGroup(ctx context.Context, from, to, queue string) error {
	lanes, err := a.lanes(ctx, queue, "", nil)
	if err != nil {
		return err
	}
	yes, err := a.confirm("put group %s where %s is in %s of %s", to, from, many(len(lanes), "partition"), queue)
	if !yes || err != nil {
		return err
	}
	progress := a.progress("moved", "partitions", int64(len(lanes)))
	for _, l := range lanes {
		// First the end, then what is pending before it: whatever happens in between makes the clone start earlier.
		edge, err := a.edge(ctx, l.ID)
		if err != nil {
			return err
		}
		now, err := a.lanes(ctx, queue, from, []string{l.Name})
		if err != nil {
			return err
		}
		offset := max(edge.End-now[0].Messages.Pending, edge.LogStart)
		if _, err := a.call(ctx, http.MethodPost, seekPath(to, queue, &l.Name), nil, map[string]int64{"offset": offset}); err != nil {
			return err
		}
		progress.Add(1)
	}
	progress.Finish()
	return a.printer.Item(fmt.Appendf(nil, `{"consumerGroup":%s,"clonedFrom":%s,"queue":%s,"partitions":%d}`, jsonText(to), jsonText(from), jsonText(queue), len(lanes)))
}

func (a *app) groupSubscriptionCommand() *cobra.Command {
	at := moment{now: a.now}
	command := &cobra.Command{
		Use: "subscription GROUP", Short: "Change the time from which a group reads partitions that it has not touched", Args: args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			if at.at.IsZero() {
				return usage("--from is missing")
			}
			return a.item(command.Context(), http.MethodPost, queen.Path("api", "v1", "consumer-groups", given[0], "subscription"), nil, map[string]string{"subscriptionTimestamp": at.String()})
		},
	}
	command.Flags().Var(&at, "from", "the time")
	return command
}

func (a *app) groupDeleteCommand() *cobra.Command {
	var queue string
	var keep bool
	command := a.destructive(&cobra.Command{
		Use: "rm GROUP", Aliases: []string{"delete"}, Short: "Forget a group: its cursors, leases and subscription", Args: args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			return a.deleteGroup(command.Context(), given[0], queue, keep)
		},
	})
	command.Flags().StringVar(&queue, "queue", "", "in this queue only")
	command.Flags().BoolVar(&keep, "keep-subscription", false, "keep where the group starts on new partitions")
	return command
}

func (a *app) deleteGroup(ctx context.Context, name, queue string, keep bool) error {
	path := queen.Path("api", "v1", "consumer-groups", name)
	if queue != "" {
		path = queen.Path("api", "v1", "consumer-groups", name, "queues", queue)
	}
	if !a.flags.explain {
		items, err := a.groups(ctx, name, queue)
		if err != nil {
			return err
		}
		if len(items) == 0 {
			return empty("no consumer group %s", name)
		}
		var lag int64
		for _, item := range items {
			g, err := decode[struct{ TotalLag int64 }](item)
			if err != nil {
				return err
			}
			lag += g.TotalLag
		}
		yes, err := a.confirm("forget group %s in %s; it lags %s, and starts anew when it pops again", name, many(len(items), "queue"), many(lag, "message"))
		if !yes || err != nil {
			return err
		}
	}
	query := values()
	if keep {
		query.Set("deleteMetadata", "false")
	}
	return a.item(ctx, http.MethodDelete, path, query, nil)
}
