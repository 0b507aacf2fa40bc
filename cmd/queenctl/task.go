package main

import (
	"context"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/output"
	"queenmq/queen"
)

// watchEvery is how often a running task is looked at.
const watchEvery = 200 * time.Millisecond

func (a *app) taskCommand() *cobra.Command {
	command := &cobra.Command{Use: "task", Short: "List, watch and cancel bulk work over dead letters", RunE: group}
	var limit int
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the tasks, the newest first", Args: args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			return a.list(command.Context(), "/api/v1/dlq/tasks", nil, "tasks", limit, false, "tasks", []output.Column{
				output.Col("CREATED", "createdAt"), output.Col("KIND", "kind"), output.Col("STATE", "state"), output.Num("TOTAL", "total"), output.Num("MOVED", "moved"),
				output.Num("DELETED", "deleted"), output.Num("DUPLICATE", "duplicate"), output.Num("REMAINING", "remaining"), output.Col("ID", "id"), output.Col("BY", "createdBy").InWide(), output.Col("ERROR", "lastError"),
			})
		},
	}
	countFlag(list, &limit, 50)
	show := &cobra.Command{
		Use: "show ID", Short: "Show a task with its progress", Args: args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			return a.item(command.Context(), http.MethodGet, queen.Path("api", "v1", "dlq", "tasks", given[0]), nil, nil)
		},
	}
	watch := &cobra.Command{
		Use: "watch ID", Short: "Wait for the end of a task and show its progress", Args: args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			return a.watch(command.Context(), given[0])
		},
	}
	cancel := &cobra.Command{
		Use: "cancel ID", Short: "Stop a task; what it has done stays done", Args: args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			return a.item(command.Context(), http.MethodPost, queen.Path("api", "v1", "dlq", "tasks", given[0], "cancel"), nil, nil)
		},
	}
	command.AddCommand(list, show, watch, cancel)
	return command
}

// watch waits for the end of a task. One that was cancelled, or left something, is exit code 5.
func (a *app) watch(ctx context.Context, id string) error {
	var progress *output.Progress
	for {
		answer, err := a.call(ctx, http.MethodGet, queen.Path("api", "v1", "dlq", "tasks", id), nil, nil)
		if err != nil {
			return err
		}
		t, err := decode[task](answer)
		if err != nil {
			return err
		}
		if progress == nil {
			progress = a.progress(map[string]string{"purge": "deleted", "redrive": "moved"}[t.Kind], "dead letters", t.Total)
		}
		note := ""
		if t.LastError != nil {
			note = *t.LastError
		}
		progress.Set(t.done(), t.Total, note)
		if t.State != "pending" && t.State != "running" {
			progress.Finish()
			if err := a.printer.Item(answer); err != nil {
				return err
			}
			return ended(&t)
		}
		if err := sleep(ctx, watchEvery); err != nil {
			return err
		}
	}
}

func ended(t *task) error {
	switch {
	case t.State != "done":
		return differs("the task is %s; %d of %d are done", t.State, t.done(), t.Total)
	case t.Duplicate+t.Skipped > 0:
		return differs("%d dead letters stayed: %d are in the queue already, %d could not be moved", t.Duplicate+t.Skipped, t.Duplicate, t.Skipped)
	}
	return nil
}
