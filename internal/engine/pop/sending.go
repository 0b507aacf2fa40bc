package pop

import "time"

// While pops wait for room, an answer that is being sent for longer than it would take at slowestAnswer, but for wholeAnswer at most, and
// sendingGrace more, is given up. Without that a few clients that read slowly would keep the room, and everybody out of it, for as long as they
// like. While nobody waits an answer may be read as slowly as the connection is kept for.
const (
	sendingGrace  = 2 * time.Second
	slowestAnswer = 16 << 10 // bytes a second
	wholeAnswer   = time.Minute
	// relieveEvery is how often such answers are looked for.
	relieveEvery = 250 * time.Millisecond
)

// A sending is an answer on its way.
type sending struct {
	until  time.Time
	giveUp func()
}

// Sending says that the rendered answer is being sent, until sent is called. giveUp is called, once at most and from another goroutine, when
// that takes so long that pops which wait for its room must not wait for it any longer. It must not block, and may come when the answer
// has just been sent.
func (r *Result) Sending(giveUp func()) (sent func()) {
	if r.room.share == nil {
		return func() {}
	}
	most := min(time.Duration(float64(r.rendered)/slowestAnswer*float64(time.Second)), wholeAnswer)
	return r.room.share.send(&sending{time.Now().Add(sendingGrace + most), giveUp})
}

func (s *share) send(one *sending) (sent func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sending == nil {
		s.sending = make(map[*sending]struct{})
	}
	s.sending[one] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.sending, one)
	}
}

// hurryLocked has slow answers looked for as long as pops wait. The caller holds mu.
func (s *share) hurryLocked() {
	if !s.hurrying && s.waiting.Len() > 0 {
		s.hurrying = true
		time.AfterFunc(0, s.relieve)
	}
}

// relieve gives slow answers up, again and again while pops wait.
func (s *share) relieve() {
	s.mu.Lock()
	if s.waiting.Len() == 0 {
		s.hurrying = false
		s.mu.Unlock()
		return
	}
	now := time.Now()
	var late []func()
	for one := range s.sending {
		if now.After(one.until) {
			delete(s.sending, one)
			late = append(late, one.giveUp)
		}
	}
	s.mu.Unlock()
	for _, giveUp := range late {
		giveUp()
	}
	time.AfterFunc(relieveEvery, s.relieve)
}
