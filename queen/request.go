package queen

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// A Response is the answer to [Client.Do].
type Response struct {
	// Status is 200 to 299; 204 has no Body.
	Status int
	Header http.Header
	// Body is the answer as it came.
	Body []byte

	server *server
}

// Decode reads JSON, a payload or the body of a [Response], into a value as encoding/json does.
func Decode[T any](text json.RawMessage) (T, error) {
	var value T
	if err := json.Unmarshal(text, &value); err != nil {
		return value, fmt.Errorf("queen: decode JSON: %w", err)
	}
	return value, nil
}

// Do makes a request to any route and returns the answer as it came: the way to what has no method here. path starts with a
// slash and is already escaped ([Path] makes one); query and body may be nil. A status outside 200 to 299 is an [*Error];
// when the broker has no such route, errors.Is(err, [ErrRouteMissing]).
//
// Requests that are safe to repeat are repeated like those of the other methods: GET (except a pop with autoAck), HEAD, PUT
// and DELETE always, others only when the broker says that nothing was done.
func (c *Client) Do(ctx context.Context, method, path string, query url.Values, body []byte) (*Response, error) {
	if !strings.HasPrefix(path, "/") {
		return nil, &Error{Status: http.StatusBadRequest, Code: "invalid_path", Message: "a path starts with a slash", Method: method, Path: path}
	}
	r := request{method: method, path: path, query: query.Encode(), body: body}
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete:
		r.repeatable = query.Get("autoAck") != "true"
	}
	if wait, err := time.ParseDuration(query.Get("timeout") + "ms"); err == nil && query.Get("wait") == "true" {
		r.wait = wait
	}
	return c.do(ctx, r)
}

// Path joins and escapes the segments of a path: Path("api", "v1", "resources", "queues", "a/b") is
// "/api/v1/resources/queues/a%2Fb". A segment that is "." or ".." is escaped too, because the broker refuses it otherwise.
func Path(segments ...string) string {
	var b strings.Builder
	for _, segment := range segments {
		b.WriteByte('/')
		if segment == "." || segment == ".." {
			b.WriteString(strings.ReplaceAll(segment, ".", "%2E"))
			continue
		}
		b.WriteString(url.PathEscape(segment))
	}
	return b.String()
}

// A request is what do sends.
type request struct {
	method, path, query string
	body                []byte
	// repeatable says that the request may run twice.
	repeatable bool
	// key is what the request is about, for Affinity; server is where it should go if that is healthy.
	key    string
	server *server
	// wait is how long the broker was asked to keep the request open.
	wait time.Duration
	// patient says that refusals for lack of room (429) are waited out until the context ends, whatever the budget.
	patient bool
}

// do sends a request, and repeats it as far as that is safe.
func (c *Client) do(ctx context.Context, r request) (*Response, error) {
	started := time.Now()
	var tried []*server
	for attempt := 0; ; attempt++ {
		target, more := c.servers.choose(time.Now(), r.key, r.server, tried)
		response, failure := c.attempt(ctx, target, &r)
		if failure == nil {
			target.up()
			return response, nil
		}
		if err := ctx.Err(); err != nil {
			if errors.Is(failure, context.Cause(ctx)) || errors.Is(failure, err) {
				return nil, fmt.Errorf("queen: %s %s: %w", r.method, r.path, context.Cause(ctx))
			}
			return nil, failure
		}
		if failure.aboutBroker() {
			target.down(time.Now())
			tried = append(tried, target)
		} else if failure.Status != 0 {
			target.up()
		}
		if !failure.Retryable() {
			return nil, failure
		}
		if !r.repeatable && !failure.nothingDone() && !neverSent(failure) {
			return nil, outcomeUnknown(failure)
		}
		if failure.aboutBroker() && more {
			continue // at once: another broker is healthy
		}
		tried = tried[:0]
		delay := max(jittered(backoff(attempt)), failure.RetryAfter)
		if elapsed := time.Since(started); elapsed+delay > c.budget && !(r.patient && failure.Status == http.StatusTooManyRequests) {
			return nil, failure
		}
		if err := c.pause(ctx, delay); err != nil {
			return nil, failure
		}
	}
}

// backoff doubles from 50 ms to 5 s.
func backoff(attempt int) time.Duration {
	return min(50*time.Millisecond<<min(attempt, 10), 5*time.Second)
}

// attempt sends a request once. The error is never nil without a response.
func (c *Client) attempt(ctx context.Context, target *server, r *request) (*Response, *Error) {
	limited, cancel := context.WithTimeout(ctx, c.timeout+r.wait)
	defer cancel()
	fail := func(err error) *Error {
		var network *url.Error
		if errors.As(err, &network) {
			err = network.Err // the text repeats method and URL, with the query
		}
		if limited.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("no answer within %v: %w", c.timeout+r.wait, err)
		}
		return &Error{Code: codeUnreachable, Message: err.Error(), Method: r.method, Path: r.path, Server: target.base, Cause: err}
	}
	address := target.base + r.path
	if r.query != "" {
		address += "?" + r.query
	}
	var body io.Reader // stays nil without a body, so that none is announced
	if r.body != nil {
		body = bytes.NewReader(r.body)
	}
	message, err := http.NewRequestWithContext(limited, r.method, address, body)
	if err != nil {
		return nil, &Error{Status: http.StatusBadRequest, Code: "invalid_path", Message: err.Error(), Method: r.method, Path: r.path}
	}
	for name, values := range c.header {
		message.Header[name] = values
	}
	if r.body != nil {
		message.Header.Set("Content-Type", "application/json")
	}
	if c.token != nil {
		token, err := c.token(limited)
		if err != nil {
			return nil, &Error{Status: http.StatusUnauthorized, Message: "get a token: " + err.Error(), Method: r.method, Path: r.path, Cause: err}
		}
		message.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := c.http.Do(message)
	if err != nil {
		return nil, fail(err)
	}
	defer answer.Body.Close()
	text, err := readAll(answer)
	if err != nil {
		return nil, fail(fmt.Errorf("the answer was cut short: %w", err))
	}
	if answer.StatusCode < http.StatusOK || answer.StatusCode >= http.StatusMultipleChoices {
		refused := refusal(answer.StatusCode, answer.Header, text)
		refused.Method, refused.Path, refused.Server = r.method, r.path, target.base
		return nil, refused
	}
	return &Response{Status: answer.StatusCode, Header: answer.Header, Body: text, server: target}, nil
}

// readAll reads an answer into a buffer of its announced length.
func readAll(answer *http.Response) ([]byte, error) {
	if answer.ContentLength <= 0 || answer.Request.Method == http.MethodHead {
		return io.ReadAll(answer.Body)
	}
	text := make([]byte, answer.ContentLength)
	_, err := io.ReadFull(answer.Body, text)
	return text, err
}

// neverSent tells whether a request certainly did not reach a broker.
func neverSent(e *Error) bool {
	var network *net.OpError
	return errors.As(e.Cause, &network) && network.Op == "dial"
}

// outcomeUnknown marks a failure after which the call may have taken effect.
func outcomeUnknown(e *Error) *Error {
	unknown := *e
	unknown.Code = codeUnknownOutcome
	unknown.Message = "it is not known whether the call took effect, and repeating it could do it twice: " + e.Message
	unknown.Cause = e
	return &unknown
}
