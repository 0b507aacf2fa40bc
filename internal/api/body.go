package api

import (
	"errors"
	"fmt"
	"io"
	"net/http"
)

// firstRead is what is allocated for a body before any of it has arrived. A client that announces a large body and sends
// nothing must not cost more than this; the buffer doubles as the bytes come in.
const firstRead = 64 << 10

// readBody reads the whole body into buf, which it may replace. It fails with a *requestError when the body is larger than
// the limit or does not arrive.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request, buf []byte) ([]byte, error) {
	limit := s.cfg.MaxBodyBytes
	if r.ContentLength > limit {
		return buf, s.bodyTooLarge()
	}
	if answer, ok := w.(*response); ok {
		w = answer.ResponseWriter // the limit reader closes connections through the server's own type
	}
	body := http.MaxBytesReader(w, r.Body, limit)
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
		n, err := body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return buf, nil
		default:
			if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
				return buf, s.bodyTooLarge()
			}
			if r.Context().Err() != nil {
				return buf, r.Context().Err()
			}
			known := newError(codeRequestTimeout, errorRows[codeRequestTimeout].text)
			known.cause = err
			return buf, known
		}
	}
}

func (s *Server) bodyTooLarge() error {
	return newError(codeBodyTooLarge, fmt.Sprintf("the body is larger than %d bytes (QUEEN_MAX_BODY_BYTES); send several smaller requests", s.cfg.MaxBodyBytes))
}
