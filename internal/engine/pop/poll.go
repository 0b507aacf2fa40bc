package pop

import (
	"context"
	"time"

	"queenmq/internal/engine/ready"
)

// A poll is one pop on its way to its answer. All that it needs while it is parked is here, so that it can be suspended.
type poll struct {
	Request
	look look
	// deadline is zero for a pop that does not wait for messages.
	deadline time.Time

	// place is where it parks, nil before it does for the first time; handed is what it may be handed over there.
	place  *ready.Parked
	handed offer
	// parked says that it has its place in the crowd and has not gone on yet: that it waits, or has waited because of longest and until why.
	parked  bool
	longest time.Duration
	why     wake
	// ended is told of the end of a suspended poll; nil tells nobody.
	ended func(*Result, error)
}

func (s *Server) newPoll(req *Request) *poll {
	p := &poll{Request: *req, look: *s.newLook(req)}
	if p.look.waits {
		p.deadline = time.Now().Add(min(req.Timeout, MaxTimeout))
	}
	return p
}

// settle gives the poll its place to park.
func (p *poll) settle() {
	if p.place != nil {
		return
	}
	p.handed.look = &p.look
	p.place = ready.NewParked()
	p.place.Takes = min(wanted(&p.look), p.look.Budget)
	p.place.Owner = &p.handed
}

// quit ends what a poll has to do with the crowd unless it is parked: a wake that it does not use goes to the next.
func (p *poll) quit() {
	if !p.parked {
		p.place.Leave()
		p.place.Settle()
	}
}

// A SuspendedError is no failure: it says that a pop waits for messages, and that its caller is to do the waiting, see [Request.Suspends]. It
// must call Wait and then Resume, exactly once and whatever happens, even when nobody wants the answer any more: until then messages may be on
// their way to this pop and to no other.
type SuspendedError struct {
	server *Server
	poll   *poll
}

// Error says what the caller forgot.
func (*SuspendedError) Error() string { return "the pop was suspended and nobody waits for it" }

// Wait returns when it is time to resume: when there may be messages, when the wait is over, or when ctx ends. It needs little stack.
func (e *SuspendedError) Wait(ctx context.Context) {
	e.poll.why = e.server.park(ctx, e.poll.place.Woken, e.poll.longest)
}

// Resume goes on where Pop returned, with the results of Pop: the pop may be suspended again.
func (e *SuspendedError) Resume(ctx context.Context) (*Result, error) {
	result, err := e.server.goOn(ctx, e.poll)
	if !e.poll.parked && e.poll.ended != nil {
		e.poll.ended(result, err)
	}
	return result, err
}

// WhenEnded has f called with what Pop would have returned, once the pop is not suspended any more. It takes one function.
func (e *SuspendedError) WhenEnded(f func(*Result, error)) { e.poll.ended = f }
