package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/output"
	"queenmq/queen"
)

func (a *app) pingCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ping", Aliases: []string{"health"}, Short: "See whether the broker and its database answer", Args: args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			start := a.now()
			answer, err := a.call(command.Context(), http.MethodGet, "/health", nil, nil)
			if err != nil {
				return err
			}
			a.remark("answered in %s", output.Short(a.now().Sub(start)))
			return a.printer.Item(answer)
		},
	}
}

func (a *app) versionCommand() *cobra.Command {
	var client bool
	command := &cobra.Command{
		Use: "version", Short: "Show the versions of queenctl and of the broker", Args: args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			versions := map[string]any{"queenctl": ownVersion()}
			if !client {
				answer, err := a.call(command.Context(), http.MethodGet, "/health", nil, nil)
				if errors.Is(err, errExplained) {
					return err
				}
				versions["broker"] = nil
				if err == nil {
					health, err := decode[map[string]any](answer)
					if err != nil {
						return err
					}
					versions["broker"] = health["version"]
				} else {
					a.remark("the broker does not say: %v", err)
				}
			}
			text, err := json.Marshal(versions)
			if err != nil {
				return err
			}
			return a.printer.Item(text)
		},
	}
	command.Flags().BoolVar(&client, "client", false, "that of queenctl only; asks no broker")
	return command
}

// ownVersion is what the build knows of itself.
func ownVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	version := info.Main.Version
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" && len(setting.Value) >= 12 {
			version += " (" + setting.Value[:12] + ")"
		}
	}
	return version
}

var statusColumns = []output.Column{
	output.Col("NAME", "name"), output.Col("NAMESPACE", "namespace"), output.Col("TASK", "task"), output.Num("PARTITIONS", "partitions"), output.Num("PENDING", "pending", "messages.pending"),
	output.Num("PROCESSING", "processing", "messages.processing"), output.Num("COMPLETED", "completed", "messages.completed"), output.Num("DLQ", "dlq", "messages.deadLetter"), output.Num("CONSUMED", "totalConsumed").InWide(),
}

func (a *app) statusCommand() *cobra.Command {
	var since, until moment
	since.now, until.now = a.now, a.now
	var namespace, task string
	command := &cobra.Command{
		Use: "status [QUEUE]", Short: "Show counters of all queues, or of one partition by partition", Args: args(cobra.MaximumNArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			if len(given) > 0 {
				answer, err := a.call(command.Context(), http.MethodGet, queen.Path("api", "v1", "status", "queues", given[0]), nil, nil)
				if err != nil {
					return err
				}
				if a.printer.Format.Whole() {
					return a.printer.Item(answer)
				}
				return a.events(answer, "partitions", "partitions", partitionColumns)
			}
			return a.status(command.Context(), values("from", since.String(), "to", until.String(), "namespace", namespace, "task", task))
		},
	}
	command.Flags().Var(&since, "since", "start of the throughput")
	command.Flags().Var(&until, "until", "end of the throughput")
	command.Flags().StringVar(&namespace, "namespace", "", "of this namespace")
	command.Flags().StringVar(&task, "task", "", "of this task")
	return command
}

func (a *app) status(ctx context.Context, query url.Values) error {
	answer, err := a.call(ctx, http.MethodGet, "/api/v1/status", query, nil)
	if err != nil {
		return err
	}
	queues, _, err := listOf(answer, "queues")
	if err != nil {
		return err
	}
	if !a.printer.Format.Table() {
		if a.printer.Format.Whole() {
			return a.printer.Item(answer)
		}
		return a.printer.List("queues", queues, nil)
	}
	decoded, err := output.Decode(answer)
	if err != nil {
		return err
	}
	cell := func(path string) string { return output.Cell(decoded, path) }
	fmt.Fprintf(a.stdout, "messages: %s pending, %s processing, %s completed, %s dead letters\nleases:   %s active on %s partitions\n",
		cell("messages.pending"), cell("messages.processing"), cell("messages.completed"), cell("messages.deadLetter"), cell("leases.active"), cell("leases.partitionsWithLeases"))
	fmt.Fprintf(a.stdout, "figures:  %s\n\n", age(cell("statsAge")))
	return a.show("queues", queues, statusColumns)
}

// age says how old figures are; brokers write -1 while they have none.
func age(seconds string) string {
	if seconds == "-1" || seconds == "-" {
		return "not yet computed; queenctl api POST /api/v1/stats/refresh does it"
	}
	return seconds + " s old"
}

func (a *app) brokersCommand() *cobra.Command {
	return &cobra.Command{
		Use: "brokers", Aliases: []string{"broker"}, Short: "List the brokers of the database", Args: args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			answer, err := a.call(command.Context(), http.MethodGet, "/api/v1/system/brokers", nil, nil)
			if err != nil {
				return err
			}
			return a.events(answer, "brokers", "brokers", []output.Column{
				output.Col("ID", "id"), output.Col("ALIVE", "alive"), output.Col("THIS", "self"), output.Col("VERSION", "version"), output.Col("ADDRESS", "address"),
				output.Col("STARTED", "startedAt"), output.Col("LAST-SEEN", "lastSeen"), output.Col("INSTANCE", "instance").InWide(),
			})
		},
	}
}

func (a *app) maintenanceCommand() *cobra.Command {
	command := &cobra.Command{Use: "maintenance", Short: "Show and turn the switches that stop all pushes or all pops", RunE: group}
	status := &cobra.Command{
		Use: "status", Aliases: []string{"show", "get"}, Short: "Show the switches", Args: args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			return a.item(command.Context(), http.MethodGet, "/api/v1/system/maintenance", nil, nil)
		},
	}
	command.AddCommand(status,
		a.switchCommand("push", "/api/v1/system/maintenance", "pushes of all brokers go to their disks, to be stored later"),
		a.switchCommand("pop", "/api/v1/system/maintenance/pop", "no pop of any broker delivers anything"))
	return command
}

func (a *app) switchCommand(name, path, effect string) *cobra.Command {
	return a.destructive(&cobra.Command{
		Use: name + " on|off", Short: "Turn the " + name + " switch: while it is on, " + effect, Args: args(cobra.ExactArgs(1)), ValidArgs: []string{"on", "off"},
		RunE: func(command *cobra.Command, given []string) error {
			on := given[0] == "on"
			if !on && given[0] != "off" {
				return usage("give on or off, not %q", given[0])
			}
			if on {
				if yes, err := a.confirm("turn %s maintenance on: %s", name, effect); !yes || err != nil {
					return err
				}
			}
			return a.item(command.Context(), http.MethodPost, path, nil, map[string]bool{"enabled": on})
		},
	})
}

// series are the analytics routes by the name that follows /api/v1/analytics.
var series = []string{"queue-lag", "queue-ops", "queue-parked-replicas", "retention", "system-metrics", "worker-metrics", "postgres-stats"}

func (a *app) analyticsCommand() *cobra.Command {
	since, until := moment{now: a.now}, moment{now: a.now}
	var queue string
	command := &cobra.Command{
		Use: "analytics NAME", Short: "Show a series of figures as the broker keeps it, or the overview",
		Long:      "Show figures over time. NAME is overview, or one of " + strings.Join(series, ", ") + ". Use -o json.",
		ValidArgs: append([]string{"overview"}, series...), Args: args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			path := "/api/v1/resources/overview"
			if given[0] != "overview" {
				if !slices.Contains(series, given[0]) {
					return usage("there is no series %q; there are overview, %s", given[0], strings.Join(series, ", "))
				}
				path = queen.Path("api", "v1", "analytics", given[0])
			}
			return a.item(command.Context(), http.MethodGet, path, values("from", since.String(), "to", until.String(), "queue", queue), nil)
		},
	}
	command.Flags().Var(&since, "since", "start")
	command.Flags().Var(&until, "until", "end")
	command.Flags().StringVar(&queue, "queue", "", "of this queue")
	return command
}

func (a *app) metricsCommand() *cobra.Command {
	var prometheus bool
	command := &cobra.Command{
		Use: "metrics", Short: "Show the figures of the broker's process", Args: args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			if !prometheus {
				return a.item(command.Context(), http.MethodGet, "/metrics", nil, nil)
			}
			answer, err := a.call(command.Context(), http.MethodGet, "/metrics/prometheus", nil, nil)
			if err != nil {
				return err
			}
			_, err = a.stdout.Write(answer)
			return err
		},
	}
	command.Flags().BoolVar(&prometheus, "prometheus", false, "in the Prometheus text format, with the figures of the queues")
	return command
}
