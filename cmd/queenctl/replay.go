package main

import (
	"context"

	"github.com/spf13/cobra"
)

func (a *app) replayCommand() *cobra.Command {
	var consumer, into string
	var partitions []string
	var rate float64
	from, to := moment{now: a.now}, moment{now: a.now}
	command := a.destructive(&cobra.Command{
		Use: "replay QUEUE", Short: "Deliver stored messages of a time again, after counting them",
		Long: `Deliver messages again. With --group the group's cursors go back to --from: it receives everything since then once more. With --into the
messages stored between --from and --to are copied into another queue, and no cursor moves: a cursor has no end at which a replay could
stop, so --to needs --into. The count comes first either way.`,
		Example: "  queenctl replay orders --group billing --from 2026-11-01T10:00Z --preview\n  queenctl replay orders --from 2d --to 1d --into orders-replay --yes",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			switch {
			case from.at.IsZero():
				return usage("--from is missing")
			case (consumer == "") == (into == ""):
				return usage("give either --group, whose cursors go back, or --into, a queue to copy into")
			case into == "" && !to.at.IsZero():
				return usage("a cursor has no end: --to needs --into, which copies the messages of a time into another queue")
			case into == given[0]:
				return usage("--into must be another queue")
			case !to.at.IsZero() && !to.at.After(from.at):
				return usage("--to must be later than --from")
			}
			return a.replay(command.Context(), given[0], consumer, into, partitions, from, to, rate)
		},
	})
	f := command.Flags()
	f.StringVarP(&consumer, "group", "g", "", "group that receives the messages again")
	f.StringVar(&into, "into", "", "queue to copy the messages into")
	f.Var(&from, "from", "start: a time, or how long ago")
	f.Var(&to, "to", "end, with --into")
	f.StringArrayVarP(&partitions, "partition", "p", nil, "only this partition; may be repeated")
	f.Float64Var(&rate, "rate", 0, "with --into: most messages a second; 0 is any number")
	return command
}

func (a *app) replay(ctx context.Context, queue, consumer, into string, partitions []string, from, to moment, rate float64) error {
	if into != "" {
		return a.copy(ctx, copyOptions{from: queue, to: into, partitions: partitions, since: from.at, until: to.at, rate: rate, batch: 500, newIDs: true}, "replay")
	}
	return a.seek(ctx, &seek{group: consumer, at: from}, queue, partitions)
}
