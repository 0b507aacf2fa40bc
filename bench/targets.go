package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// figures are what a scenario measures besides its rate and latencies, for the targets.
type figures map[string]float64

// A target is one aim of this project in one figure. It applies when the scenarios that it needs were run.
type target struct {
	what   string
	needs  []string
	atMost bool
	want   float64
	have   func(r map[string]result) float64
}

// ceilingRate is the better of both ceilings.
func ceilingRate(r map[string]result) float64 {
	return max(r["ceiling-1"].rate(), r["ceiling-16"].rate())
}

// cpu is the processor seconds that broker and database take for a message.
func (r result) cpu() float64 { return (r.brokerCPU + r.databaseCPU) / float64(max(r.counted, 1)) }

var targets = []target{
	{"push-100 through HTTP, of the ceiling", []string{"ceiling-16", "push-100"}, false, 0.6, func(r map[string]result) float64 { return r["push-100"].rate() / ceilingRate(r) }},
	{"pipeline, pushed, of the ceiling", []string{"ceiling-16", "pipeline"}, false, 0.5, func(r map[string]result) float64 { return r["pipeline"].figures["pushed"] / ceilingRate(r) }},
	{"pipeline, delivered to both groups, of the ceiling", []string{"ceiling-16", "pipeline"}, false, 0.5, func(r map[string]result) float64 { return 2 * r["pipeline"].rate() / ceilingRate(r) }},
	{"push-1, times one row a commit", []string{"rows", "push-1"}, false, 5, func(r map[string]result) float64 { return r["push-1"].rate() / r["rows"].rate() }},
	{"sparse, CPU a message popped and acknowledged, times that of drain", []string{"drain", "sparse"}, true, 3, func(r map[string]result) float64 { return r["sparse"].cpu() / r["drain"].cpu() }},
	{"sparse, CPU a message from push to acknowledgment, times that of push-100 and drain", []string{"push-100", "drain", "sparse"}, true, 3, func(r map[string]result) float64 {
		return (r["sparse"].figures["pushed CPU"] + r["sparse"].cpu()) / (r["push-100"].cpu() + r["drain"].cpu())
	}},
	{"cardinality, p99, times that with 10,000 partitions", []string{"cardinality"}, true, 1.5, func(r map[string]result) float64 { return r["cardinality"].figures["ratio"] }},
	{"cardinality, bytes of broker memory a partition", []string{"cardinality"}, true, 200, func(r map[string]result) float64 { return r["cardinality"].figures["bytes"] }},
	{"longpoll, p99 of a wake in ms", []string{"longpoll"}, true, 25, func(r map[string]result) float64 { return milliseconds(r["longpoll"].p99) }},
	{"longpoll, idle, percent of a core in the broker", []string{"longpoll"}, true, 2, func(r map[string]result) float64 { return r["longpoll"].figures["idle"] }},
	{"latency, p50 in bare commits", []string{"latency"}, true, 2, func(r map[string]result) float64 { return r["latency"].figures["p50 commits"] }},
	{"latency, p99 in bare commits", []string{"latency"}, true, 5, func(r map[string]result) float64 { return r["latency"].figures["p99 commits"] }},
	{"latency, p50 in bare push and claim calls", []string{"latency"}, true, 2, func(r map[string]result) float64 { return r["latency"].figures["p50 calls"] }},
	{"largest resident memory of the broker in MB, cardinality aside", nil, true, 150, func(r map[string]result) float64 {
		most := 0.0
		for name, one := range r {
			if name != "cardinality" && !strings.HasPrefix(name, "ceiling") && name != "rows" {
				most = max(most, one.rss/1e6)
			}
		}
		return most
	}},
}

// writeTargets prints which targets the medians of the run meet.
func writeTargets(w io.Writer, medians map[string]result) error {
	table := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	fmt.Fprintln(table, "target\twanted\tmeasured\tmet")
	for _, t := range targets {
		missing := false
		for _, name := range t.needs {
			_, ran := medians[name]
			missing = missing || !ran
		}
		if missing {
			continue
		}
		have, sign, met := t.have(medians), ">=", "yes"
		if t.atMost {
			sign = "<="
		}
		if t.atMost && have > t.want || !t.atMost && have < t.want {
			met = "NO"
		}
		fmt.Fprintf(table, "%s\t%s %g\t%.2f\t%s\n", t.what, sign, t.want, have, met)
	}
	return table.Flush()
}
