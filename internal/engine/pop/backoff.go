package pop

import (
	"math/rand/v2"
	"time"
)

// A Backoff says how long a long poll waits between two looks when nothing wakes it. The zero value is the default.
type Backoff struct {
	// Initial is the wait after the first empty looks. Default 100 ms.
	Initial time.Duration
	// Threshold is how many empty looks in a row wait Initial before the waits grow. Default 3; -1 lets them grow at once.
	Threshold int
	// Multiplier: the n-th wait beyond the threshold is Initial x n x Multiplier. Default 2.
	Multiplier float64
	// Max is the longest wait. It bounds how late a message is delivered whose wake was lost. Default 1 s.
	Max time.Duration
}

// withDefaults fills in what is not set.
func (b Backoff) withDefaults() Backoff {
	if b.Initial <= 0 {
		b.Initial = 100 * time.Millisecond
	}
	if b.Threshold == 0 {
		b.Threshold = 3
	}
	if b.Multiplier <= 0 {
		b.Multiplier = 2
	}
	if b.Max <= 0 {
		b.Max = time.Second
	}
	b.Max = max(b.Max, b.Initial)
	return b
}

// interval is the wait after n empty looks in a row, n from 1, without jitter.
func (b Backoff) interval(n int) time.Duration {
	if n <= b.Threshold {
		return b.Initial
	}
	// In floating point: a poll of an hour must not overflow the product.
	grown := float64(b.Initial) * float64(n) * b.Multiplier
	if grown >= float64(b.Max) {
		return b.Max
	}
	return time.Duration(grown)
}

// jitter spreads a wait by up to a tenth in both directions, so that polls that began together do not look together.
func jitter(d time.Duration) time.Duration {
	tenth := int64(d) / 10
	if tenth == 0 {
		return d
	}
	return d + time.Duration(rand.Int64N(2*tenth+1)-tenth)
}

// A schedule says when a long poll looks at everything again although nothing woke it. The zero time is now.
type schedule struct {
	backoff Backoff
	due     time.Time
	empty   int // looks at everything in a row that found nothing and followed no wake
}

func (s *schedule) isDue() bool { return !time.Now().Before(s.due) }

// foundNothing plans the next look after one that found nothing. A look at named partitions only may bring the look at everything
// forward and never puts it off: under a stream of wakes for partitions that others are faster to take, the rest of the queue
// would not be seen again.
func (s *schedule) foundNothing(everything, wasWoken bool) {
	if wasWoken {
		s.empty = 0
	}
	if everything {
		s.empty++
		s.due = time.Now().Add(jitter(s.backoff.interval(s.empty)))
		return
	}
	if soon := time.Now().Add(jitter(s.backoff.Initial)); soon.Before(s.due) {
		s.due = soon
	}
}
