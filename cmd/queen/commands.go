package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"

	"queenmq/broker"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // the command could not do its work
	exitUsage  = 2 // the command line or a setting is wrong
)

const usage = `queen is a message broker on PostgreSQL.

Usage:

  queen [serve]        run the broker until SIGINT or SIGTERM; a second signal ends it at once
  queen schema apply   bring the database to this build's schema and exit
  queen schema print   write the schema as SQL
  queen config         show every setting: value in force, where it came from, default
  queen doctor         look at the database: version, schema, round trip, clock, durability
  queen keys check     say how much is stored encrypted under which key, and which old keys are not needed any more
  queen keys rotate    put what is stored encrypted under the active key; may be ended and repeated, beside running brokers
  queen version        show the version

Settings come from the environment; docs/configuration.md lists them. With neither DATABASE_URL nor a PG_ variable set, the
broker starts a private PostgreSQL below QUEEN_DATA_DIR.
`

// errUsage makes run print the usage.
var errUsage = errors.New("unknown command")

// A settingsError carries the faults of the settings, one a line.
type settingsError struct{ faults error }

func (e *settingsError) Error() string { return e.faults.Error() }

// run carries out one command line and returns the exit code. What went wrong goes to stderr, each fault on a line of its own.
func (p program) run(ctx context.Context, args []string) int {
	err := p.command(ctx, args)
	var settings *settingsError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errUsage):
		fmt.Fprintf(p.stderr, "queen: unknown command %q\n\n%s", strings.Join(args, " "), usage)
		return exitUsage
	case errors.As(err, &settings):
		for fault := range strings.SplitSeq(settings.Error(), "\n") {
			fmt.Fprintln(p.stderr, "queen:", fault)
		}
		return exitUsage
	default:
		fmt.Fprintln(p.stderr, "queen:", strings.NewReplacer(":\n\t", ": ", "\n\t", "; ", "\n", "; ").Replace(err.Error()))
		return exitFailed
	}
}

func (p program) command(ctx context.Context, args []string) error {
	if slices.ContainsFunc(args, func(arg string) bool { return arg == "-h" || arg == "-help" || arg == "--help" }) {
		args = []string{"help"} // no command takes flags
	}
	switch strings.Join(args, " ") {
	case "", "serve":
		return p.withSettings(func(cfg *broker.Config, log *slog.Logger) error {
			pacing, stop := context.WithCancel(ctx)
			var paced sync.WaitGroup
			defer paced.Wait()
			defer stop()
			paced.Go(func() { broker.PaceMemory(pacing, cfg) })
			return broker.New(cfg, broker.WithLogger(log)).Run(ctx)
		})
	case "schema apply":
		return p.withSettings(func(cfg *broker.Config, log *slog.Logger) error { return broker.ApplySchema(ctx, cfg, log) })
	case "schema print":
		return broker.WriteSchema(p.stdout)
	case "config":
		return p.withSettings(func(cfg *broker.Config, _ *slog.Logger) error { return showConfig(p.stdout, cfg) })
	case "doctor":
		return p.withSettings(func(cfg *broker.Config, _ *slog.Logger) error {
			return showFindings(p.stdout, broker.Diagnose(ctx, cfg, slog.New(slog.DiscardHandler)))
		})
	case "keys check":
		return p.withSettings(func(cfg *broker.Config, log *slog.Logger) error { return broker.CheckKeys(ctx, cfg, log, p.stdout) })
	case "keys rotate":
		return p.withSettings(func(cfg *broker.Config, log *slog.Logger) error { return broker.RotateKeys(ctx, cfg, log, p.stdout) })
	case "version", "-version", "--version":
		_, err := fmt.Fprintf(p.stdout, "queen %s (%s, %s/%s)\n", broker.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return err
	case "help":
		_, err := io.WriteString(p.stdout, usage)
		return err
	}
	return errUsage
}

// withSettings reads the settings and hands them on with a logger that they describe.
func (p program) withSettings(use func(*broker.Config, *slog.Logger) error) error {
	cfg, err := broker.LoadConfig(p.lookup, p.names)
	if err != nil {
		return &settingsError{err}
	}
	log, err := broker.NewLogger(cfg, p.stderr)
	if err != nil {
		return &settingsError{err}
	}
	return use(cfg, log)
}

func showConfig(w io.Writer, cfg *broker.Config) error {
	if err := cfg.WriteTable(w); err != nil {
		return err
	}
	if len(cfg.Unused)+len(cfg.Unknown) == 0 {
		return nil
	}
	lines := []string{""}
	for _, unused := range cfg.Unused {
		lines = append(lines, unused.Name+": "+unused.Why)
	}
	for _, unknown := range cfg.Unknown {
		line := unknown.Name + ": unknown"
		if unknown.Nearest != "" {
			line += ", did you mean " + unknown.Nearest + "?"
		}
		lines = append(lines, line)
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}

func showFindings(w io.Writer, findings []broker.Finding) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	bad := 0
	for _, f := range findings {
		verdict := "ok"
		if !f.OK {
			verdict = "PROBLEM"
			bad++
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", verdict, f.Subject, f.Text)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d checks found a problem", bad, len(findings))
	}
	return nil
}
