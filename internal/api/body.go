package api

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// firstRead is what is allocated for a body before any of it has arrived. A client that announces a large body and sends
// nothing must not cost more than this; the buffer doubles as the bytes come in.
const firstRead = 64 << 10

// readBody reads the whole body into buf, which it may replace. It fails with a *requestError when the body is larger than
// the limit, is cut short, or stops arriving: every read may take as long as the configured stall, so that a slow line is served
// and a connection that is only kept open is not. While others wait for the room that the body takes it must come faster, see bodyGrace.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request, buf []byte) ([]byte, error) {
	limit := s.cfg.MaxBodyBytes
	if r.ContentLength > limit {
		return buf, s.bodyTooLarge()
	}
	hold := new(bodyHold)
	if answer, ok := w.(*response); ok {
		w = answer.ResponseWriter // the limit reader closes connections through the server's own type
		hold = &answer.body
	} else {
		defer hold.release() // nobody else does
	}
	if err := s.bodies.announce(r.Context(), hold, r.ContentLength); err != nil {
		return buf, err
	}
	body := http.MaxBytesReader(w, r.Body, limit)
	line := http.NewResponseController(w)
	buf = buf[:0]
	if want := min(r.ContentLength+1, firstRead); int64(cap(buf)) < want { // one more, to see the end without growing
		buf = make([]byte, 0, want)
	}
	for {
		if len(buf) == cap(buf) {
			grown := 2 * int64(max(cap(buf), 512))
			if rest := r.ContentLength + 1; rest > int64(len(buf)) {
				grown = min(grown, rest)
			}
			buf = append(make([]byte, 0, grown), buf...)
		}
		hold.next(len(buf), time.Now().Add(s.cfg.StallTimeout), line)
		n, err := body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case err == nil:
			if r.ContentLength >= 0 {
				continue
			}
			if err := s.bodies.grow(r.Context(), hold, int64(len(buf))); err != nil {
				hold.end(false)
				return buf, err
			}
		case errors.Is(err, io.EOF):
			hold.end(true)
			return buf, nil
		default:
			hold.end(false)
			return buf, s.bodyFault(r, err)
		}
	}
}

// bodyFault says why a body could not be read.
func (s *Server) bodyFault(r *http.Request, err error) error {
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	var known *requestError
	switch {
	case tooLarge:
		return s.bodyTooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		known = newError(codeRequestTimeout, errorRows[codeRequestTimeout].text)
	case errors.Is(err, io.ErrUnexpectedEOF):
		known = newError(codeBadBody, "bad body: it ended before the announced length")
	case r.Context().Err() != nil:
		return r.Context().Err()
	default:
		known = newError(codeBadBody, "bad body: it cannot be read: "+err.Error())
	}
	known.cause = err
	return known
}

func (s *Server) bodyTooLarge() error {
	return newError(codeBodyTooLarge, fmt.Sprintf("the body is larger than %d bytes (QUEEN_MAX_BODY_BYTES); send several smaller requests", s.cfg.MaxBodyBytes))
}
