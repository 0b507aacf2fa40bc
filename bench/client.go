package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"strconv"
	"sync"
	"time"
)

// A client speaks just enough HTTP/1.1 for the load: one request at a time on kept-alive connections, one write a request, no
// goroutine of its own. The client of net/http costs as much processor time as the broker that it measures, on the same
// processors. It is safe for concurrent use.
type client struct {
	address string

	mu   sync.Mutex
	idle []*line
}

// longestIdle is how long a connection may rest before it is used again: less than the three minutes after which the broker closes it.
const longestIdle = time.Minute

// A line is one connection.
type line struct {
	conn net.Conn
	in   *bufio.Reader
	out  []byte
	used time.Time
}

func newClient(address string) *client { return &client{address: address} }

// call sends one request and reads the whole answer. When ctx ends meanwhile, the connection is given up.
func (c *client) call(ctx context.Context, method, path string, body []byte) (answer []byte, status int, err error) {
	l, err := c.take(ctx)
	if err != nil {
		return nil, 0, err
	}
	abort := context.AfterFunc(ctx, func() { _ = l.conn.SetDeadline(time.Unix(1, 0)) })
	l.out = append(append(append(append(l.out[:0], method...), ' '), path...), " HTTP/1.1\r\nHost: "...)
	l.out = append(append(l.out, c.address...), "\r\n"...)
	if body != nil {
		l.out = append(l.out, "Content-Type: application/json\r\nContent-Length: "...)
		l.out = append(strconv.AppendInt(l.out, int64(len(body)), 10), "\r\n"...)
	}
	l.out = append(append(l.out, "\r\n"...), body...)
	reusable := false
	if _, err = l.conn.Write(l.out); err == nil {
		answer, status, reusable, err = l.read()
	}
	if !abort() || err != nil || !reusable {
		_ = l.conn.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return answer, status, err
	}
	l.used = time.Now()
	c.mu.Lock()
	c.idle = append(c.idle, l)
	c.mu.Unlock()
	return answer, status, nil
}

func (c *client) take(ctx context.Context) (*line, error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 && time.Since(c.idle[n-1].used) < longestIdle {
		l := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		return l, nil
	}
	for _, l := range c.idle { // the one used last rested too long, and so did all
		_ = l.conn.Close()
	}
	c.idle = nil
	c.mu.Unlock()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.address)
	if err != nil {
		return nil, err
	}
	return &line{conn: conn, in: bufio.NewReader(conn)}, nil
}

// close closes the connections that are not in use.
func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.idle {
		_ = l.conn.Close()
	}
	c.idle = nil
}

// read reads an answer to its end.
func (l *line) read() (body []byte, status int, reusable bool, err error) {
	text, err := l.in.ReadSlice('\n')
	if err != nil {
		return nil, 0, false, err
	}
	if len(text) < len("HTTP/1.1 200\r\n") || !bytes.HasPrefix(text, []byte("HTTP/1.1 ")) {
		return nil, 0, false, fmt.Errorf("no HTTP answer: %.100q", text)
	}
	if status, err = strconv.Atoi(string(text[9:12])); err != nil {
		return nil, 0, false, fmt.Errorf("no HTTP status: %.100q", text)
	}
	length, chunked, reusable := 0, false, true
	for {
		text, err = l.in.ReadSlice('\n')
		if err != nil {
			return nil, status, false, err
		}
		if text = bytes.TrimSuffix(text, []byte("\r\n")); len(text) == 0 {
			break
		}
		name, value, _ := bytes.Cut(text, []byte(": "))
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.Atoi(string(value)); err != nil || length < 0 {
				return nil, status, false, errors.New("bad Content-Length")
			}
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			chunked = true
		case bytes.EqualFold(name, []byte("Connection")):
			reusable = !bytes.EqualFold(value, []byte("close"))
		}
	}
	if chunked { // the end of the connection is reached when its trailer is
		body, err = io.ReadAll(httputil.NewChunkedReader(l.in))
		return body, status, false, err
	}
	body = make([]byte, length)
	_, err = io.ReadFull(l.in, body)
	return body, status, reusable && err == nil, err
}
