package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ServeHTTP answers one request. It is the only place where a handler's error becomes an answer. Paths that are not clean are
// refused: cleaned up, a path with an empty queue name would silently become another route.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := &response{ResponseWriter: w, stall: s.cfg.StallTimeout, multiplexed: r.ProtoMajor >= 2}
	defer func() { answer.body.release() }() // a body lives as long as its request: payloads are slices of it
	defer s.recovered(answer, r)
	secure(w.Header())
	if s.cors(answer, r) {
		return
	}
	path := r.URL.EscapedPath()
	if fault := pathFault(path); fault != "" {
		s.fail(answer, r, "", newError(codeInvalidPath, fault))
		return
	}
	found, allow := s.router.find(r, path)
	if found == nil {
		if page, ok := s.findPage(r, path); ok { // public: it holds nothing but the program
			writePage(answer, r, page)
			return
		}
		if _, err := s.admit(r, path, unroutedAccess(r, path)); err != nil {
			s.fail(answer, r, "", err)
			return
		}
		s.noRoute(answer, r, path, allow)
		return
	}
	if s.foreignPage(r, found.route.access) {
		s.fail(answer, r, "", newError(codeCrossOrigin, errorRows[codeCrossOrigin].text))
		return
	}
	r, err := s.admit(r, path, found.route.access)
	if err != nil {
		err = classify(err, "") // the words of a refusal are the contract's, without the route's own before them
	} else {
		err = s.checkNames(r)
	}
	if err == nil && found.route.needsDatabase() && s.deps.Starting() {
		err = newError(codeStarting, errorRows[codeStarting].text)
	}
	if err == nil {
		err = s.handle(found.route, answer, r)
	}
	s.conclude(found.route, answer, r, err)
}

// conclude ends an answer, or leaves its end to a handler that waits: the frames of its stack are not kept for as long.
func (s *Server) conclude(route *route, answer *response, r *http.Request, err error) {
	if waits := answer.waits; waits.resume != nil {
		answer.waits = continuation{}
		answer.suspender().Suspend(waits.wait, func() {
			defer s.recovered(answer, r)
			s.conclude(route, answer, r, waits.resume())
		})
		return
	}
	if err != nil {
		s.fail(answer, r, route.failed, err)
	}
	s.metrics.answered(route, answer.status)
}

// handle runs the handler of a route, or gives an answer that was made a moment ago to callers who take it.
func (s *Server) handle(route *route, w http.ResponseWriter, r *http.Request) error {
	if age := maxAgeOf(r); age > 0 && r.Method == http.MethodGet && route.isShared() {
		return s.shared.serve(w, r, age, tenantOf(r), func(w http.ResponseWriter, r *http.Request) error { return route.handler(s, w, r) })
	}
	return route.handler(s, w, r)
}

// checkNames refuses names in the path that no queue, partition or lease can have.
func (s *Server) checkNames(r *http.Request) error {
	for _, name := range [...]string{"queue", "group", "leaseId"} {
		if fault := nameFault(r.PathValue(name)); fault != "" {
			return newError(codeInvalidName, name+" "+fault)
		}
	}
	if fault := partitionFault(r.PathValue("partition")); fault != "" {
		return newError(codeInvalidName, "partition "+fault)
	}
	return nil
}

// pathFault says why a path cannot be routed as it stands, "" when it can. A trailing slash is an empty segment too, except
// outside the API, where pages live.
func pathFault(path string) string {
	if !strings.HasPrefix(path, "/") {
		return "the path must start with a slash"
	}
	rest := path[1:]
	if rest == "" {
		return ""
	}
	for rest != "" {
		segment, after, more := strings.Cut(rest, "/")
		switch segment {
		case "":
			return "the path has an empty segment; a name in it must not be empty"
		case ".", "..":
			return "the path has a segment that is only dots; write a dot of a name as %2E"
		}
		if more && after == "" && isAPIPath(path) {
			return "the path ends with an empty segment; a name in it must not be empty"
		}
		rest = after
	}
	return ""
}

// isAPIPath reports whether unknown paths like this are answered for programs rather than for people.
func isAPIPath(path string) bool {
	for _, root := range [...]string{"/api", "/auth"} {
		if rest, ok := strings.CutPrefix(path, root); ok && (rest == "" || rest[0] == '/') {
			return true
		}
	}
	return false
}

// noRoute answers a request that no route takes; allow lists the methods of its path.
func (s *Server) noRoute(w http.ResponseWriter, r *http.Request, path string, allow []string) {
	switch {
	case len(allow) > 0:
		methods := strings.Join(allow, ", ")
		w.Header().Set("Allow", methods)
		s.fail(w, r, "", newError(codeMethodNotAllowed, r.Method+" is not allowed here; allowed: "+methods))
	case !isAPIPath(path) && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, "Not Found") // the client is gone; nothing is left to tell it
	default:
		s.fail(w, r, "", newError(codeNoSuchRoute, errorRows[codeNoSuchRoute].text))
	}
}

// fail writes the answer of an error. An error after the first byte of an answer ends the connection instead: the client
// must not take a cut answer for a whole one.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, prefix string, err error) {
	known := classify(err, prefix)
	row := known.row()
	switch gone := r.Context().Err(); {
	case gone != nil && errors.Is(err, gone):
		// Usually nobody is left to read this. But a handler that writes nothing answers 200 with an empty body, and the
		// context may also have ended because the broker stops.
		s.metrics.clientsGone.Inc()
		known = newError(codeStopping, errorRows[codeStopping].text)
		row = known.row()
	case row.status >= http.StatusInternalServerError:
		s.faults.log(r.Context(), s.log, known, r.Pattern)
	default:
		s.log.DebugContext(r.Context(), "request refused", slog.String("code", string(known.code)), slog.String("error", known.text))
	}
	if answer, ok := w.(*response); ok && answer.status != 0 {
		panic(http.ErrAbortHandler)
	}
	if row.retryable {
		w.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(known.retryAfter.Seconds())))))
	}
	if row.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	body := known.body
	if body == nil {
		body = appendError(nil, known.text, known.code)
	}
	_ = writeJSON(w, row.status, body) // the client is gone; nothing is left to tell it
}

// recovered turns a panic of a handler into a 500, or into the end of the connection when the answer has begun.
func (s *Server) recovered(w *response, r *http.Request) {
	cause := recover()
	if cause == nil {
		return
	}
	if err, ok := cause.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(http.ErrAbortHandler)
	}
	s.metrics.panics.Inc()
	s.log.ErrorContext(r.Context(), "handler panicked",
		slog.Any("error", cause), slog.String("route", r.Pattern), slog.String("stack", string(debug.Stack())))
	if w.status != 0 {
		panic(http.ErrAbortHandler)
	}
	_ = writeJSON(w, http.StatusInternalServerError, appendError(nil, errorRows[codeInternal].text, codeInternal))
}

// A response remembers whether an answer has begun, and gives up on clients that do not read it.
type response struct {
	http.ResponseWriter
	status int
	stall  time.Duration
	// multiplexed answers share a connection: each waits for its client by itself, where no bound on the connection's writes ends it.
	multiplexed bool
	// body is the room that the request's body takes.
	body bodyHold
	// waits is what follows when a handler returns to wait; see conclude.
	waits continuation

	mu sync.Mutex
	// line bounds the write of a large answer that is under way; nil without one.
	line    *http.ResponseController
	givenUp bool
}

// A continuation is the rest of a handler that waits: wait returns when resume is to be called.
type continuation struct {
	wait   func()
	resume func() error
}

// A suspender is the writer of a server that can wait for the handler, with less memory. After Suspend the handler returns without an answer;
// when wait has returned, resume is called as if it were the handler.
type suspender interface {
	Suspend(wait, resume func())
}

// suspender returns that of the answer; nil when its handler has to do the waiting.
func (w *response) suspender() suspender {
	can, _ := w.ResponseWriter.(suspender)
	return can
}

func (w *response) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.boundStream()
	w.ResponseWriter.WriteHeader(status)
}

func (w *response) Write(b []byte) (n int, err error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	if len(b) <= maxUnwatched {
		w.boundStream()
		return w.ResponseWriter.Write(b)
	}
	// Piece by piece, each in its time: a client that stops reading must not pin a large answer until it leaves.
	line := http.NewResponseController(w.ResponseWriter)
	for len(b) > 0 {
		if !w.nextPiece(line) {
			return n, os.ErrDeadlineExceeded
		}
		wrote, err := w.ResponseWriter.Write(b[:min(len(b), watchedPiece)])
		n += wrote
		if err != nil {
			w.endPieces()
			return n, err
		}
		b = b[wrote:]
	}
	w.endPieces()
	if w.multiplexed {
		w.boundStream() // what is left of it
	} else {
		_ = line.SetWriteDeadline(time.Time{}) // the connection goes on to the next request
	}
	return n, nil
}

// boundStream gives what follows of a multiplexed answer its time.
func (w *response) boundStream() {
	if w.multiplexed {
		_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(w.stall)) // of this answer alone
	}
}

// nextPiece gives the next write its time, unless the answer was given up.
func (w *response) nextPiece(line *http.ResponseController) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.givenUp {
		w.line = nil
		return false
	}
	w.line = line
	_ = line.SetWriteDeadline(time.Now().Add(w.stall)) // a writer without a connection has none
	return true
}

func (w *response) endPieces() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.line = nil
}

// giveUp ends the write of a large answer that is under way. It may be called at any time from any goroutine.
func (w *response) giveUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.line != nil {
		w.givenUp = true
		_ = w.line.SetWriteDeadline(time.Unix(1, 0)) // long ago
	}
}

const (
	// maxUnwatched is the largest answer that is left to the server's own bound on writes: usually the kernel takes it whether the client
	// reads or not.
	maxUnwatched = 16 << 10
	// watchedPiece is how much of an answer must leave within the stall timeout.
	watchedPiece = 1 << 20
)

// Unwrap lets http.ResponseController reach the connection.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// faultInterval is how often the log repeats one kind of fault: an absent database fails every request, and one line a
// minute says the same.
const faultInterval = time.Minute

// A faultLog writes server-side faults, each kind at most once per faultInterval, with the number left out in between.
type faultLog struct {
	mu   sync.Mutex
	seen map[code]*faultCount
}

type faultCount struct {
	last    time.Time
	skipped int
}

func (f *faultLog) log(ctx context.Context, log *slog.Logger, fault *requestError, route string) {
	f.mu.Lock()
	if f.seen == nil {
		f.seen = make(map[code]*faultCount)
	}
	count := f.seen[fault.code]
	if count == nil {
		count = &faultCount{}
		f.seen[fault.code] = count
	}
	now := time.Now()
	// Internal errors are never the same twice: every one of them is worth its line.
	if fault.code != codeInternal && !count.last.IsZero() && now.Sub(count.last) < faultInterval {
		count.skipped++
		f.mu.Unlock()
		return
	}
	skipped := count.skipped
	count.last, count.skipped = now, 0
	f.mu.Unlock()

	level := slog.LevelWarn
	if fault.code == codeInternal {
		level = slog.LevelError
	}
	log.LogAttrs(ctx, level, "request failed", slog.String("code", string(fault.code)), slog.String("route", route),
		slog.Any("error", fault), slog.Int("not_logged", skipped))
}
