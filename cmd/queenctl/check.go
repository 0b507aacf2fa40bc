package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/output"
	"queenmq/queen"
)

// The states of monitoring plugins, which are their exit codes too.
const (
	stateOK       = 0
	stateWarning  = 1
	stateCritical = 2
	stateUnknown  = 3
)

var stateWords = []string{"OK", "WARNING", "CRITICAL", "UNKNOWN"}

// checkOptions are the flags of check.
type checkOptions struct {
	queue, group, format string
	warn, crit           float64
}

// A measurement is one figure that a check judges.
type measurement struct {
	value float64
	unit  string // of Nagios performance data: s, or nothing
	// below says that small values are bad.
	below bool
	text  string
}

// checks are what can be checked.
var checks = []struct {
	name, about string
	warn, crit  float64
	measure     func(*app, context.Context, checkOptions) (measurement, error)
}{
	{"health", "checks of /readyz that fail", 1, 1, (*app).measureHealth},
	{"lag", "seconds that the oldest message of a group waits", 60, 300, (*app).measureLag},
	{"depth", "messages that a group, or the slowest one, has not consumed", 10_000, 100_000, (*app).measureDepth},
	{"dlq", "dead letters", 1, 100, (*app).measureDeadLetters},
	{"brokers", "brokers that are alive", 1, 1, (*app).measureBrokers},
	{"buffer", "messages on the broker's disk because the database was away", 1, 10_000, (*app).measureBuffer},
}

func checkNames() []string {
	var names []string
	for _, c := range checks {
		names = append(names, c.name)
	}
	return names
}

func (a *app) checkCommand() *cobra.Command {
	var o checkOptions
	var about strings.Builder
	for _, c := range checks {
		fmt.Fprintf(&about, "  %-8s %s (--warn %g --crit %g)\n", c.name, c.about, c.warn, c.crit)
	}
	command := &cobra.Command{
		Use: "check NAME", Short: "Measure one thing for a monitoring system", ValidArgs: checkNames(), Args: args(cobra.ExactArgs(1)),
		Long: "Measure one thing and judge it by --warn and --crit:\n\n" + about.String() + `
--format nagios prints one line and exits with 0 OK, 1 WARNING, 2 CRITICAL or 3 UNKNOWN, as plugins do. The other formats, text, json
and prometheus (for a textfile collector), exit with 0 when it is OK and 5 when it is not.`,
		Example: "  queenctl check lag --queue orders --group billing --warn 30 --crit 120 --format nagios",
		RunE: func(command *cobra.Command, given []string) error {
			return a.check(command.Context(), given[0], o, command.Flags().Changed("warn"), command.Flags().Changed("crit"))
		},
	}
	f := command.Flags()
	f.StringVar(&o.queue, "queue", "", "only this queue")
	f.StringVarP(&o.group, "group", "g", "", "only this group")
	f.StringVar(&o.format, "format", "text", "text, nagios, prometheus or json")
	f.Float64Var(&o.warn, "warn", 0, "warn at this value")
	f.Float64Var(&o.crit, "crit", 0, "critical at this value")
	must(command.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"text", "nagios", "prometheus", "json"}, cobra.ShellCompDirectiveNoFileComp)))
	return command
}

func (a *app) check(ctx context.Context, name string, o checkOptions, warnGiven, critGiven bool) error {
	i := slices.Index(checkNames(), name)
	if i < 0 {
		return usage("there is no check %q; there are %s", name, strings.Join(checkNames(), ", "))
	}
	if !slices.Contains([]string{"text", "nagios", "prometheus", "json"}, o.format) {
		return usage("--format must be text, nagios, prometheus or json, not %q", o.format)
	}
	if !warnGiven {
		o.warn = checks[i].warn
	}
	if !critGiven {
		o.crit = checks[i].crit
	}
	m, err := checks[i].measure(a, ctx, o)
	if errors.Is(err, errExplained) {
		return err
	}
	if err != nil {
		if o.format == "nagios" {
			fmt.Fprintf(a.stdout, "QUEEN UNKNOWN - %s: %s\n", name, output.Clean(err.Error()))
			return &exitError{stateUnknown, errors.New("")}
		}
		return err
	}
	return a.judged(name, o, m)
}

func judge(m measurement, o checkOptions) int {
	reached := func(bound float64) bool {
		if m.below {
			return m.value < bound
		}
		return m.value >= bound
	}
	switch {
	case reached(o.crit):
		return stateCritical
	case reached(o.warn):
		return stateWarning
	}
	return stateOK
}

func (a *app) judged(name string, o checkOptions, m measurement) error {
	state := judge(m, o)
	switch o.format {
	case "nagios":
		fmt.Fprintf(a.stdout, "QUEEN %s - %s: %s | %s=%g%s;%g;%g\n", stateWords[state], name, output.Clean(m.text), name, m.value, m.unit, o.warn, o.crit)
		if state == stateOK {
			return nil
		}
		return &exitError{state, errors.New("")}
	case "prometheus":
		labels := fmt.Sprintf(`{check=%q,queue=%q,group=%q}`, name, o.queue, o.group)
		fmt.Fprintf(a.stdout, "# HELP queenctl_check_value What queenctl check measured.\n# TYPE queenctl_check_value gauge\nqueenctl_check_value%s %g\n", labels, m.value)
		fmt.Fprintf(a.stdout, "# HELP queenctl_check_state 0 OK, 1 warning, 2 critical.\n# TYPE queenctl_check_state gauge\nqueenctl_check_state%s %d\n", labels, state)
	case "json":
		text, err := json.Marshal(map[string]any{"check": name, "state": stateWords[state], "value": m.value, "warn": o.warn, "crit": o.crit, "queue": orNull(o.queue), "group": orNull(o.group), "text": m.text})
		if err != nil {
			return err
		}
		fmt.Fprintf(a.stdout, "%s\n", text)
	default:
		fmt.Fprintf(a.stdout, "%s: %s: %s\n", stateWords[state], name, output.Clean(m.text))
	}
	if state != stateOK {
		return &exitError{exitDiffers, errors.New("")}
	}
	return nil
}

func (a *app) measureHealth(ctx context.Context, _ checkOptions) (measurement, error) {
	r, err := a.readiness(ctx)
	if err != nil {
		return measurement{}, err
	}
	var bad []string
	for name, reason := range r.Checks {
		if reason != "ok" {
			bad = append(bad, name+": "+reason)
		}
	}
	slices.Sort(bad)
	if r.Ready && len(bad) == 0 {
		return measurement{text: many(len(r.Checks), "check") + " ok"}, nil
	}
	return measurement{value: float64(max(len(bad), 1)), text: strings.Join(bad, "; ")}, nil
}

func (a *app) measureLag(ctx context.Context, o checkOptions) (measurement, error) {
	items, err := a.groups(ctx, o.group, o.queue)
	if err != nil {
		return measurement{}, err
	}
	if len(items) == 0 && (o.group != "" || o.queue != "") {
		return measurement{}, empty("no consumer group %s on %s", o.group, o.queue)
	}
	worst, text := int64(-1), "no groups"
	for _, item := range items {
		g, err := decode[topGroup](item)
		if err != nil {
			return measurement{}, err
		}
		if g.MaxTimeLag > worst {
			worst, text = g.MaxTimeLag, fmt.Sprintf("group %s on %s lags %s, %d s", g.Name, g.QueueName, many(g.TotalLag, "message"), g.MaxTimeLag)
		}
	}
	return measurement{value: float64(max(worst, 0)), unit: "s", text: text}, nil
}

func (a *app) measureDepth(ctx context.Context, o checkOptions) (measurement, error) {
	if o.queue == "" {
		return measurement{}, usage("--queue is missing")
	}
	answer, err := a.call(ctx, http.MethodGet, queen.Path("api", "v1", "resources", "queues", o.queue, "depth"), values("group", o.group), nil)
	if err != nil {
		return measurement{}, err
	}
	d, err := decode[struct{ Depth int64 }](answer)
	return measurement{value: float64(d.Depth), text: fmt.Sprintf("%s to consume in %s", many(d.Depth, "message"), o.queue)}, err
}

func (a *app) measureDeadLetters(ctx context.Context, o checkOptions) (measurement, error) {
	answer, err := a.call(ctx, http.MethodGet, "/api/v1/dlq/count", values("queue", o.queue, "consumerGroup", o.group), nil)
	if err != nil {
		return measurement{}, err
	}
	n, err := decode[struct{ Count int64 }](answer)
	return measurement{value: float64(n.Count), text: many(n.Count, "dead letter")}, err
}

func (a *app) measureBrokers(ctx context.Context, _ checkOptions) (measurement, error) {
	answer, err := a.call(ctx, http.MethodGet, "/api/v1/system/brokers", nil, nil)
	if err != nil {
		return measurement{}, err
	}
	list, err := decode[struct{ Brokers []struct{ Alive bool } }](answer)
	alive := 0
	for _, b := range list.Brokers {
		if b.Alive {
			alive++
		}
	}
	return measurement{value: float64(alive), below: true, text: many(alive, "broker") + " alive"}, err
}

func (a *app) measureBuffer(ctx context.Context, _ checkOptions) (measurement, error) {
	answer, err := a.call(ctx, http.MethodGet, "/api/v1/status/buffers", nil, nil)
	if err != nil {
		return measurement{}, err
	}
	b, err := decode[struct{ Pending, Failed int64 }](answer)
	return measurement{value: float64(b.Pending + b.Failed), text: fmt.Sprintf("%s on the broker's disk, %d could not be stored", many(b.Pending, "message"), b.Failed)}, err
}
