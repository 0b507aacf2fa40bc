package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A line is an outcome with the name it has in the table.
type line struct {
	workload string
	outcome
}

// results collects the lines of all repetitions.
type results struct {
	options  options
	started  time.Time
	load     string
	order    []string // of the workloads
	lines    map[string]map[string][]outcome
	versions map[string]string
	// failures are the peers that could not be started.
	failures map[string]error
}

func newTable(o options) *results {
	load, _ := os.ReadFile("/proc/loadavg")
	return &results{options: o, started: time.Now().UTC(), load: strings.Join(strings.Fields(string(load))[:3], " "), lines: map[string]map[string][]outcome{}, versions: map[string]string{}, failures: map[string]error{}}
}

func (t *results) add(peer string, l line) {
	if t.lines[l.workload] == nil {
		t.order = append(t.order, l.workload)
		t.lines[l.workload] = map[string][]outcome{}
	}
	t.lines[l.workload][peer] = append(t.lines[l.workload][peer], l.outcome)
}

// print writes the table: a block for each workload, a line for each peer, with Queen's rate as a multiple of the peer's. It
// fails when a run did: a run with losses is one that waited in vain until its limit.
func (t *results) print(w io.Writer) error {
	o := t.options
	fmt.Fprintf(w, "%s, %d CPUs, load average at the start %s, %s\n%s payload of %d bytes, %d consumers, median of %d x %s\n\n", t.started.Format(time.RFC3339), runtime.NumCPU(), t.load,
		runtime.Version(), o.payload, o.size, o.consumers, o.repetitions, o.length)
	names := strings.Split(o.peers, ",")
	versions := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	for _, name := range names {
		if err := t.failures[name]; err != nil {
			fmt.Fprintf(versions, "%s\tnot measured: %s\n", name, strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; "))
			continue
		}
		fmt.Fprintf(versions, "%s\t%s\tconfirmed: %s\n", name, t.versions[name], kinds[slices.Index(kindNames(), name)].durable)
	}
	if err := versions.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "workload\tpeer\tmessages/s\tqueen is\tCPU s/M\tmemory MB\tlost\tagain\tdisorder\t")
	var notes []string
	for _, workload := range t.order {
		reference := median(t.lines[workload]["queen"]).rate()
		for _, name := range names {
			if len(t.lines[workload][name]) == 0 {
				continue
			}
			r := median(t.lines[workload][name])
			for _, o := range t.lines[workload][name] {
				if o.note != "" && o.note != errNotOffered.Error() && !slices.Contains(notes, name+" on "+workload+": "+o.note) {
					notes = append(notes, name+" on "+workload+": "+o.note)
				}
			}
			if r.messages == 0 {
				fmt.Fprintf(table, "%s\t%s\t-\t-\t-\t-\t-\t-\t-\t\n", workload, name)
				continue
			}
			ratio := "-"
			if reference > 0 {
				ratio = fmt.Sprintf("%.2fx", reference/r.rate())
			}
			fmt.Fprintf(table, "%s\t%s\t%.0f\t%s\t%s\t%s\t%d\t%d\t%d\t\n", workload, name, r.rate(), ratio, parts(r.cpu, "%.1f", 1e6/float64(r.messages)), parts(r.memory, "%.0f", 1e-6),
				r.lost, r.again, r.disorder)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, note := range notes {
		fmt.Fprintln(w, strings.ReplaceAll(note, "\n", "; "))
	}
	if len(notes) > 0 {
		return errors.New("not all runs were completed")
	}
	return nil
}

// parts writes a sum and what it is made of.
func parts(values []float64, format string, factor float64) string {
	total, single := 0.0, make([]string, len(values))
	for i, v := range values {
		total += v * factor
		single[i] = fmt.Sprintf(format, v*factor)
	}
	if len(values) == 1 {
		return single[0]
	}
	return fmt.Sprintf(format, total) + " (" + strings.Join(single, "+") + ")"
}

// median orders outcomes by rate and returns the middle one, with the losses and repetitions of all.
func median(all []outcome) outcome {
	if len(all) == 0 {
		return outcome{}
	}
	ordered := slices.Clone(all)
	slices.SortFunc(ordered, func(a, b outcome) int { return cmp.Compare(a.rate(), b.rate()) })
	middle := ordered[len(ordered)/2]
	middle.lost, middle.again, middle.disorder = 0, 0, 0
	for _, o := range all {
		middle.lost += o.lost
		middle.again += o.again
		middle.disorder += o.disorder
	}
	return middle
}

// moduleVersion is the version of a module that is built into this program.
func moduleVersion(path string) string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == path {
			return module.Version
		}
	}
	return "of unknown version"
}
