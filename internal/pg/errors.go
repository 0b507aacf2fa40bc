package pg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"
)

// The errors of this package. Test for them with errors.Is; the text behind them is the server's. An error that is none of
// these is a fault of the installation (missing function, missing privilege) or of this program.
var (
	// ErrUnavailable says that the server could not be reached, or went away: nothing is known about the statement's effect
	// unless it never left. The next call tries anew.
	ErrUnavailable = errors.New("database unavailable")
	// ErrPoolTimeout says that no connection became free within Options.AcquireTimeout. Nothing was sent.
	ErrPoolTimeout = errors.New("no database connection became free in time")
	// ErrTimeout says that the statement did not end in time. It has been cancelled on the server.
	ErrTimeout = errors.New("database statement timed out")
	// ErrLockTimeout says that a row or table lock was not free within Options.LockTimeout. Nothing was written.
	ErrLockTimeout = errors.New("database lock was not free in time")
	// ErrSerialization says that a deadlock or a serialization failure came back on every attempt. Nothing was written.
	ErrSerialization = errors.New("database conflict on every attempt")
	// ErrBadData says that the server will never accept these values: repeating the call is useless. Nothing was written.
	ErrBadData = errors.New("database refused the data")
	// ErrVanished says that a queue or partition was deleted while the call ran. Nothing was written; a repetition may create
	// it again.
	ErrVanished = errors.New("queue or partition was deleted meanwhile")
	// ErrMalformedAnswer says that a procedure answered in a shape that this build does not know. What it wrote is committed.
	ErrMalformedAnswer = errors.New("database answered in an unknown shape")
	// ErrServerTooOld says that the server is older than PostgreSQL 15.
	ErrServerTooOld = errors.New("PostgreSQL is too old")
	// ErrNotUTF8 says that the database has another encoding than UTF8.
	ErrNotUTF8 = errors.New("the database is not encoded in UTF8")
	// ErrUnannouncedPooler says that a pooler which shares sessions is in front of the server, and that Options.DirectConnString does not say so.
	ErrUnannouncedPooler = errors.New("this is a pooler that shares sessions: set QUEEN_LISTEN_URL to PostgreSQL itself, see docs/pooler.md")
	// ErrNewerSchema says that the schema was written by a newer build, which this one might damage.
	ErrNewerSchema = errors.New("the database schema is newer than this build")
)

// An OptionError says that a queue option was refused. Nothing was changed.
type OptionError struct {
	// Text names the option, the bound and what to do; it is meant for the client.
	Text string
}

// Error returns the text.
func (e *OptionError) Error() string { return e.Text }

// A serverError gives an answer of the server one of the meanings above without repeating its severity to the client.
type serverError struct {
	kind  error
	cause *pgconn.PgError
}

func (e *serverError) Error() string {
	return e.kind.Error() + ": " + e.cause.Message + " (SQLSTATE " + e.cause.Code + ")"
}

func (e *serverError) Unwrap() []error { return []error{e.kind, e.cause} }

// kindOf translates an SQLSTATE; nil means that it has no meaning here. Class QU is ours: QU002 and QU003 below, QU004 for a
// transaction rolled back by a rule, which Transact reports.
func kindOf(code string) error {
	switch code {
	case "40001", "40P01": // serialization failure, deadlock
		return ErrSerialization
	case "55P03": // lock_timeout or NOWAIT
		return ErrLockTimeout
	case "57014": // statement_timeout or a cancel request
		return ErrTimeout
	case "QU002", // our own: a partition that is gone or cannot be made
		"23503": // the parent row is gone
		return ErrVanished
	case "QU003": // our own: arrays, segments or trace ids that do not fit together
		return ErrBadData
	case "25006", // read-only: a standby, or a fail-over under way
		"53000", "53100", "53200", "53300": // out of disk, memory, connection slots
		return ErrUnavailable
	case "53400": // QUEUE_FULL: a verdict of ours, see Transact
		return nil
	}
	switch {
	case strings.HasPrefix(code, "08"), strings.HasPrefix(code, "57P0"): // connection, server shutting down or starting up
		return ErrUnavailable
	case strings.HasPrefix(code, "22"), strings.HasPrefix(code, "54"): // data exception, program limit exceeded
		return ErrBadData
	}
	return nil
}

// classify gives an error of a statement its meaning. ctx is the caller's, statement the one the statement ran under.
func classify(ctx, statement context.Context, err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(statement); errors.Is(cause, ErrUnavailable) {
		return fmt.Errorf("%w: %w", cause, err) // the lookout gave it up
	}
	if serverErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		kind := kindOf(serverErr.Code)
		if strings.Contains(serverErr.Message, "unsupported startup parameter") {
			kind = ErrUnannouncedPooler
		}
		switch {
		case kind == ErrTimeout && isCanceled(ctx):
			return fmt.Errorf("the caller left: %w", context.Cause(ctx))
		case kind == nil:
			return err
		}
		return &serverError{kind: kind, cause: serverErr}
	}
	switch {
	case !isDriverError(err): // a verdict of ours, or the caller's own error
		return err
	case isCanceled(ctx):
		return fmt.Errorf("the caller left: %w", context.Cause(ctx))
	case ctx.Err() != nil, statement.Err() != nil:
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

func isCanceled(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }

// isDriverError says whether err came from the socket or the driver: a lost connection, or a context that ended.
func isDriverError(err error) bool {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	for _, known := range []error{
		context.Canceled, context.DeadlineExceeded, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, pgconn.ErrConnClosed, puddle.ErrClosedPool,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}
