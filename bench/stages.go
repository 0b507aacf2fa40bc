package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// stages are what the broker's processor time goes into. A sample belongs to the first stage of which a function is on its stack, so that the
// order decides: what is done for another stage (a socket read for the driver, say) counts there.
var stages = []struct {
	name      string
	functions *regexp.Regexp
}{
	{"garbage collection", regexp.MustCompile(`^runtime\.(gcBgMarkWorker|gcAssist|bgsweep|bgscavenge|gcStart|gcMark|sweepone|gcDrain|markroot|wbBufFlush)`)},
	{"compression, hashing", regexp.MustCompile(`klauspost/compress|/xxh3|segment\.Hash`)},
	{"frames packed, unpacked", regexp.MustCompile(`engine/segment\.`)},
	{"dedup cache", regexp.MustCompile(`push/dedup\.`)},
	{"requests scanned", regexp.MustCompile(`internal/api\.\(\*?(pushScan|ackScan|scanner)`)},
	{"HTTP answers sent", regexp.MustCompile(`internal/http1\.\(\*exchange\)`)},
	{"answers rendered", regexp.MustCompile(`pop\.\(\*Result\)|internal/api\.(append|\(\*Server\)\.(writeVerdicts|appendVerdict))`)},
	{"driver, its sockets", regexp.MustCompile(`jackc/pgx|jackc/puddle|internal/pg\.`)},
	{"fusion, hot list, acks", regexp.MustCompile(`queenmq/internal/engine/`)},
	{"HTTP, its sockets", regexp.MustCompile(`^net/http|queenmq/internal/(api|http1)|net/textproto|^bufio\.`)},
	{"scheduler, poller", regexp.MustCompile(`^runtime\.`)},
	{"rest", regexp.MustCompile(``)},
}

var sampleHead = regexp.MustCompile(`^\s*([\d.]+)(us|ms|s)\s+(\S+)`)

// stageShares says which share of its processor time the broker spent in which stage, from the profiles of the run.
func (b *bench) stageShares(ctx context.Context) (string, error) {
	files, err := filepath.Glob(filepath.Join(b.options.profiles, b.queue+".cpu.*.pprof"))
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, "go", append([]string{"tool", "pprof", "-traces"}, files...)...).Output()
	if err != nil {
		return "", fmt.Errorf("go tool pprof: %w", err)
	}
	spent := make([]float64, len(stages))
	total := 0.0
	for block := range strings.SplitSeq(string(out), "-----------+-") {
		_, block, _ = strings.Cut(block, "\n")
		head := sampleHead.FindStringSubmatch(block)
		if head == nil {
			continue
		}
		value, _ := strconv.ParseFloat(head[1], 64)
		value *= map[string]float64{"us": 1e-6, "ms": 1e-3, "s": 1}[head[2]]
		stack := strings.Split(strings.Replace(block, head[0], head[3], 1), "\n")
		stage := stageOf(stack)
		spent[stage] += value
		total += value
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%.1f s of the broker's processor time:", total)
	for i, stage := range stages {
		fmt.Fprintf(&text, " %s %.0f %%,", stage.name, 100*spent[i]/max(total, 1e-9))
	}
	return strings.TrimSuffix(text.String(), ","), nil
}

func stageOf(stack []string) int {
	for i, stage := range stages {
		for _, function := range stack {
			if function = strings.TrimSpace(function); function != "" && stage.functions.MatchString(function) {
				return i
			}
		}
	}
	return len(stages) - 1
}
