package queen

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Balance is how requests are spread over several brokers. With one broker it means nothing.
type Balance int

// The ways to spread requests.
const (
	// Affinity sends everything about one queue to the same broker, whatever client asks, as long as that broker is healthy.
	// The broker then knows from memory what is ready and what was delivered, and pushes that it keeps on disk while PostgreSQL is
	// away stay in order.
	Affinity Balance = iota
	// RoundRobin takes the healthy brokers in turn. Acknowledgments still go to the broker that delivered.
	RoundRobin
)

// How long a broker that failed is avoided: doubled with every failure in a row, and a little random, so that clients do not
// come back all at once.
const (
	firstAvoidance   = 250 * time.Millisecond
	longestAvoidance = 15 * time.Second
)

// A server is one broker and what this client knows of its health.
type server struct {
	base string
	seed uint64 // of its name, for rendezvous hashing

	mu       sync.Mutex
	failures int
	avoid    time.Time // until then others are preferred
}

// up notes that the broker answered.
func (s *server) up() {
	s.mu.Lock()
	s.failures, s.avoid = 0, time.Time{}
	s.mu.Unlock()
}

// down notes that the broker cannot serve now.
func (s *server) down(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait := min(firstAvoidance<<min(s.failures, 10), longestAvoidance)
	s.failures++
	s.avoid = now.Add(jittered(wait))
}

func (s *server) avoidedUntil() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.avoid
}

type servers struct {
	all     []*server
	balance Balance
	turn    atomic.Uint64
}

func (s *servers) add(base string) {
	for _, known := range s.all {
		if known.base == base {
			return
		}
	}
	s.all = append(s.all, &server{base: base, seed: stableHash(base)})
}

// choose returns the broker for a request about key: preferred when it is healthy, otherwise a healthy one by the chosen
// balance, otherwise the one that is avoided for the shortest time. tried are those that this call has failed on; they come
// last. more says that another healthy and untried one is left.
func (s *servers) choose(now time.Time, key string, preferred *server, tried []*server) (chosen *server, more bool) {
	if len(s.all) == 1 {
		return s.all[0], false
	}
	var best *server
	var bestRank rank
	healthy := 0
	turn := uint64(0)
	if s.balance == RoundRobin {
		turn = s.turn.Add(1)
	}
	hash := stableHash(key)
	for i, candidate := range s.all {
		r := rank{tried: contains(tried, candidate), until: candidate.avoidedUntil()}
		if !r.until.After(now) {
			r.until = time.Time{}
			if !r.tried {
				healthy++
			}
		}
		switch {
		case candidate == preferred:
			r.order = 0
		case s.balance == RoundRobin:
			r.order = 1 + (uint64(i)+turn)%uint64(len(s.all))
		default:
			r.order = 1 + mix(candidate.seed^hash)>>1 // highest random weight: each key has its own order of brokers
		}
		if best == nil || r.before(bestRank) {
			best, bestRank = candidate, r
		}
	}
	return best, healthy > 1
}

// A rank orders candidates: untried before tried, then by health, then by preference.
type rank struct {
	tried bool
	until time.Time
	order uint64
}

func (r rank) before(other rank) bool {
	if r.tried != other.tried {
		return !r.tried
	}
	if !r.until.Equal(other.until) {
		return r.until.Before(other.until)
	}
	return r.order < other.order
}

func contains(list []*server, wanted *server) bool {
	for _, s := range list {
		if s == wanted {
			return true
		}
	}
	return false
}

// stableHash is FNV-1a: the same in every process, so that all clients agree on the broker of a queue.
func stableHash(text string) uint64 {
	hash := uint64(14695981039346656037)
	for i := range len(text) {
		hash = (hash ^ uint64(text[i])) * 1099511628211
	}
	return hash
}

// mix spreads close values over the whole range (the finalizer of splitmix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// jittered is d, a quarter more or less.
func jittered(d time.Duration) time.Duration {
	return d*3/4 + time.Duration(rand.Int64N(int64(d/2)+1)) //nolint:gosec // spreading load needs no secrecy
}
