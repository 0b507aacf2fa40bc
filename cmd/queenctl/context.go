package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/output"
	"queenmq/cmd/queenctl/settings"
)

func (a *app) contextCommand() *cobra.Command {
	command := &cobra.Command{Use: "ctx", Aliases: []string{"context", "contexts"}, Short: "Named ways to brokers: add, use, list, test", RunE: group}
	command.AddCommand(a.contextAddCommand(), a.contextUseCommand(), a.contextListCommand(), a.contextRemoveCommand(), a.contextTestCommand())
	return command
}

// contexts reads the file of contexts.
func (a *app) contexts() (string, settings.File, error) {
	path, err := settings.Path(a.getenv)
	if err != nil {
		return "", settings.File{}, usage("%w", err)
	}
	file, err := settings.Load(path)
	if err != nil {
		return "", file, usage("%w", err)
	}
	return path, file, nil
}

func (a *app) contextAddCommand() *cobra.Command {
	var entry settings.Context
	var use bool
	command := &cobra.Command{
		Use: "add NAME", Short: "Add a context, or replace one",
		Long: `Add a context with --server, --tenant and where its token is: --token-file (a file that only its owner may read) or --token-env (an
environment variable). The token itself is never stored in the file of contexts.`,
		Example: "  queenctl ctx add prod --server https://queen.example.com --token-file ~/.queen-token --use",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, given []string) error {
			entry.Server, entry.Tenant, entry.TokenFile, entry.PlainHTTP = a.flags.Server, a.flags.Tenant, a.flags.TokenFile, a.flags.PlainHTTP
			switch {
			case entry.Server == "":
				return usage("--server is missing")
			case entry.TokenFile != "" && entry.TokenEnv != "":
				return usage("give --token-file or --token-env, not both")
			case (entry.CertFile == "") != (entry.KeyFile == ""):
				return usage("--cert-file and --key-file belong together")
			}
			return a.addContext(given[0], entry, use)
		},
	}
	f := command.Flags()
	f.StringVar(&entry.TokenEnv, "token-env", "", "environment variable with the token")
	f.StringVar(&entry.CAFile, "ca-file", "", "authorities (PEM) to trust instead of the system's")
	f.StringVar(&entry.CertFile, "cert-file", "", "client certificate (PEM)")
	f.StringVar(&entry.KeyFile, "key-file", "", "its private key (PEM)")
	f.BoolVar(&use, "use", false, "make it the current context")
	return command
}

// addContext checks that the context makes sense before it is stored: the address, and the token if there is a file with it.
func (a *app) addContext(name string, entry settings.Context, use bool) error {
	path, file, err := a.contexts()
	if err != nil {
		return err
	}
	if file.Contexts == nil {
		file.Contexts = map[string]settings.Context{}
	}
	file.Contexts[name] = entry
	without := entry
	without.TokenEnv = "" // it may be set later
	if _, err := settings.Resolve(settings.File{Current: name, Contexts: map[string]settings.Context{name: without}}, settings.Flags{}, func(string) string { return "" }); err != nil {
		return usage("%w", err)
	}
	if use || file.Current == "" {
		file.Current = name
	}
	if err := file.Save(path); err != nil {
		return err
	}
	a.remark("context %s is stored in %s", name, path)
	return nil
}

func (a *app) contextUseCommand() *cobra.Command {
	return &cobra.Command{
		Use: "use NAME", Short: "Make a context the current one", Args: args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeContexts,
		RunE: func(_ *cobra.Command, given []string) error {
			path, file, err := a.contexts()
			if err != nil {
				return err
			}
			if _, ok := file.Contexts[given[0]]; !ok {
				return usage("there is no context %q", given[0])
			}
			file.Current = given[0]
			return file.Save(path)
		},
	}
}

func (a *app) completeContexts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	_, file, err := a.contexts()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return file.Names(), cobra.ShellCompDirectiveNoFileComp
}

func (a *app) contextListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls", "show"}, Short: "List the contexts", Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			_, file, err := a.contexts()
			if err != nil {
				return err
			}
			var items []json.RawMessage
			for _, name := range file.Names() {
				c := file.Contexts[name]
				token := ""
				switch {
				case c.TokenFile != "":
					token = "file " + c.TokenFile
				case c.TokenEnv != "":
					token = "environment " + c.TokenEnv
				}
				text, err := json.Marshal(map[string]any{"name": name, "current": name == file.Current, "server": c.Server, "tenant": orNull(c.Tenant), "token": orNull(token)})
				if err != nil {
					return err
				}
				items = append(items, text)
			}
			if err := a.show("contexts", items, []output.Column{
				output.Col("CURRENT", "current"), output.Col("NAME", "name"), output.Col("SERVER", "server"), output.Col("TENANT", "tenant"), output.Col("TOKEN", "token"),
			}); err != nil {
				return err
			}
			if len(items) == 0 {
				return empty("no contexts; without one the broker is --server, QUEEN_SERVER or %s", settings.DefaultServer)
			}
			return nil
		},
	}
}

// orNull is nil for the empty text, so that it shows as unknown.
func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func (a *app) contextRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME", Aliases: []string{"delete"}, Short: "Forget a context; its token file stays", Args: args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeContexts,
		RunE: func(_ *cobra.Command, given []string) error {
			path, file, err := a.contexts()
			if err != nil {
				return err
			}
			if _, ok := file.Contexts[given[0]]; !ok {
				return usage("there is no context %q", given[0])
			}
			delete(file.Contexts, given[0])
			if file.Current == given[0] {
				file.Current = ""
			}
			return file.Save(path)
		},
	}
}

func (a *app) contextTestCommand() *cobra.Command {
	return &cobra.Command{
		Use: "test [NAME]", Short: "See whether the broker of a context answers, and what the token may do", Args: args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: a.completeContexts,
		RunE: func(command *cobra.Command, given []string) error {
			if len(given) > 0 {
				a.flags.Context = given[0]
			}
			return a.testContext(command.Context())
		},
	}
}

func (a *app) testContext(ctx context.Context) error {
	if err := a.connect(); err != nil {
		return err
	}
	report := map[string]any{"context": orNull(a.target.Name), "server": a.target.Servers, "tenant": orNull(a.target.Tenant), "token": orNull(a.target.TokenSource)}
	answer, err := a.call(ctx, http.MethodGet, "/health", nil, nil)
	if err != nil {
		return err
	}
	health, err := decode[map[string]any](answer)
	if err != nil {
		return err
	}
	report["broker"], report["database"] = health["version"], health["database"]
	_, err = a.call(ctx, http.MethodGet, "/api/v1/resources/queues", values("limit", "1", "stats", "cached"), nil)
	report["read"] = err == nil
	_, admin := a.call(ctx, http.MethodGet, "/api/v1/system/maintenance", nil, nil)
	report["admin"] = admin == nil
	text, marshalled := json.Marshal(report)
	if marshalled != nil {
		return marshalled
	}
	if shown := a.printer.Item(text); shown != nil {
		return shown
	}
	if err != nil {
		return fmt.Errorf("the broker answers, but not to this token: %w", err)
	}
	return nil
}
