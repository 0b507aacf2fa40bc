package pg

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// lookAfter is how long a statement runs before somebody asks the server about it, lookEvery how often that is.
	lookAfter = 1500 * time.Millisecond
	lookEvery = time.Second
	// lookTimeout bounds one question, the connection for it included.
	lookTimeout = 3 * time.Second
)

var (
	errNoAnswer = errors.New("the server does not answer")
	errAborted  = errors.New("this broker stops")
	errSilent   = errors.New("the server has ended the statement and its answer did not come")
)

// A lookout finds statements that wait for an answer which will not come: of a server that hangs or is cut off while something on the way -
// a proxy, a pooler, the kernel of a stopped machine - keeps the connection, or over a connection that was lost in silence. They fail with
// ErrUnavailable long before their timeout. A statement that is merely slow is left alone. Nothing runs while all statements are quick.
type lookout struct {
	db *DB

	mu      sync.Mutex
	running map[*inFlight]struct{}
	looking bool
	closed  bool
	looks   sync.WaitGroup
	ctx     context.Context //nolint:containedctx // of looks, which outlive the statement that caused them
	stop    context.CancelFunc
}

// An inFlight is one attempt of a call.
type inFlight struct {
	began  time.Time
	pid    uint32
	giveUp context.CancelCauseFunc
	alarm  *time.Timer
	seen   activity // at the last look
}

// activity is what the server says of a session.
type activity struct {
	State   string
	Changed time.Time
}

func (a activity) waitsForClient() bool { return a.State == "idle" || a.State == "idle in transaction" }

func newLookout(db *DB) *lookout {
	l := &lookout{db: db, running: make(map[*inFlight]struct{})}
	l.ctx, l.stop = context.WithCancel(context.Background())
	return l
}

// watch follows a statement until the returned function is called. giveUp makes it fail with a cause.
func (l *lookout) watch(pid uint32, giveUp context.CancelCauseFunc) (done func()) {
	s := &inFlight{began: time.Now(), pid: pid, giveUp: giveUp}
	l.mu.Lock()
	l.running[s] = struct{}{}
	l.mu.Unlock()
	s.alarm = time.AfterFunc(lookAfter, l.wake)
	return func() {
		s.alarm.Stop()
		l.mu.Lock()
		delete(l.running, s)
		l.mu.Unlock()
	}
}

// abort gives up everything that runs now.
func (l *lookout) abort() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.running {
		s.giveUp(fmt.Errorf("%w: %w", ErrUnavailable, errAborted))
	}
}

// close ends all looks.
func (l *lookout) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.stop()
	l.looks.Wait()
}

// wake starts looking unless somebody does.
func (l *lookout) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.looking || l.closed {
		return
	}
	l.looking = true
	l.looks.Go(l.look)
}

// look asks the server again and again until no statement is slow any more.
func (l *lookout) look() {
	for {
		slow := l.slow()
		if slow == nil {
			return
		}
		seen, err := l.ask(slow)
		if l.ctx.Err() == nil {
			l.judge(slow, seen, err)
		}
		if !wait(l.ctx, lookEvery) {
			return
		}
	}
}

// slow returns the statements that run for long. Without any, looking ends.
func (l *lookout) slow() []*inFlight {
	l.mu.Lock()
	defer l.mu.Unlock()
	var slow []*inFlight
	for s := range l.running {
		if time.Since(s.began) >= lookAfter {
			slow = append(slow, s)
		}
	}
	l.looking = slow != nil && l.ctx.Err() == nil
	if !l.looking {
		return nil
	}
	return slow
}

// ask asks on a connection of its own, as a new client would, what the server does for these statements. Behind a pooler only that it
// answers is known.
func (l *lookout) ask(slow []*inFlight) (map[uint32]activity, error) {
	ctx, cancel := context.WithTimeout(l.ctx, lookTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, l.db.lookConfig())
	if err != nil {
		return nil, err
	}
	defer closeSession(conn)
	if l.db.options.pooled {
		return nil, conn.Ping(ctx)
	}
	pids := make([]int32, len(slow))
	for i, s := range slow {
		pids[i] = int32(s.pid) //nolint:gosec // a process id
	}
	rows, err := conn.Query(ctx, `SELECT pid, COALESCE(state, ''), COALESCE(state_change, 'epoch') FROM pg_catalog.pg_stat_activity WHERE pid = ANY ($1)`, pids)
	if err != nil {
		return nil, err
	}
	seen := make(map[uint32]activity, len(slow))
	var pid int32
	var a activity
	_, err = pgx.ForEachRow(rows, []any{&pid, &a.State, &a.Changed}, func() error {
		seen[uint32(pid)] = a //nolint:gosec // a process id
		return nil
	})
	return seen, err
}

// judge gives up statements that cannot be answered any more.
func (l *lookout) judge(slow []*inFlight, seen map[uint32]activity, err error) {
	if isRefusing(err) {
		return // it answers, only not us
	}
	lost := 0
	for _, s := range slow {
		now, known := seen[s.pid]
		switch {
		case err != nil:
			s.giveUp(fmt.Errorf("%w: %w: %w", ErrUnavailable, errNoAnswer, err))
		case l.db.options.pooled:
			continue
		case !known, now.waitsForClient() && now == s.seen: // the same as a look ago, while we were listening
			s.giveUp(fmt.Errorf("%w: %w", ErrUnavailable, errSilent))
		default:
			s.seen = now
			continue
		}
		lost++
	}
	if lost > 0 {
		l.db.pool.Reset() // what is idle is no better
	}
}

// isRefusing says that a server is there and takes no more sessions, or not ours.
func isRefusing(err error) bool {
	serverErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && kindOf(serverErr.Code) != ErrUnavailable || ok && serverErr.Code == "53300"
}

// lookConfig is that of the pool's sessions, for one that asks one question.
func (db *DB) lookConfig() *pgx.ConnConfig {
	config := connConfig(db.options)
	config.RuntimeParams["application_name"] += " lookout"
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	return config
}
