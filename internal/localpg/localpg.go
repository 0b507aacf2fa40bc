package localpg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

const (
	superuser = "queen"
	database  = "postgres"
	// socketPort only names the socket file; nothing listens on TCP.
	socketPort = "5432"
	// minMajor is the oldest PostgreSQL whose features the schema uses.
	minMajor = 15
)

// Options say where the private server keeps its data and how large it must be.
type Options struct {
	// DataDir is created when it does not exist. It is made absolute.
	DataDir string
	// MaxConnections is the most connections the broker's pool opens. The server gets some more, for the broker's single
	// connections and for a person with psql.
	MaxConnections int
	// Logger receives the life of the server and its warnings. nil discards them.
	Logger *slog.Logger
}

// A Server is a running private PostgreSQL. Its methods are safe for concurrent use.
type Server struct {
	log     *slog.Logger
	lock    *os.File
	cluster *cluster

	stopping chan struct{} // closed by the first Stop
	stopOnce sync.Once
	done     chan struct{} // closed when no server runs and none will be started again
	err      error         // written before done is closed

	mu      sync.Mutex
	process *process // the current server; replaced on restart
}

// Start brings the server up and returns when it accepts connections. When it fails, nothing keeps running and the data
// directory is free again. Crash recovery may take long; ctx bounds it.
//
// ctx only concerns the start: the server runs until [Server.Stop].
func Start(ctx context.Context, o Options) (*Server, error) {
	log := o.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	account, err := serverAccount()
	if err != nil {
		return nil, err
	}
	base, err := prepareBase(o.DataDir, account)
	if err != nil {
		return nil, err
	}
	lock, err := acquire(filepath.Join(base, "lock"), base)
	if err != nil {
		return nil, err
	}
	s := &Server{log: log, lock: lock, stopping: make(chan struct{}), done: make(chan struct{})}
	if s.cluster, err = openCluster(ctx, base, account, tune(machine(base), o.MaxConnections), log); err == nil {
		s.process, err = s.cluster.start(ctx, log)
	}
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("private PostgreSQL in %s: %w", base, err)
	}
	log.InfoContext(ctx, "private postgresql is up", slog.String("data_dir", base), slog.String("binaries", s.cluster.binaries.dir),
		slog.String("version", s.cluster.binaries.version), slog.Int("pid", s.process.pid()))
	go s.supervise()
	return s, nil
}

// ConnString connects to the server as its superuser.
func (s *Server) ConnString() string { return connString(s.cluster.socketDir) }

// ConnString connects to the server that another process runs on a data directory, as named by [InUseError].
func ConnString(dataDir string) string { return connString(socketDir(dataDir)) }

func connString(socketDir string) string {
	// A quote or backslash in a directory name is legal, so the value is escaped the way connection strings want it.
	dir := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(socketDir)
	return fmt.Sprintf("host='%s' port=%s user=%s dbname=%s sslmode=disable", dir, socketPort, superuser, database)
}

// Done is closed when the server is gone for good: after Stop, or when it could not be kept running, which Err then explains.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err is why the server is gone; nil before Done is closed and after a clean stop.
func (s *Server) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// Stop ends the server with a fast shutdown: sessions are cut, a checkpoint is written. When ctx ends first, the server is
// stopped without the checkpoint, which costs the next start a recovery and loses nothing. It returns when no server process
// is left, with the error of Err. A second call waits for the first.
func (s *Server) Stop(ctx context.Context) error {
	s.stopOnce.Do(func() { close(s.stopping) })
	s.mu.Lock()
	current := s.process
	s.mu.Unlock()
	current.stop(ctx, s.log)
	<-s.done
	s.log.InfoContext(ctx, "private postgresql has stopped")
	return s.err
}

// acquire takes the lock of a data directory. Another broker that holds it is an error that names its process.
func acquire(path, base string) (*os.File, error) {
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the data directory (QUEEN_DATA_DIR): %w", err)
	}
	if err := tryLock(lock); err != nil {
		holder := make([]byte, 20)
		n, _ := lock.Read(holder)
		_ = lock.Close()
		if errors.Is(err, errLocked) {
			return nil, &InUseError{DataDir: base, Holder: strings.TrimSpace(string(holder[:n]))}
		}
		return nil, fmt.Errorf("lock the data directory %s: %w", base, err)
	}
	if err := lock.Truncate(0); err == nil {
		_, _ = fmt.Fprintf(lock, "%d\n", os.Getpid()) // for the message above only
	}
	return lock, nil
}

// An InUseError says that another broker runs on the data directory.
type InUseError struct {
	DataDir string
	// Holder is the process id of the other broker, as far as it is known.
	Holder string
}

// Error names the directory and the other broker, and says what to do.
func (e *InUseError) Error() string {
	by := "another broker"
	if e.Holder != "" {
		by += " (process " + e.Holder + ")"
	}
	return fmt.Sprintf("data directory %s is in use by %s: stop it, or set QUEEN_DATA_DIR to another directory", e.DataDir, by)
}
