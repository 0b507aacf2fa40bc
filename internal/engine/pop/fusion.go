package pop

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/ready"
	"queenmq/internal/pg"
)

const (
	// DefaultFusedPops is the most pops of one common claim, DefaultFusedClaims how many such claims of one group run at a time.
	DefaultFusedPops, DefaultFusedClaims = 64, 2
	// worthwhilePartitions is what pays for a claim beside another one, as many as the pops that wait will take: a commit costs the database as
	// much as some ten partitions.
	worthwhilePartitions = 32
	// claimPatience is how long a claim may take before the next one does not wait for it any more.
	claimPatience = 20 * time.Millisecond
	// fusedTimeout bounds a common claim, which belongs to no single caller, a little above the statement timeout.
	fusedTimeout = 40 * time.Second
	// maxFusedCandidates is the most partitions of a common claim: enough to make its commit cheap for each, and few enough that the pops
	// that come meanwhile do not wait long.
	maxFusedCandidates = 256
)

// errClaimBroke is what the others get when the pop that claims for them panics.
var errClaimBroke = errors.New("the common claim broke off")

// A fuser lets concurrent pops of one group claim together: one statement and one commit for many leases. A pop that comes while no
// claim is under way runs one at once, alone when nobody waits; beside another one it does so when those that wait will take enough partitions
// to pay for a commit of their own. The others wait, and whoever finishes hands over to the first of them, who claims for all.
type fuser struct {
	mu     sync.Mutex
	groups map[fusionKey]*fusedGroup
}

// fusionKey is what pops must have in common: the same cursors, and the same start for those that are new.
type fusionKey struct {
	tenant                         uuid.UUID
	queue, group, subMode, subFrom string
}

type fusedGroup struct {
	running int
	// newest is when the newest claim began.
	newest  time.Time
	waiting []*fusedPop
	// each is how many partitions a pop took in the claim that ended last; 0 before.
	each int
}

// worthwhile tells whether a claim for so many pops pays beside another one; listed is how many partitions have messages. Another one that takes
// long, because it waits for a lock for example, is no reason to wait.
func (g *fusedGroup) worthwhile(pops, listed int) bool {
	return min(pops*max(g.each, 1), listed) >= worthwhilePartitions || time.Since(g.newest) > claimPatience
}

// A fusedPop is one pop's part in a common claim.
type fusedPop struct {
	look *look
	// turn gets a value when the pop is to run the next claim; done is closed when its own part is decided.
	turn chan struct{}
	done chan struct{}

	// Set before done is closed.
	claim pg.Claim
	err   error
}

func (l *look) fusionKey() fusionKey {
	return fusionKey{l.Tenant, l.Queue, l.Group, l.SubMode, l.SubFrom}
}

// enter adds a pop and tells whether it is to run a claim now; listed is how many partitions have messages.
func (f *fuser) enter(key fusionKey, p *fusedPop, most, listed int) (runs bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.groups == nil {
		f.groups = make(map[fusionKey]*fusedGroup)
	}
	g := f.groups[key]
	if g == nil {
		g = &fusedGroup{}
		f.groups[key] = g
	}
	if g.running == 0 || g.running < most && g.worthwhile(len(g.waiting)+1, listed) {
		g.running++
		g.newest = time.Now()
		return true
	}
	g.waiting = append(g.waiting, p)
	return false
}

// gather takes the pops that wait for a claim, at most most of them.
func (f *fuser) gather(key fusionKey, most int) []*fusedPop {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.groups[key]
	n := min(most, len(g.waiting))
	taken := append([]*fusedPop(nil), g.waiting[:n]...)
	g.waiting = append(g.waiting[:0], g.waiting[n:]...)
	return taken
}

// finish ends a claim in which each pop took so many partitions, 0 when it took none: the first that waits runs the next one, unless the end of
// another claim is worth waiting for.
func (f *fuser) finish(key fusionKey, listed, each int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.groups[key]
	if each > 0 {
		g.each = each
	}
	if len(g.waiting) > 0 && (g.running == 1 || g.worthwhile(len(g.waiting), listed)) {
		g.newest = time.Now()
		next := g.waiting[0]
		g.waiting = append(g.waiting[:0], g.waiting[1:]...)
		next.turn <- struct{}{}
		return
	}
	g.running--
	if g.running == 0 {
		delete(f.groups, key)
	}
}

// quit takes a pop whose caller left out of those that wait. False means that it is too late: its part is being decided, or it is its
// turn.
func (f *fuser) quit(key fusionKey, p *fusedPop) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.groups[key]
	if g == nil {
		return false
	}
	for i, one := range g.waiting {
		if one == p {
			g.waiting = append(g.waiting[:i], g.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// claimTogether claims partitions of the ring for the pop, in a claim that it may share with others.
func (s *Server) claimTogether(ctx context.Context, l *look, ring *ready.Ring) (*Result, error) {
	if err := s.makeRoom(ctx, l, 0); err != nil {
		return nil, err
	}
	key := l.fusionKey()
	own := &fusedPop{look: l, turn: make(chan struct{}, 1), done: make(chan struct{})}
	runs := s.fuser.enter(key, own, s.cfg.FusedClaims, ring.Ready())
	if !runs {
		left := ctx.Done()
		for waiting := true; waiting; {
			select {
			case <-own.done:
				return s.conclude(ctx, own)
			case <-own.turn:
				waiting = false
			case <-left:
				if s.fuser.quit(key, own) {
					return nil, context.Cause(ctx)
				}
				left = nil // one of the other two comes; what was claimed must be given back
			}
		}
	}
	each := 0
	defer func() { s.fuser.finish(key, ring.Ready(), each) }()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	pops := append([]*fusedPop{own}, s.fuser.gather(key, s.cfg.FusedPops-1)...)
	each = s.claimFor(ctx, pops, ring, key)
	return s.conclude(ctx, own)
}

// claimFor runs one claim for all the pops and returns how many partitions each of them took, on average, 0 when none did. Every part is decided
// when it returns, whatever happens.
func (s *Server) claimFor(ctx context.Context, pops []*fusedPop, ring *ready.Ring, key fusionKey) (each int) {
	decided := false
	defer func() {
		for _, p := range pops {
			if !decided && p.err == nil {
				p.err = errClaimBroke
			}
			close(p.done)
		}
	}()
	fail := func(err error) {
		decided = true
		for _, p := range pops {
			p.err = err
		}
	}
	// It is not only the caller's: its leaving must not fail the others.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fusedTimeout)
	defer cancel()
	slot, err := s.slots.Acquire(ctx, admission.Pop)
	if err != nil {
		fail(context.Cause(ctx))
		return 0
	}
	defer slot.Release()
	// While the slot was waited for, more may have come.
	pops = append(pops, s.fuser.gather(key, s.cfg.FusedPops-len(pops))...)
	out, owners := allot(ring, pops)
	names := out.Names()
	if len(names) == 0 {
		decided = true
		return 0
	}
	// Whatever happens from here on, also a panic: an entry that is taken and never settled would not be served again.
	defer out.Return()
	s.counts.targeted.Add(1)
	s.counts.fused.Add(int64(owners[len(owners)-1] + 1))
	claimed, err := s.timed(ctx, request(pops, owners, names), s.db.PopReady)
	if err != nil {
		fail(err)
		return 0
	}
	s.shortenEach(ctx, pops, owners, &claimed) // before the ring is told what is left
	checkIn(&out, claimed, func(i int) *look { return pops[owners[i]].look })
	took := 0
	for _, state := range claimed.States {
		if state.Verdict == pg.CandidateTook {
			claim := &pops[owners[state.Index]].claim
			claim.Partitions = append(claim.Partitions, claimed.Partitions[took])
			took++
		}
	}
	decided = true
	return took / (owners[len(owners)-1] + 1)
}

// allot takes partitions of the ring for the pops, for each as many as it wants until what they are known to have fills it, the pop that
// waited longest first: few full answers are cheaper than many small ones. owners names the pop of each partition, ascending.
func allot(ring *ready.Ring, pops []*fusedPop) (out ready.CheckOut, owners []int) {
	out = ring.CheckOut()
	for i, p := range pops {
		want := min(wanted(p.look), maxFusedCandidates-len(owners))
		budget := p.look.Budget
		if want == 1 {
			budget = MaxBatch
		}
		got := out.Take(want, budget)
		if got == 0 {
			break
		}
		for range got {
			owners = append(owners, i)
		}
	}
	return out, owners
}

// wanted is how many partitions a pop takes at most.
func wanted(l *look) int {
	if l.MaxPartitions <= 0 || l.MaxPartitions > maxCandidates {
		return maxCandidates
	}
	return l.MaxPartitions
}

// request is what the database is asked for pops whose candidates are named one pop after the other.
func request(pops []*fusedPop, owners []int, names []string) pg.PopRequest {
	r := pops[0].look.PopRequest
	r.Candidates = names
	r.MaxBytes = pops[0].look.room.bytes
	if owners[len(owners)-1] == 0 {
		return r
	}
	r.MaxBytes = 0
	r.Workers, r.Budgets, r.Leases = make([]string, len(names)), make([]int32, len(names)), make([]int32, len(names))
	r.Worker, r.Budget, r.MaxPartitions = "", 0, 0
	for i, owner := range owners {
		one := &pops[owner].look.PopRequest
		r.Workers[i], r.Budgets[i], r.Leases[i] = one.Worker, int32(one.Budget), int32(one.LeaseSeconds) //nolint:gosec // at most MaxBatch and MaxLeaseSeconds
		if i == 0 || owners[i-1] != owner {
			r.Budget += one.Budget
			r.MaxBytes += pops[owner].look.room.bytes
		}
	}
	return r
}

// conclude turns a pop's part of a common claim into its answer.
func (s *Server) conclude(ctx context.Context, p *fusedPop) (*Result, error) {
	if p.err != nil || len(p.claim.Partitions) == 0 {
		return nil, p.err
	}
	return s.deliver(ctx, p.look, p.claim)
}

// deliver decodes what was leased. Messages that must not be delivered are filed. Leases of which nothing can be delivered are given back;
// an encrypted batch without its key is ErrKeyMissing when there is nothing else.
func (s *Server) deliver(ctx context.Context, l *look, claimed pg.Claim) (*Result, error) {
	batches, broken := decode(s.filePoison(ctx, l, claimed.Partitions))
	s.reportBroken(ctx, l, broken)
	result := s.newResult(l, batches)
	for _, b := range broken {
		if b.delivered == 0 {
			result.release(ctx, b.partition) // the ring looks again when it thinks that the lease may have ended
		}
	}
	var err error
	if s.withholdEncrypted(ctx, result) {
		err = ErrKeyMissing
	} else {
		err = s.unsealAll(ctx, l, result)
	}
	if err != nil || len(result.Partitions) == 0 {
		result.Done() // nobody else gets to know of it
		return nil, err
	}
	return result, nil
}
