package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/output"
	"queenmq/cmd/queenctl/settings"
	"queenmq/queen"
)

// A process is everything that commands touch of the process they run in.
type process struct {
	args                                          []string
	stdin                                         io.Reader
	stdout, stderr                                io.Writer
	stdinTerminal, stdoutTerminal, stderrTerminal bool
	size                                          func() (columns, lines int)
	getenv                                        func(string) string
	now                                           func() time.Time
}

// An app is one command line being carried out.
type app struct {
	process
	flags struct {
		settings.Flags
		output           string
		timeout          time.Duration
		explain          bool
		quiet, noColor   bool
		preview, yes, nl bool
	}
	printer *output.Printer
	// terminal is stdout, and words stderr, before anything is escaped on its way to them; only progress and top write here.
	terminal, words io.Writer
	client          *queen.Client // nil until connect
	target          settings.Target
}

func newApp(p process) *app { return &app{process: p} }

// run carries out the command line and returns the exit code.
func (a *app) run(ctx context.Context) int {
	a.terminal, a.words = a.stdout, a.stderr
	if a.stdoutTerminal {
		a.stdout = &output.SafeWriter{To: a.stdout}
	}
	if a.stderrTerminal {
		a.stderr = &output.SafeWriter{To: a.stderr}
	}
	buffered := bufio.NewWriterSize(a.stdout, 64<<10)
	a.stdout = buffered
	root := a.root()
	root.SetArgs(a.args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	command, err := root.ExecuteContextC(ctx)
	if flushed := buffered.Flush(); err == nil && flushed != nil {
		err = fmt.Errorf("write the output: %w", flushed)
	}
	if a.client != nil {
		a.client.Close()
	}
	return a.report(ctx, command, err)
}

// flush shows what was written so far, for commands that go on for a while.
func (a *app) flush() error {
	if buffered, ok := a.stdout.(*bufio.Writer); ok {
		return buffered.Flush()
	}
	return nil
}

const about = `queenctl talks to a Queen broker: it moves messages, shows and changes queues, groups and dead letters, compares a broker with
declared configuration, backs it up, and checks it.

Which broker: --server, or QUEEN_SERVER, or the context in use (queenctl ctx), or http://localhost:6632. Its token: --token-file or
QUEEN_TOKEN_FILE, or QUEEN_TOKEN, or what the context names. Destructive commands show what they would do with --preview, and ask;
--yes answers. --explain shows the HTTP request instead of sending it.

Exit codes: 0 done, 1 the command line is wrong, 2 the broker or something on the way failed, 3 a token or a right is missing,
4 there is nothing, 5 what was compared differs, or a part failed.`

// root makes the tree of commands.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use: "queenctl", Short: "The command line of Queen", Long: about, SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error { return a.prepare() },
		RunE:              group,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%w", err) })
	root.CompletionOptions.HiddenDefaultCmd = false
	f := root.PersistentFlags()
	f.StringVarP(&a.flags.Server, "server", "s", "", "address of the broker, or several separated by commas")
	f.StringVar(&a.flags.Context, "context", "", "context to use instead of the current one")
	f.StringVar(&a.flags.TokenFile, "token-file", "", "file with the token, readable by its owner only")
	f.StringVar(&a.flags.Tenant, "tenant", "", "tenant (a UUID), sent as x-queen-tenant")
	f.BoolVar(&a.flags.PlainHTTP, "allow-plain-http", false, "send the token to another machine without TLS")
	f.StringVarP(&a.flags.output, "output", "o", "table", "table, wide, json, ndjson, yaml, template=TEXT (a Go template for each item) or jsonpath=PATH")
	f.DurationVar(&a.flags.timeout, "timeout", 30*time.Second, "longest time for one request, without the time that a pop waits")
	f.BoolVar(&a.flags.explain, "explain", false, "show the HTTP request as a curl command instead of sending it")
	f.BoolVarP(&a.flags.quiet, "quiet", "q", false, "no progress and no remarks on stderr, only errors")
	f.BoolVar(&a.flags.noColor, "no-color", false, "no bold and no colors in top")
	must(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(output.Formats, cobra.ShellCompDirectiveNoFileComp)))
	root.AddGroup(
		&cobra.Group{ID: "data", Title: "Messages:"}, &cobra.Group{ID: "lanes", Title: "Queues and groups:"},
		&cobra.Group{ID: "declare", Title: "Declared configuration:"}, &cobra.Group{ID: "operate", Title: "Operating:"},
	)
	for id, commands := range map[string][]*cobra.Command{
		"data":    {a.pushCommand(), a.popCommand(), a.ackCommand(), a.nackCommand(), a.extendCommand(), a.transactionCommand(), a.peekCommand(), a.tailCommand(), a.getCommand(), a.copyCommand(), a.messagesCommand(), a.traceCommand(), a.tracesCommand(), a.replayCommand(), a.deadLetterCommand()},
		"lanes":   {a.queueCommand(), a.partitionCommand(), a.groupCommand(), a.leaseCommand(), a.namesCommand("namespaces", "namespace"), a.namesCommand("tasks", "task"), a.lagCommand()},
		"declare": {a.exportCommand(), a.diffCommand(), a.applyCommand(), a.validateCommand(), a.backupCommand(), a.restoreCommand()},
		"operate": {a.contextCommand(), a.pingCommand(), a.statusCommand(), a.topCommand(), a.eventsCommand(), a.doctorCommand(), a.checkCommand(), a.taskCommand(), a.maintenanceCommand(), a.brokersCommand(), a.analyticsCommand(), a.metricsCommand(), a.benchCommand(), a.keyCommand(), a.versionCommand(), a.apiCommand(), a.manCommand()},
	} {
		for _, command := range commands {
			command.GroupID = id
			root.AddCommand(command)
		}
	}
	return root
}

// group is the RunE of commands that only hold others.
func group(command *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("unknown command %q for %q", args[0], command.CommandPath())
	}
	if command.HasParent() {
		return usage("%s needs one of its commands: queenctl help %s lists them", command.CommandPath(), strings.TrimPrefix(command.CommandPath(), "queenctl "))
	}
	return command.Help()
}

// prepare reads the flags that every command has.
func (a *app) prepare() error {
	format, err := output.ParseFormat(a.flags.output)
	if err != nil {
		return usage("%w", err)
	}
	a.printer = &output.Printer{Out: a.stdout, Format: format}
	if a.getenv("NO_COLOR") != "" || a.getenv("TERM") == "dumb" {
		a.flags.noColor = true
	}
	if a.flags.timeout <= 0 {
		return usage("--timeout must be more than 0")
	}
	return nil
}

// remark writes a line for people to stderr.
func (a *app) remark(format string, args ...any) {
	if !a.flags.quiet {
		_ = a.flush() // what was shown stands before the remark; run reports the error
		fmt.Fprintf(a.stderr, format+"\n", args...)
	}
}

// many is a number with its noun: "1 message", "2 messages".
func many[N int | int64](n N, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "ch"):
		return fmt.Sprintf("%d %ses", n, noun)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// progress starts a progress line where somebody can see it; nil elsewhere.
func (a *app) progress(verb, unit string, total int64) *output.Progress {
	if a.flags.quiet || !a.stderrTerminal || a.flags.explain {
		return nil
	}
	columns := func() int { n, _ := a.size(); return n }
	return output.NewProgress(a.words, columns, a.now, verb, unit, total)
}

// must is for mistakes in the tree of commands itself.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// interrupted reports whether a command ended because somebody pressed Ctrl-C.
func interrupted(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled))
}
