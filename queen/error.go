package queen

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// An Error is a refusal or failure, of a request or of one part of it. Find its kind with errors.Is and the Err variables of
// this package, and its details with errors.As.
type Error struct {
	// Status is the HTTP status; 0 when no broker answered.
	Status int
	// Code is the broker's word for the case, for example "rate_limited"; the broker's documentation lists them. Codes made here:
	// "unreachable" (no answer), "no_such_route", "lease_lost", "ack_rejected", "unknown_outcome", "duplicate".
	Code string
	// Message is for people and says what to do.
	Message string
	// RetryAfter is how long the broker asks to wait, 0 when it says nothing.
	RetryAfter time.Duration
	// Method, Path and Server say what was asked, and of whom. Path is without the query, which may hold names of customers.
	Method, Path, Server string
	// Body is the answer as it came, nil when there was none.
	Body []byte

	// Cause is the failure below, for example that of the connection; nil when the broker refused.
	Cause error
}

// The kinds of errors, for errors.Is.
var (
	// ErrUnavailable: no broker could be reached, or the one that answered cannot work now. Repeat later.
	ErrUnavailable = errors.New("queen: unavailable")
	// ErrQueueFull: the queue has reached its maxSize.
	ErrQueueFull = errors.New("queen: queue is full")
	// ErrLeaseLost: the lease has ended; the messages go, or have gone, to another worker.
	ErrLeaseLost = errors.New("queen: lease lost")
	// ErrRateLimited: the tenant asks too much (429).
	ErrRateLimited = errors.New("queen: rate limited")
	// ErrNotFound: no such queue, group, message, dead letter or task.
	ErrNotFound = errors.New("queen: not found")
	// ErrRouteMissing: this broker has no such route, because it is older or another product.
	ErrRouteMissing = errors.New("queen: the broker has no such route")
	// ErrUnauthenticated: the token is missing or not accepted (401).
	ErrUnauthenticated = errors.New("queen: not authenticated")
	// ErrForbidden: the token lacks the role (403).
	ErrForbidden = errors.New("queen: not allowed")
	// ErrInvalid: the request makes no sense, or is too large; repeating it does not help.
	ErrInvalid = errors.New("queen: invalid request")
	// ErrDuplicate: a transaction was rolled back because one of its messages is already stored.
	ErrDuplicate = errors.New("queen: duplicate transaction id")
	// ErrRolledBack: a transaction was rolled back as a whole; nothing of it was stored.
	ErrRolledBack = errors.New("queen: transaction rolled back")
	// ErrUnknownOutcome: the connection broke before the answer, and the call could not be repeated safely; it may have taken effect.
	ErrUnknownOutcome = errors.New("queen: unknown outcome")
)

// Codes that are made here rather than by a broker.
const (
	codeUnreachable    = "unreachable"
	codeNoRoute        = "no_such_route"
	codeLeaseLost      = "lease_lost"
	codeAckRejected    = "ack_rejected"
	codeUnknownOutcome = "unknown_outcome"
	codeDuplicate      = "duplicate"
	codeQueueFull      = "QUEUE_FULL"
	codeTransaction    = "transaction_failed"
)

// Error says what was asked of whom, and why it failed.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("queen: ")
	if e.Method != "" {
		b.WriteString(e.Method + " " + e.Path + ": ")
	}
	b.WriteString(e.Message)
	switch {
	case e.Code != "" && e.Status != 0:
		fmt.Fprintf(&b, " (%s, HTTP %d)", e.Code, e.Status)
	case e.Code != "":
		fmt.Fprintf(&b, " (%s)", e.Code)
	case e.Status != 0:
		fmt.Fprintf(&b, " (HTTP %d)", e.Status)
	}
	return b.String()
}

// Unwrap returns the failure below, for example that of the connection.
func (e *Error) Unwrap() error { return e.Cause }

// Is tells whether e is of the kind that target stands for.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrUnavailable:
		return e.Code == codeUnreachable || e.Status >= http.StatusInternalServerError
	case ErrQueueFull:
		return e.Code == codeQueueFull
	case ErrLeaseLost:
		return e.Code == codeLeaseLost
	case ErrRateLimited:
		return e.Status == http.StatusTooManyRequests
	case ErrNotFound:
		return e.Status == http.StatusNotFound && e.Code != codeNoRoute
	case ErrRouteMissing:
		return e.Code == codeNoRoute || e.Status == http.StatusMethodNotAllowed
	case ErrUnauthenticated:
		return e.Status == http.StatusUnauthorized
	case ErrForbidden:
		return e.Status == http.StatusForbidden
	case ErrInvalid:
		return e.Status == http.StatusBadRequest || e.Status == http.StatusRequestEntityTooLarge
	case ErrDuplicate:
		return e.Code == codeDuplicate
	case ErrRolledBack:
		return e.Code == codeTransaction || e.Code == codeDuplicate || strings.HasPrefix(e.Path, transactionPath) && e.Status == http.StatusOK
	case ErrUnknownOutcome:
		return e.Code == codeUnknownOutcome
	}
	return false
}

// Retryable tells whether the same call may succeed later.
func (e *Error) Retryable() bool {
	switch {
	case e.Code == codeUnreachable, e.Code == codeQueueFull:
		return true
	case e.Status == http.StatusRequestTimeout, e.Status == http.StatusTooManyRequests:
		return true
	}
	return e.Status >= http.StatusInternalServerError && e.Status != http.StatusNotImplemented
}

// nothingDone tells whether the broker surely left everything as it was, so that even a call that must not run twice may be
// repeated.
func (e *Error) nothingDone() bool {
	switch e.Code {
	case "rate_limited", "too_many_parked_pops", "starting", "overloaded", "request_timeout", "push_maintenance", "auth_keys_unavailable":
		return true
	}
	return e.Status == http.StatusTooManyRequests
}

// aboutBroker tells whether another broker may well answer otherwise at once.
func (e *Error) aboutBroker() bool {
	switch e.Code {
	case codeUnreachable, "starting", "stopping", "overloaded", "pool_exhausted":
		return true
	}
	return e.Status == http.StatusBadGateway || e.Status == http.StatusGatewayTimeout
}

// refusal makes the error of an answer outside the success statuses.
func refusal(status int, header http.Header, body []byte) *Error {
	e := &Error{Status: status, Body: body, RetryAfter: retryAfter(header.Get("Retry-After"), time.Now())}
	var known struct {
		Error json.RawMessage `json:"error"`
		Code  string          `json:"code"`
	}
	isJSON := json.Unmarshal(body, &known) == nil && known.Error != nil
	if isJSON {
		e.Code = known.Code
		if json.Unmarshal(known.Error, &e.Message) != nil {
			e.Message = string(known.Error)
		}
	} else {
		e.Message = shortened(strings.TrimSpace(string(body)))
	}
	switch {
	case status == http.StatusNotFound && !isJSON:
		e.Code = codeNoRoute // a broker's own "not found" is JSON; whatever else answered has no such route
		e.Message = "this broker has no such route"
	case status < http.StatusBadRequest:
		e.Message = "the broker answers with a redirect, which is not followed; connect to where it leads"
	case e.Message == "":
		e.Message = http.StatusText(status)
	}
	return e
}

// shortened keeps a page of HTML out of an error text.
func shortened(text string) string {
	const longest = 300
	if len(text) > longest {
		return strings.ToValidUTF8(text[:longest], "") + "…"
	}
	return text
}

// retryAfter reads the header of that name: seconds or a date.
func retryAfter(text string, now time.Time) time.Duration {
	if text == "" {
		return 0
	}
	if seconds, err := strconv.Atoi(text); err == nil {
		return time.Duration(max(seconds, 0)) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}
