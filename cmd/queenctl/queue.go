package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/manifest"
	"queenmq/cmd/queenctl/output"
	"queenmq/queen"
)

var queueColumns = []output.Column{
	output.Col("NAME", "name"), output.Col("NAMESPACE", "namespace"), output.Col("TASK", "task"), output.Num("PARTITIONS", "partitionCount", "partitions"),
	output.Num("MESSAGES", "messages.total"), output.Num("PENDING", "messages.pending"), output.Num("PROCESSING", "messages.processing").InWide(),
	output.Num("BYTES", "retainedBytes").InWide(), output.Num("PRIORITY", "priority").InWide(), output.Num("LEASE", "leaseTime"), output.Num("RETRIES", "retryLimit"),
	output.Num("MAX-SIZE", "maxSize"), output.Col("ENCRYPTED", "encryptionEnabled"), output.Col("CREATED", "createdAt").InWide(),
}

func (a *app) queueCommand() *cobra.Command {
	command := &cobra.Command{Use: "queue", Aliases: []string{"queues", "q"}, Short: "List, show, create, change, purge and delete queues", RunE: group}
	command.AddCommand(a.queueListCommand(), a.queueShowCommand(), a.queueChangeCommand("create", "Create a queue"),
		a.queueChangeCommand("set", "Change options of a queue; the others stay"), a.queueChangeCommand("configure", "Create a queue, or change its options"),
		a.queueDeleteCommand(), a.queuePurgeCommand(), a.queueDepthCommand(), a.queueCapacityCommand())
	return command
}

func (a *app) queueListCommand() *cobra.Command {
	var namespace, task string
	var cached bool
	var limit int
	command := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the queues, the newest first", Args: args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			query := values("namespace", namespace, "task", task)
			if cached {
				query.Set("stats", "cached")
			}
			return a.list(command.Context(), "/api/v1/resources/queues", query, "queues", limit, true, "queues", queueColumns)
		},
	}
	command.Flags().StringVar(&namespace, "namespace", "", "of this namespace")
	command.Flags().StringVar(&task, "task", "", "of this task")
	command.Flags().BoolVar(&cached, "cached", false, "figures as of the last statistics: cheap for many queues")
	countFlag(command, &limit, 0)
	return command
}

func (a *app) queueShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show QUEUE", Aliases: []string{"describe", "get"}, Short: "Describe a queue with its options", Args: args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			answer, err := a.call(command.Context(), http.MethodGet, queen.Path("api", "v1", "resources", "queues", given[0]), nil, nil)
			if err != nil {
				return err
			}
			if !a.printer.Format.Table() {
				return a.printer.Item(answer)
			}
			short, err := output.Without(answer, "partitions")
			if err != nil {
				return badAnswer(err)
			}
			return a.printer.Item(short)
		},
	}
}

// queueChange are the flags of create, set and configure.
type queueChange struct {
	verb, queue, namespace, task string
	options                      map[string]json.RawMessage
	replace                      bool
}

func (a *app) queueChangeCommand(verb, short string) *cobra.Command {
	change := queueChange{verb: verb, options: map[string]json.RawMessage{}}
	var given []string
	command := &cobra.Command{
		Use: verb + " QUEUE", Short: short,
		Long:    short + ".\n\nOptions have a flag each; --option name=value sets any by its name. Unknown options are refused. --preview shows what would change.",
		Example: fmt.Sprintf("  queenctl queue %s orders --lease-time 60 --retry-limit 5 --preview", verb),
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, names []string) error {
			change.queue = names[0]
			for _, pair := range given {
				name, value, ok := strings.Cut(pair, "=")
				if !ok {
					return usage("--option takes name=value, not %q", pair)
				}
				change.options[name] = literal(value)
			}
			return a.changeQueue(command.Context(), change)
		},
	}
	f := command.Flags()
	f.StringVar(&change.namespace, "namespace", "", "namespace")
	f.StringVar(&change.task, "task", "", "task")
	f.StringArrayVar(&given, "option", nil, "name=value; may be repeated")
	f.BoolVar(&change.replace, "replace", false, "set every option that is not named back to its default")
	f.BoolVar(&a.flags.preview, "preview", false, "show what would change and change nothing")
	f.BoolVar(&a.flags.preview, "dry-run", false, "the same as --preview")
	for _, option := range manifest.Options {
		f.Var(optionValue{option, change.options}, option.Flag(), option.Meaning)
		if option.Kind == manifest.Bool {
			f.Lookup(option.Flag()).NoOptDefVal = "true"
		}
	}
	return command
}

// literal is a JSON value as it is, and anything else as a text.
func literal(text string) json.RawMessage {
	if json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	return json.RawMessage(jsonText(text))
}

// optionValue is the flag of one queue option.
type optionValue struct {
	option manifest.Option
	into   map[string]json.RawMessage
}

func (v optionValue) String() string { return "" }
func (v optionValue) Type() string   { return string(v.option.Kind) }

func (v optionValue) Set(text string) error {
	value := json.RawMessage(text)
	if err := v.option.Check(value); err != nil {
		return err
	}
	v.into[v.option.Name] = value
	return nil
}

func (a *app) changeQueue(ctx context.Context, change queueChange) error {
	current, exists, err := a.queueOptions(ctx, change.queue)
	if err != nil {
		return err
	}
	switch {
	case change.verb == "create" && exists:
		return differs("the queue %s exists; queue set changes it", change.queue)
	case change.verb == "set" && !exists:
		return empty("there is no queue %s; queue create makes it", change.queue)
	}
	if a.flags.preview {
		return a.previewChange(change, current, exists)
	}
	body := map[string]any{"queue": change.queue, "strict": true, "options": change.options}
	for name, value := range map[string]string{"namespace": change.namespace, "task": change.task} {
		if value != "" {
			body[name] = value
		}
	}
	if change.replace {
		body["mode"] = "replace"
	}
	answer, err := a.call(ctx, http.MethodPost, "/api/v1/configure", nil, body)
	if err != nil {
		return err
	}
	result, err := decode[struct {
		NotApplied []string `json:"notApplied"`
	}](answer)
	if err != nil {
		return err
	}
	for _, name := range result.NotApplied {
		a.remark("note: this broker stores the option %s and does not act on it", output.Clean(name))
	}
	return a.printer.Item(answer)
}

func (a *app) previewChange(change queueChange, current map[string]json.RawMessage, exists bool) error {
	if !exists {
		fmt.Fprintf(a.stdout, "would create the queue %s\n", output.Clean(change.queue))
	}
	changed := 0
	for _, name := range slices.Sorted(maps.Keys(change.options)) {
		before, ok := current[name]
		if !ok {
			before = json.RawMessage("default")
		}
		if string(before) != string(change.options[name]) {
			changed++
			fmt.Fprintf(a.stdout, "%s: %s -> %s\n", output.Clean(name), before, output.Clean(string(change.options[name])))
		}
	}
	if exists && changed == 0 && !change.replace {
		a.remark("nothing would change")
	}
	if change.replace && exists {
		a.remark("options that are not named would go back to their defaults")
	}
	return nil
}

// queueOptions reads the stored options of a queue; false when there is no such queue.
func (a *app) queueOptions(ctx context.Context, queue string) (map[string]json.RawMessage, bool, error) {
	answer, err := a.look(ctx, queen.Path("api", "v1", "resources", "queues", queue, "options"), nil)
	if isNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	stored, err := decode[struct{ Options map[string]json.RawMessage }](answer)
	return stored.Options, true, err
}

func (a *app) queueDeleteCommand() *cobra.Command {
	return a.destructive(&cobra.Command{
		Use: "rm QUEUE", Aliases: []string{"delete"}, Short: "Delete a queue with all its messages, groups and dead letters", Args: args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			ctx, path := command.Context(), queen.Path("api", "v1", "resources", "queues", given[0])
			answer, err := a.look(ctx, path, nil)
			if err != nil {
				return err
			}
			queue, err := decode[struct {
				Partitions []json.RawMessage
				Totals     struct{ Total, Pending, DeadLetter int64 }
			}](answer)
			if err != nil {
				return err
			}
			yes, err := a.confirm("delete the queue %s with %s and %s, %d unread, and %s", given[0], many(len(queue.Partitions), "partition"), many(queue.Totals.Total, "message"), queue.Totals.Pending, many(queue.Totals.DeadLetter, "dead letter"))
			if !yes || err != nil {
				return err
			}
			return a.item(ctx, http.MethodDelete, path, nil, nil)
		},
	})
}

func (a *app) queuePurgeCommand() *cobra.Command {
	var mode, partition string
	command := a.destructive(&cobra.Command{
		Use: "purge QUEUE", Short: "Delete the consumed messages of a queue, or all of them",
		Long: "Delete stored messages; queue, partitions and groups stay. --mode consumed (the default) deletes what every group has passed, --mode all everything.",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			return a.purgeQueue(command.Context(), given[0], partition, mode)
		},
	})
	command.Flags().StringVar(&mode, "mode", "consumed", "consumed or all")
	command.Flags().StringVarP(&partition, "partition", "p", "", "only this partition")
	return command
}

// purged is the answer of a purge.
type purged struct {
	Partitions int   `json:"partitions"`
	Messages   int64 `json:"messages"`
	Unread     int64 `json:"unread"`
	Done       bool  `json:"done"`
}

func (a *app) purgeQueue(ctx context.Context, queue, partition, mode string) error {
	path := queen.Path("api", "v1", "resources", "queues", queue, "purge")
	body := map[string]any{"mode": mode}
	if partition != "" {
		body["partition"] = partition
	}
	count := maps.Clone(body)
	count["dryRun"] = true
	var total purged
	if !a.flags.explain {
		answer, err := a.call(ctx, http.MethodPost, path, nil, count)
		if err != nil {
			return err
		}
		if total, err = decode[purged](answer); err != nil {
			return err
		}
		if total.Messages == 0 {
			return empty("there is nothing to purge in %s", queue)
		}
	}
	if yes, err := a.confirm("delete %s of %s, %d unread", many(total.Messages, "message"), queue, total.Unread); !yes || err != nil {
		return err
	}
	progress := a.progress("deleted", "messages", total.Messages)
	var sum purged
	for !sum.Done {
		answer, err := a.call(ctx, http.MethodPost, path, nil, body)
		if err != nil {
			return err
		}
		step, err := decode[purged](answer)
		if err != nil {
			return err
		}
		sum = purged{max(sum.Partitions, step.Partitions), sum.Messages + step.Messages, sum.Unread + step.Unread, step.Done}
		progress.Set(sum.Messages, 0, "")
	}
	progress.Finish()
	return a.printer.Item(fmt.Appendf(nil, `{"queue":%s,"messages":%d,"unread":%d}`, jsonText(queue), sum.Messages, sum.Unread))
}

func (a *app) queueDepthCommand() *cobra.Command {
	var consumer string
	command := &cobra.Command{
		Use: "depth QUEUE", Short: "Count what a group has not consumed, partition by partition", Args: args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			answer, err := a.call(command.Context(), http.MethodGet, queen.Path("api", "v1", "resources", "queues", given[0], "depth"), values("group", consumer), nil)
			if err != nil {
				return err
			}
			if a.printer.Format.Whole() {
				return a.printer.Item(answer)
			}
			return a.events(answer, "partitions", "messages to consume", []output.Column{output.Col("PARTITION", "partition"), output.Num("DEPTH", "depth"), output.Col("PARTITION-ID", "partitionId").InWide()})
		},
	}
	command.Flags().StringVarP(&consumer, "group", "g", "", "depth of this group")
	return command
}

func (a *app) queueCapacityCommand() *cobra.Command {
	var limit int
	command := &cobra.Command{
		Use: "capacity", Short: "List the queues with a maxSize and the room they have", Args: args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			return a.list(command.Context(), "/api/v1/resources/capacity", nil, "queues", limit, true, "queues with a maxSize", []output.Column{
				output.Col("QUEUE", "queue"), output.Num("MAX-SIZE", "maxSize"), output.Num("DEPTH", "queueDepth"), output.Num("ROOM", "remainingCapacity"), output.Col("FULL", "full"),
			})
		},
	}
	countFlag(command, &limit, 0)
	return command
}
