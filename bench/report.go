package main

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

// report prints one line per scenario: the median run, and its rate as a share of the best ceiling of the same run.
func report(w io.Writer, s *stand, names []string, results map[string][]result) error {
	o := s.options
	fmt.Fprintf(w, "%s, %s, %d CPUs, %s payload of %d bytes, %d partitions, %d/%d producers, %d consumers, median of %d x %s\n\n", s.version,
		runtime.Version(), runtime.NumCPU(), o.payload, o.size, o.partitions, o.producers, o.singles, o.consumers, o.repetitions, o.length)
	best := 0.0
	for _, name := range names {
		if strings.HasPrefix(name, "ceiling") {
			best = max(best, median(results[name]).rate())
		}
	}
	table := tabwriter.NewWriter(w, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "scenario\tmessages/s\tof ceiling\tp50 ms\tp99 ms\tmessages/commit\tWAL bytes/message\tload CPU s/M\tbroker CPU s/M\tdatabase CPU s/M\tbroker RSS MB\t")
	for _, name := range names {
		r := median(results[name])
		ratio := "-"
		if best > 0 && !r.paced {
			ratio = fmt.Sprintf("%.2f", r.rate()/best)
		}
		perMillion := 1e6 / float64(max(r.counted, 1))
		fmt.Fprintf(table, "%s\t%.0f\t%s\t%.2f\t%.2f\t%.1f\t%.0f\t%.1f\t%.1f\t%.1f\t%.0f\t\n", name, r.rate(), ratio, milliseconds(r.p50), milliseconds(r.p99),
			float64(r.counted)/float64(max(r.commits, 1)), float64(r.walBytes)/float64(max(r.counted, 1)), r.loadCPU*perMillion, r.brokerCPU*perMillion, r.databaseCPU*perMillion, r.rss/1e6)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, line := range compare(results) {
		fmt.Fprintln(w, line)
	}
	for _, name := range names {
		for _, r := range results[name] {
			for _, note := range []string{r.note, r.stages} {
				if note != "" {
					fmt.Fprintf(w, "%s: %s\n", name, note)
				}
			}
		}
	}
	fmt.Fprintln(w)
	medians := map[string]result{}
	for name, runs := range results {
		medians[name] = median(runs)
	}
	return writeTargets(w, medians)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
