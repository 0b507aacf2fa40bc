package http1

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// An exchange is one request and its answer: the http.ResponseWriter of a handler. It belongs to the goroutine of its connection.
type exchange struct {
	conn    *conn
	request http.Request
	url     url.URL
	body    body

	header http.Header
	status int // 0 until the answer begins
	// length is how long the body of the answer is, -1 when the handler did not say; wrote is how much of it was given.
	length, wrote int64
	closes        bool // the connection ends with the answer
	// out is the header of the answer as far as it is not sent; held is the body of an answer without a length.
	out   *[]byte
	typed bool
	held  []byte
	fault error // of the connection
	// cancel ends the context of the request.
	cancel context.CancelFunc
	// wait and resume are the rest of a handler that has suspended itself.
	wait, resume func()
	// writeDeadline says that the handler has set one.
	writeDeadline atomic.Bool
}

var exchanges = sync.Pool{New: func() any {
	x := &exchange{header: http.Header{}}
	x.request = http.Request{Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, URL: &x.url}
	x.body.x = x
	return x
}}

var writeBuffers = sync.Pool{New: func() any { return new(make([]byte, 0, 4<<10)) }}

// maxCopied is the longest body that is copied behind its header, to be sent in one piece; longer ones are sent from where they are.
const maxCopied = 8 << 10

// recycle gives the exchange back.
func (x *exchange) recycle() {
	x.releaseOut()
	clear(x.header)
	clear(x.request.Header)
	x.request = http.Request{Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: x.request.Header, URL: &x.url}
	x.url = url.URL{}
	*x = exchange{request: x.request, header: x.header}
	x.body.x = x
	exchanges.Put(x)
}

func (x *exchange) releaseOut() {
	if x.out != nil {
		if cap(*x.out) <= 2*maxCopied {
			*x.out = (*x.out)[:0]
			writeBuffers.Put(x.out)
		}
		x.out = nil
	}
}

// Suspend lets the handler wait without its stack: it returns without having begun the answer, and when wait has returned, resume is called as
// if it were the handler; it may suspend itself again. Both are called exactly once, in another goroutine. wait must not panic, and should
// return soon after the context of the request has ended: thousands that wait are to need a kilobyte of stack each. The request has no path
// values any more.
func (x *exchange) Suspend(wait, resume func()) {
	x.wait, x.resume = wait, resume
	r := &x.request
	kept := http.Request{
		Method: r.Method, URL: r.URL, Proto: r.Proto, ProtoMajor: r.ProtoMajor, ProtoMinor: r.ProtoMinor, Header: r.Header, Body: r.Body,
		ContentLength: r.ContentLength, Close: r.Close, Host: r.Host, RequestURI: r.RequestURI, Pattern: r.Pattern,
	}
	*r = *kept.WithContext(r.Context())
}

// takeRest returns what is left of a suspended handler.
func (x *exchange) takeRest() func() {
	rest := x.resume
	x.wait, x.resume = nil, nil
	return rest
}

// Header is that of the answer. Changes after WriteHeader have no effect.
func (x *exchange) Header() http.Header { return x.header }

// WriteHeader begins the answer. Informational answers (1xx) are not sent.
func (x *exchange) WriteHeader(status int) {
	if x.status != 0 || status < 200 {
		return
	}
	x.status, x.length = status, -1
	x.closes = x.request.Close || x.conn.server.closing.Load() || !x.body.discard()
	x.out = writeBuffers.Get().(*[]byte) //nolint:forcetypeassert // the pool holds nothing else
	dst := (*x.out)[:0]
	dst = append(dst, "HTTP/1.1 "...)
	dst = strconv.AppendInt(dst, int64(status), 10)
	dst = append(dst, ' ')
	dst = append(dst, http.StatusText(status)...)
	dst = append(dst, "\r\n"...)
	var sorted [16]string
	names := sorted[:0]
	dated := false
	for name := range x.header {
		switch name {
		case "Content-Length":
			if n, err := strconv.ParseInt(x.header.Get(name), 10, 64); err == nil && n >= 0 && x.mayHaveBody() {
				x.length = n
			}
			continue
		case "Connection":
			if x.header.Get(name) == "close" {
				x.closes = true
			}
			continue
		case "Content-Type":
			x.typed = true
		case "Date":
			dated = true
		}
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for _, value := range x.header[name] {
			dst = append(dst, name...)
			dst = append(dst, ": "...)
			dst = appendValue(dst, value)
			dst = append(dst, "\r\n"...)
		}
	}
	if !dated {
		dst = x.conn.server.clock.appendDate(dst)
	}
	if x.closes {
		dst = append(dst, "Connection: close\r\n"...)
	}
	if x.length >= 0 {
		dst = appendLength(dst, x.length)
	}
	*x.out = dst
}

// appendValue keeps an answer one answer, whatever a value holds.
func appendValue(dst []byte, value string) []byte {
	start := len(dst)
	dst = append(dst, strings.TrimSpace(value)...)
	for i := start; i < len(dst); i++ {
		if dst[i] == '\r' || dst[i] == '\n' {
			dst[i] = ' '
		}
	}
	return dst
}

func appendLength(dst []byte, n int64) []byte {
	dst = append(dst, "Content-Length: "...)
	dst = strconv.AppendInt(dst, n, 10)
	return append(dst, "\r\n"...)
}

func (x *exchange) mayHaveBody() bool {
	return x.status != http.StatusNoContent && x.status != http.StatusNotModified
}

// Write sends a part of the body: the header with the first part in one piece. Without a Content-Length it keeps the part until the handler
// returns.
func (x *exchange) Write(b []byte) (int, error) {
	if x.status == 0 {
		x.WriteHeader(http.StatusOK)
	}
	switch {
	case !x.mayHaveBody():
		return 0, http.ErrBodyNotAllowed
	case x.fault != nil:
		return 0, x.fault
	case len(b) == 0:
		return 0, nil
	case x.length < 0:
		x.held = append(x.held, b...)
		x.wrote += int64(len(b))
		return len(b), nil
	case x.wrote+int64(len(b)) > x.length:
		return 0, http.ErrContentLength
	}
	x.wrote += int64(len(b))
	if x.out == nil {
		x.fault = x.conn.write(b, !x.writeDeadline.Load())
	} else {
		x.endHeader(b)
		x.send(b)
	}
	if x.fault != nil {
		return 0, x.fault
	}
	return len(b), nil
}

// endHeader ends the header; b is the beginning of the body.
func (x *exchange) endHeader(b []byte) {
	if !x.typed && len(b) > 0 {
		*x.out = append(*x.out, "Content-Type: "+http.DetectContentType(b)+"\r\n"...)
	}
	*x.out = append(*x.out, "\r\n"...)
}

// send sends the header and b behind it.
func (x *exchange) send(b []byte) {
	if len(b) <= maxCopied {
		*x.out = append(*x.out, b...)
		x.fault = x.conn.write(*x.out, !x.writeDeadline.Load())
	} else {
		x.fault = x.conn.writeBoth(*x.out, b, !x.writeDeadline.Load())
	}
	x.releaseOut()
}

// FlushError sends the header if it was not sent. The body of an answer without a length stays where it is.
func (x *exchange) FlushError() error {
	if x.status == 0 {
		x.WriteHeader(http.StatusOK)
	}
	if x.fault == nil && x.out != nil && (x.length >= 0 || !x.mayHaveBody()) {
		x.endHeader(nil)
		x.send(nil)
	}
	return x.fault
}

// finish sends what is left of the answer, and reports whether the connection can have another request.
func (x *exchange) finish() bool {
	if x.status == 0 {
		x.WriteHeader(http.StatusOK)
	}
	if x.length < 0 && x.mayHaveBody() && x.fault == nil {
		x.length = x.wrote
		*x.out = appendLength(*x.out, x.length)
		x.endHeader(x.held)
		x.send(x.held)
	} else {
		_ = x.FlushError()
	}
	if x.writeDeadline.Load() {
		_ = x.conn.tcp.SetWriteDeadline(time.Time{})
	}
	if x.body.hasDeadline() {
		_ = x.conn.tcp.SetReadDeadline(time.Time{})
	}
	return x.fault == nil && !x.closes && x.body.left == 0 && x.wrote == max(x.length, 0)
}

// SetReadDeadline is for http.ResponseController. It bounds reading the body from the connection. Until the handler returns it may be called
// from any goroutine, to end a read under way.
func (x *exchange) SetReadDeadline(at time.Time) error {
	b := &x.body
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deadline = at
	if b.deadlineSet {
		b.deadlineSet = !at.IsZero()
		return x.conn.tcp.SetReadDeadline(at)
	}
	return nil
}

// SetWriteDeadline is for http.ResponseController. Until the handler returns it may be called from any goroutine, to end a write under way.
func (x *exchange) SetWriteDeadline(at time.Time) error {
	x.writeDeadline.Store(!at.IsZero())
	return x.conn.tcp.SetWriteDeadline(at)
}

// A body is that of a request with a Content-Length. The bytes that came with the header are read first, and cost no system call.
type body struct {
	x        *exchange
	left     int64
	received bool // some of it came after the header
	closed   bool
	fault    error

	mu sync.Mutex
	// deadline is for reads from the connection; deadlineSet says that the connection has one. Both are guarded by mu.
	deadline    time.Time
	deadlineSet bool
}

func (b *body) hasDeadline() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.deadlineSet
}

// useDeadline gives the connection the deadline before it is read from.
func (b *body) useDeadline() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.deadline.IsZero() || b.deadlineSet {
		b.deadlineSet = !b.deadline.IsZero()
		_ = b.x.conn.tcp.SetReadDeadline(b.deadline)
	}
}

// boundTo sets a deadline where the handler set none.
func (b *body) boundTo(at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.deadline.IsZero() {
		b.deadline = at
	}
}

// Read gives the next bytes, and io.EOF with the last of them.
func (b *body) Read(p []byte) (n int, err error) {
	switch {
	case b.closed:
		return 0, http.ErrBodyReadAfterClose
	case b.left == 0:
		return 0, io.EOF
	case b.fault != nil:
		return 0, b.fault
	case len(p) == 0:
		return 0, nil
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	c := b.x.conn
	if len(c.in) > 0 {
		n = copy(p, c.in)
		c.in = c.in[n:]
		c.releaseBuffer()
	} else {
		if n, err = b.receive(p); err != nil {
			b.fault = err
		}
	}
	if b.left -= int64(n); b.left == 0 {
		if b.received {
			c.bodyRead()
		}
		return n, io.EOF
	}
	return n, err
}

func (b *body) receive(p []byte) (n int, err error) {
	b.received = true
	b.useDeadline()
	if n, err = b.x.conn.tcp.Read(p); err == io.EOF { //nolint:errorlint // connections return it as it is
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Close ends reading.
func (b *body) Close() error {
	b.closed = true
	return nil
}

// maxDiscarded is how much of a body that the handler left is read, so that the connection can go on, as net/http does it.
const maxDiscarded = 256 << 10

// discard reads the rest of the body before the answer begins, and reports whether there is nothing left.
func (b *body) discard() bool {
	if b.left == 0 {
		return true
	}
	switch {
	case b.left >= maxDiscarded:
		return false
	case b.fault != nil:
		return b.fault == io.ErrUnexpectedEOF //nolint:errorlint // from receive; no next request will come that needs to be told about
	}
	b.boundTo(time.Now().Add(b.x.conn.server.cfg.ReadHeaderTimeout))
	piece := readBuffers.Get().(*[bufferSize]byte) //nolint:forcetypeassert // the pool holds nothing else
	defer readBuffers.Put(piece)
	b.closed = false
	for b.left > 0 {
		if _, err := b.Read(piece[:]); err != nil {
			break
		}
	}
	return b.left == 0
}
