package admission

import (
	"slices"
	"time"
)

const (
	// trainGap joins commits: one flush of the WAL releases all that wait for it, so that they end closer together than this.
	trainGap = 300 * time.Microsecond
	// trainLimit ends a train that never breaks off.
	trainLimit = 10 * trainGap
	// unflushed is the time below which a transaction cannot have waited for the disk; it belongs to no train.
	unflushed = 200 * time.Microsecond
	// trainWindow is how far back the figures of trains look.
	trainWindow = 10 * time.Second
	// cycleGaps is the number of gaps between trains that the cycle is the median of.
	cycleGaps = 8
)

// trains recognise which transactions were released by one flush of the WAL. All times are those of one monotonic clock.
type trains struct {
	last, start time.Time
	// starts are the beginnings of the newest trains, the oldest first.
	starts  [cycleGaps + 1]time.Time
	count   int
	seconds [int(trainWindow / time.Second)]trainSecond
	epoch   time.Time
}

// A trainSecond counts one second; it is stale when number is not that of the second that is looked for.
type trainSecond struct {
	number         int64
	trains, aboard uint64
}

// ended notes a transaction that took held and ended now.
func (t *trains) ended(now time.Time, held time.Duration) {
	if held < unflushed {
		return
	}
	if t.epoch.IsZero() {
		t.epoch = now
	}
	number := int64(now.Sub(t.epoch) / time.Second)
	second := &t.seconds[number%int64(len(t.seconds))]
	if second.number != number {
		*second = trainSecond{number: number}
	}
	second.aboard++
	if t.count == 0 || now.Sub(t.last) >= trainGap || now.Sub(t.start) >= trainLimit {
		second.trains++
		t.start = now
		if t.count == len(t.starts) {
			copy(t.starts[:], t.starts[1:])
			t.count--
		}
		t.starts[t.count] = now
		t.count++
	}
	t.last = now
}

// TrainStats describe the trains of the last ten seconds: groups of transactions that one flush of the WAL released together.
type TrainStats struct {
	// PerSecond is the number of trains a second, Aboard the mean number of transactions in one, 0 without trains.
	PerSecond, Aboard float64
	// Cycle is the median time between the beginnings of the newest trains, at most eight gaps; 0 while there were less than three.
	Cycle time.Duration
}

func (t *trains) stats(now time.Time) TrainStats {
	if t.count == 0 {
		return TrainStats{}
	}
	var sum trainSecond
	number := int64(now.Sub(t.epoch) / time.Second)
	for _, second := range t.seconds {
		if second.number > number-int64(len(t.seconds)) {
			sum.trains += second.trains
			sum.aboard += second.aboard
		}
	}
	// The first seconds of a process are not ten.
	looked := min(max(now.Sub(t.epoch), time.Second), trainWindow)
	s := TrainStats{PerSecond: float64(sum.trains) / looked.Seconds()}
	if sum.trains > 0 {
		s.Aboard = float64(sum.aboard) / float64(sum.trains)
	}
	var gaps []time.Duration
	for i := 1; i < t.count; i++ {
		if now.Sub(t.starts[i-1]) <= trainWindow {
			gaps = append(gaps, t.starts[i].Sub(t.starts[i-1]))
		}
	}
	if len(gaps) >= 2 {
		slices.Sort(gaps)
		s.Cycle = gaps[len(gaps)/2]
	}
	return s
}
