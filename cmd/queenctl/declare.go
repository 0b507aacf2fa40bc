package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/manifest"
	"queenmq/cmd/queenctl/output"
	"queenmq/queen"
)

func (a *app) exportCommand() *cobra.Command {
	var namespace string
	return withNamespace(&cobra.Command{
		Use: "export [QUEUE...]", Short: "Write the queues and their options as declared configuration (YAML)",
		Example: "  queenctl export > queen.yaml",
		RunE: func(command *cobra.Command, names []string) error {
			there, err := a.there(command.Context(), names, namespace)
			if err != nil {
				return err
			}
			text, err := manifest.Write(there)
			if err != nil {
				return err
			}
			if _, err = a.stdout.Write(text); err != nil {
				return err
			}
			if len(there.Queues) == 0 {
				return empty("no queues")
			}
			return nil
		},
	}, &namespace)
}

func withNamespace(command *cobra.Command, namespace *string) *cobra.Command {
	command.Flags().StringVar(namespace, "namespace", "", "only queues of this namespace")
	return command
}

// manyQueues is how many take long enough for a progress line.
const manyQueues = 100

// there reads the queues of the broker with their options; with names only those that exist among them.
func (a *app) there(ctx context.Context, names []string, namespace string) (manifest.Document, error) {
	var document manifest.Document
	if len(names) == 0 {
		items, _, err := a.pages(ctx, "/api/v1/resources/queues", values("namespace", namespace, "stats", "cached"), "queues", 0, true)
		if err != nil {
			return document, err
		}
		for _, item := range items {
			queue, err := decode[struct{ Name string }](item)
			if err != nil {
				return document, err
			}
			names = append(names, queue.Name)
		}
	}
	var progress *output.Progress
	if len(names) > manyQueues {
		progress = a.progress("read", "queues", int64(len(names)))
	}
	for _, name := range names {
		answer, err := a.look(ctx, queen.Path("api", "v1", "resources", "queues", name, "options"), nil)
		if isNotFound(err) {
			continue
		}
		if err != nil {
			return document, err
		}
		queue, err := decode[struct {
			Namespace, Task *string
			Options         map[string]json.RawMessage
		}](answer)
		if err != nil {
			return document, err
		}
		document.Queues = append(document.Queues, manifest.Queue{Name: name, Namespace: orEmpty(queue.Namespace), Task: orEmpty(queue.Task), Options: queue.Options})
		progress.Add(1)
	}
	progress.Finish()
	manifest.Sort(&document)
	return document, nil
}

func orEmpty(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

// declared reads the files of a configuration.
func (a *app) declared(files []string) (manifest.Document, error) {
	var texts []string
	for _, file := range files {
		text, err := a.readAll(file)
		if err != nil {
			return manifest.Document{}, err
		}
		if len(files) == 1 {
			document, err := manifest.Read(text)
			if err != nil {
				return document, usage("%s:\n%w", file, err)
			}
			return document, nil
		}
		if _, err := manifest.Read(text); err != nil {
			return manifest.Document{}, usage("%s:\n%w", file, err)
		}
		texts = append(texts, strings.TrimSuffix(string(text), "\n"))
	}
	document, err := manifest.Read([]byte(strings.Join(texts, "\n---\n") + "\n"))
	if err != nil {
		return document, usage("the files together:\n%w", err)
	}
	return document, nil
}

// drift compares the broker with a declared configuration.
func (a *app) drift(ctx context.Context, declared manifest.Document, strict bool) ([]manifest.Change, error) {
	var names []string
	if !strict {
		for _, q := range declared.Queues {
			names = append(names, q.Name)
		}
		if len(names) == 0 {
			return nil, nil
		}
	}
	there, err := a.there(ctx, names, "")
	if err != nil {
		return nil, err
	}
	return manifest.Compare(declared, there, strict), nil
}

func (a *app) showChanges(changes []manifest.Change) error {
	if a.printer.Format.Table() {
		for _, change := range changes {
			fmt.Fprintln(a.stdout, output.Clean(change.String()))
		}
		return nil
	}
	items := make([]json.RawMessage, len(changes))
	for i, change := range changes {
		text, err := json.Marshal(change)
		if err != nil {
			return err
		}
		items[i] = text
	}
	return a.printer.List("changes", items, nil)
}

func (a *app) diffDeclared(ctx context.Context, files []string, strict bool) error {
	declared, err := a.declared(files)
	if err != nil {
		return err
	}
	changes, err := a.drift(ctx, declared, strict)
	if err != nil {
		return err
	}
	if err := a.showChanges(changes); err != nil {
		return err
	}
	if len(changes) > 0 {
		return differs("the broker differs from what is declared: %s", many(len(changes), "change"))
	}
	a.remark("the broker is as declared")
	return nil
}

func (a *app) validateCommand() *cobra.Command {
	var files []string
	command := &cobra.Command{
		Use: "validate -f FILE", Short: "Check a declared configuration without a broker", Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			if len(files) == 0 {
				return usage("-f is missing")
			}
			declared, err := a.declared(files)
			if err != nil {
				return err
			}
			a.remark("%s, no faults", many(len(declared.Queues), "queue"))
			return nil
		},
	}
	command.Flags().StringArrayVarP(&files, "file", "f", nil, "declared configuration (YAML); - is stdin; may be repeated")
	return command
}

func (a *app) applyCommand() *cobra.Command {
	var files []string
	var prune bool
	command := a.destructive(&cobra.Command{
		Use: "apply -f FILE", Short: "Make the broker as a declared configuration says",
		Long: `Create the declared queues that are missing and set the declared options. Options that are not declared stay. Unknown keys and options
are refused before anything is changed. --preview lists the changes and exits with 5 when there are any; --prune deletes queues that
are not declared, with their messages, and asks. What still differs afterwards is exit code 5.`,
		Args: args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return usage("-f is missing")
			}
			return a.apply(command.Context(), files, prune)
		},
	})
	command.Flags().StringArrayVarP(&files, "file", "f", nil, "declared configuration (YAML); - is stdin; may be repeated")
	command.Flags().BoolVar(&prune, "prune", false, "delete queues that are not declared, with all their messages")
	return command
}

func (a *app) apply(ctx context.Context, files []string, prune bool) error {
	declared, err := a.declared(files)
	if err != nil {
		return err
	}
	changes, err := a.drift(ctx, declared, prune)
	if err != nil {
		return err
	}
	if len(changes) == 0 {
		a.remark("the broker is as declared")
		return nil
	}
	if err := a.showChanges(changes); err != nil {
		return err
	}
	if a.flags.preview {
		return differs("%s would be made", many(len(changes), "change"))
	}
	touched, doomed := map[string]bool{}, []string{}
	for _, change := range changes {
		if change.Kind == manifest.Undeclared {
			doomed = append(doomed, change.Queue)
		} else {
			touched[change.Queue] = true
		}
	}
	if len(doomed) > 0 {
		if yes, err := a.confirm("delete %s not declared, with all messages in them", many(len(doomed), "queue")); !yes || err != nil {
			return err
		}
	}
	for _, queue := range declared.Queues {
		if touched[queue.Name] {
			if err := a.configure(ctx, queue); err != nil {
				return fmt.Errorf("queue %s: %w", queue.Name, err)
			}
		}
	}
	for _, name := range doomed {
		if _, err := a.call(ctx, http.MethodDelete, queen.Path("api", "v1", "resources", "queues", name), nil, nil); err != nil {
			return fmt.Errorf("queue %s: %w", name, err)
		}
	}
	return a.verifyApplied(ctx, declared, prune)
}

// configure sends what is declared of one queue.
func (a *app) configure(ctx context.Context, queue manifest.Queue) error {
	body := map[string]any{"queue": queue.Name, "strict": true, "options": queue.Options}
	if queue.Namespace != "" {
		body["namespace"] = queue.Namespace
	}
	if queue.Task != "" {
		body["task"] = queue.Task
	}
	_, err := a.call(ctx, http.MethodPost, "/api/v1/configure", nil, body)
	return err
}

// verifyApplied looks whether the broker took everything: a value that it clamps or a queue that somebody changes meanwhile differs.
func (a *app) verifyApplied(ctx context.Context, declared manifest.Document, prune bool) error {
	left, err := a.drift(ctx, declared, prune)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		for _, change := range left {
			fmt.Fprintf(a.stderr, "still differs: %s\n", output.Clean(change.String()))
		}
		return differs("%s left", many(len(left), "difference"))
	}
	a.remark("the broker is as declared")
	return nil
}
