package api

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	// maxSharedAge is the oldest answer that is ever given again.
	maxSharedAge = time.Minute
	// maxSharedBytes is the most bytes of answers and addresses that are kept, maxSharedAnswer those of one: larger ones are not kept.
	maxSharedBytes  = 64 << 20
	maxSharedAnswer = 8 << 20
	// maxSharedAnswers is how many are kept or made for others at a time. Further addresses are answered to each caller alone.
	maxSharedAnswers = 1000
)

// sharedAnswers lets callers of read-only routes who say how old an answer may be (Cache-Control: max-age) share one. Consoles that
// show the same page then cost as much as one of them, and callers who come while an answer is being made wait for that one.
type sharedAnswers struct {
	mu      sync.Mutex
	entries map[sharedKey]*sharedAnswer
	bytes   int
}

// A sharedKey is what an answer depends on. The access level was checked before; nothing of the token is in an answer.
type sharedKey struct {
	tenant uuid.UUID
	uri    string
}

// A sharedAnswer is one answer. made is closed when the others are final.
type sharedAnswer struct {
	made chan struct{}
	at   time.Time
	kind string
	body []byte
	ok   bool
}

// maxAgeOf reads how old an answer the caller takes; 0 wants one that is made now.
func maxAgeOf(r *http.Request) time.Duration {
	for one := range strings.SplitSeq(r.Header.Get("Cache-Control"), ",") {
		if text, found := strings.CutPrefix(strings.ToLower(strings.TrimSpace(one)), "max-age="); found {
			if seconds, err := strconv.Atoi(text); err == nil && seconds > 0 {
				return min(time.Duration(seconds)*time.Second, maxSharedAge)
			}
		}
	}
	return 0
}

// serve answers a request with what was made within age, or with what make makes.
func (s *sharedAnswers) serve(w http.ResponseWriter, r *http.Request, age time.Duration, tenant uuid.UUID, produce func(http.ResponseWriter, *http.Request) error) error {
	key := sharedKey{tenant, r.URL.RequestURI()}
	answer, mine := s.claim(key, age)
	if !mine {
		select {
		case <-answer.made:
		case <-r.Context().Done():
			return r.Context().Err()
		}
		if answer.ok {
			return answer.write(w)
		}
		return produce(w, r) // who made it failed or left; what failed for one is not told to others
	}
	recorded, err := s.record(key, answer, r, produce)
	if err != nil {
		return err
	}
	if !answer.ok {
		w.Header().Set("Content-Type", answer.kind)
		w.WriteHeader(recorded.status)
		_, _ = w.Write(answer.body) // the client is gone; nothing is left to tell it
		return nil
	}
	return answer.write(w)
}

// record makes an answer for everybody who waits for it. It is made to its end even when the one who asked first leaves.
func (s *sharedAnswers) record(key sharedKey, answer *sharedAnswer, r *http.Request, produce func(http.ResponseWriter, *http.Request) error) (*recorder, error) {
	defer s.finish(key, answer)
	recorded := &recorder{header: http.Header{}}
	if err := produce(recorded, r.WithContext(context.WithoutCancel(r.Context()))); err != nil {
		return nil, err
	}
	answer.kind, answer.body, answer.at = recorded.header.Get("Content-Type"), recorded.body.Bytes(), time.Now()
	answer.ok = recorded.status == http.StatusOK
	return recorded, nil
}

// claim returns the answer for a key, and whether the caller has to make it.
func (s *sharedAnswers) claim(key sharedKey, age time.Duration) (*sharedAnswer, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries == nil {
		s.entries = map[sharedKey]*sharedAnswer{}
	}
	if known := s.entries[key]; known != nil {
		select {
		case <-known.made:
			if time.Since(known.at) <= age {
				return known, false
			}
			s.forgetLocked(key, known)
		default:
			return known, false
		}
	}
	fresh := &sharedAnswer{made: make(chan struct{})}
	if len(s.entries) >= maxSharedAnswers {
		s.makeRoomLocked(nil)
	}
	if len(s.entries) < maxSharedAnswers {
		s.entries[key] = fresh
	}
	return fresh, true
}

// finish lets the others see an answer, and makes room.
func (s *sharedAnswers) finish(key sharedKey, answer *sharedAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(answer.made)
	if s.entries[key] != answer {
		return // there was no place for it
	}
	s.bytes += answer.size(key)
	if !answer.ok || answer.size(key) > maxSharedAnswer {
		s.forgetLocked(key, answer)
		return
	}
	s.makeRoomLocked(answer)
}

// makeRoomLocked drops what is too old to be given again, and while there is too much of them others too, all but one. The caller holds
// the mutex.
func (s *sharedAnswers) makeRoomLocked(keep *sharedAnswer) {
	for key, one := range s.entries {
		select {
		case <-one.made:
		default:
			continue
		}
		if one != keep && (s.bytes > maxSharedBytes || time.Since(one.at) > maxSharedAge) {
			s.forgetLocked(key, one)
		}
	}
}

// forgetLocked drops an answer that was made. The caller holds the mutex.
func (s *sharedAnswers) forgetLocked(key sharedKey, answer *sharedAnswer) {
	s.bytes -= answer.size(key)
	delete(s.entries, key)
}

// size is what an answer takes.
func (a *sharedAnswer) size(key sharedKey) int { return len(a.body) + len(key.uri) }

// write sends the answer with its age in whole seconds, rounded down.
func (a *sharedAnswer) write(w http.ResponseWriter) error {
	w.Header().Set("Age", strconv.Itoa(int(time.Since(a.at).Seconds())))
	w.Header().Set("Content-Type", a.kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(a.body) // the client is gone; nothing is left to tell it
	return nil
}

// A recorder keeps an answer.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

func (r *recorder) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(b)
}
