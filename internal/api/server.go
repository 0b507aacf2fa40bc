package api

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/pop"
	"queenmq/internal/engine/push"
	"queenmq/internal/engine/push/dedup"
	"queenmq/internal/engine/transaction"
	"queenmq/internal/pg"
	"queenmq/internal/tenant"
)

// Defaults of Config.
const (
	// DefaultMaxBodyBytes is the largest request body unless configured otherwise.
	DefaultMaxBodyBytes = 64 << 20
	// DefaultMaxInflightBodyBytes is how much of request bodies is in memory at a time unless configured otherwise.
	DefaultMaxInflightBodyBytes = 256 << 20
	// DefaultPopTimeout is how long a pop with wait=true waits when it names no timeout.
	DefaultPopTimeout = 30 * time.Second
	// DefaultStallTimeout is how long a transfer may stand still.
	DefaultStallTimeout = 30 * time.Second
)

// Config is what the HTTP face can be told. The zero value is the default.
type Config struct {
	// MaxBodyBytes is the largest request body, after which 413 is answered; 0 is DefaultMaxBodyBytes.
	MaxBodyBytes int64
	// MaxInflightBodyBytes is the most bytes of request bodies in memory at a time; 0 is DefaultMaxInflightBodyBytes. A quarter is for
	// bodies of at most 64 KiB. A body that is larger than all there is for its kind is served alone.
	MaxInflightBodyBytes int64
	// BodyWait is how long a request waits for room for its body before 503 is answered; 0 is 5 s.
	BodyWait time.Duration
	// PopTimeout is the long-poll deadline of pops that name none; 0 is DefaultPopTimeout, at most one hour.
	PopTimeout time.Duration
	// StallTimeout is how long a client may keep a transfer from getting on before its connection is given up: by sending no byte
	// of a body, or by reading less than 1 MiB of an answer. 0 is DefaultStallTimeout.
	StallTimeout time.Duration
	// Version is shown by /health. Empty shows "dev".
	Version string
	// ServerID names this broker where brokers are listed. Empty shows "local".
	ServerID string
	// Tenancy takes the tenant of a request from its header; without it everything belongs to the default tenant.
	Tenancy bool
	// TenantLabels gives the metrics of a queue a label with its tenant. Deps.Cluster must then tell tenants apart.
	TenantLabels bool
	// Origins are the origins whose pages may call the API from a browser; "*" is any. Empty is none.
	Origins []string
	// Limits bound what one tenant may ask. The zero value bounds nothing.
	Limits tenant.Limits
	// Log takes server-side faults with their causes. Nil drops them.
	Log *slog.Logger
}

// A Pusher stores messages. The payloads of the request belong to it until Push returns without an error; after an error it
// may still hold them, and they are not reused.
type Pusher interface {
	Push(ctx context.Context, r push.Request) ([]push.Verdict, error)
}

// A Popper claims messages; a nil result without an error means that there are none.
type Popper interface {
	Pop(ctx context.Context, r pop.Request) (*pop.Result, error)
}

// An Acker acknowledges messages and extends leases. Ack answers one result per item, in order, and keeps the items no longer than
// until it returns.
type Acker interface {
	Ack(ctx context.Context, tenant uuid.UUID, group string, items []ack.Item) []ack.Result
	Extend(ctx context.Context, tenant uuid.UUID, leaseID string, seconds int) (pg.Renewal, error)
}

// A Transactor runs pushes and acks that commit together.
type Transactor interface {
	Run(ctx context.Context, tenant uuid.UUID, producerSub string, operations []transaction.Operation, requiredLeases []string) (transaction.Outcome, error)
}

// A Check is one condition of readiness.
type Check struct {
	// Name is shown in the answer of /readyz.
	Name string
	// Run returns nil when the condition holds. Its error text is shown to the caller: keep it free of secrets.
	Run func(ctx context.Context) error
	// Advisory conditions are shown and do not decide: a broker whose statistics are late still serves.
	Advisory bool
}

// Deps are the parts that the routes call. All parts up to Flags are required.
type Deps struct {
	Pusher     Pusher
	Popper     Popper
	Acker      Acker
	Transactor Transactor
	Store      Store
	Browser    Browser
	Replayer   Replayer
	// Traces is nil for those of the Store, kept as they come.
	Traces   Traces
	Streamer Streamer
	Flags    Flags
	// Tail lets people watch queues. Nil lets nobody.
	Tail Tailer
	// Settings lists the settings in force, secrets masked. Nil lists none.
	Settings func() []Setting
	// Verifier checks tokens. Nil asks for none: every route is open.
	Verifier Verifier
	// Ready are the conditions of /readyz beside the database round trip, for example "schema applied" and "loops running".
	Ready []Check
	// Starting makes every route but the health and metrics ones answer 503 while the broker prepares its database. Nil is never.
	Starting func() bool
	// Stopping makes /health and /readyz answer 503 while the broker drains. Nil is never.
	Stopping func() bool
	// QueueChanged is called after a queue was configured or deleted, before the client is answered: the place to drop what
	// was cached about it. It must not block.
	QueueChanged func(tenant uuid.UUID, queue string)
	// GroupChanged is called after a group was moved or deleted, in one queue or with queue "" in all, or after the messages of a
	// queue were purged, with group "" for all groups: the place to drop what was cached about it. It must not block.
	GroupChanged func(tenant uuid.UUID, queue, group string)
	// Wake wakes the long polls of a queue, here and on other brokers; partition "" is somewhere in it. It must not block.
	Wake func(tenant uuid.UUID, queue, partition string)
	// RefreshStats computes the cached counters now and returns what it did as JSON. Nil answers that none are kept.
	RefreshStats func(ctx context.Context) (json.RawMessage, error)
	// FlagsChanged is called after a maintenance switch was turned. It must not block.
	FlagsChanged func()
	// Brokers lists the brokers of the database, as pg.DB.Brokers does. Nil lists none.
	Brokers func(ctx context.Context, filter pg.BrokerFilter) (json.RawMessage, error)
	// Buffer gives the figures of the file buffer. Nil says that there is none: pushes are then refused during maintenance.
	Buffer func() BufferFigures
	// Mesh gives the figures of the traffic between brokers. Nil says that there is none.
	Mesh func() MeshFigures
	// Admission gives the figures of the admission controller for the metrics. Nil leaves its families out.
	Admission func() admission.Stats
	// PushStats, DedupStats, PopStats, AckStats and LongPolls (waiting polls by queue) give the figures of the engine for the
	// metrics. Nil leaves their families out.
	PushStats  func() push.Stats
	DedupStats func() dedup.Stats
	PopStats   func() pop.Stats
	AckStats   func() ack.Stats
	LongPolls  func(each func(tenant uuid.UUID, queue string, waiting int))
	// Cluster reads what all brokers reported to the database, and Upkeep gives the figures of the background loops, for the
	// metrics. Nil leaves their families out.
	Cluster func(ctx context.Context) (pg.ClusterMetrics, error)
	Upkeep  func() UpkeepFigures
	// Page returns the file of the console for an escaped path that no route takes. Nil is no console.
	Page func(path string) (PageFile, bool)
	// Registry collects the metrics of /metrics/prometheus; the API registers its own families in it. Nil makes a new one.
	Registry *prometheus.Registry
}

// A Server is the HTTP face of one broker. Make one with [New].
type Server struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	router  *router
	started time.Time
	metrics *metrics
	faults  faultLog
	// description makes /openapi.json the first time it is asked for.
	description func() ([]byte, error)
	meter       *tenant.Meter
	bodies      *bodyRoom
	shared      sharedAnswers
	// claim is deps.Popper.Pop with an interface for its result, so that tests can see what becomes of results.
	claim func(ctx context.Context, r pop.Request) (popResult, error)
}

var _ http.Handler = (*Server)(nil)

// New returns the handler of all routes. It panics when a required dependency is missing or a family is already registered:
// both are faults of the program, not of its input.
func New(cfg Config, deps Deps) *Server {
	if deps.Pusher == nil || deps.Popper == nil || deps.Acker == nil || deps.Transactor == nil || deps.Store == nil ||
		deps.Browser == nil || deps.Replayer == nil || deps.Streamer == nil || deps.Flags == nil {
		panic("api: a required dependency is missing")
	}
	cfg.setDefaults()
	deps.setDefaults()
	s := &Server{cfg: cfg, deps: deps, log: cfg.Log, router: newRouter(routes), started: time.Now(), meter: tenant.NewMeter(cfg.Limits), bodies: newBodyRoom(cfg.MaxInflightBodyBytes, cfg.BodyWait)}
	s.description = sync.OnceValues(func() ([]byte, error) { return describe(routes) })
	s.claim = func(ctx context.Context, r pop.Request) (popResult, error) {
		return claimed(deps.Popper.Pop(ctx, r))
	}
	s.metrics = newMetrics(deps.Registry, s)
	return s
}

// setDefaults fills in what New was not told.
func (cfg *Config) setDefaults() {
	if cfg.MaxBodyBytes <= 0 {
		cfg.MaxBodyBytes = DefaultMaxBodyBytes
	}
	if cfg.MaxInflightBodyBytes <= 0 {
		cfg.MaxInflightBodyBytes = DefaultMaxInflightBodyBytes
	}
	if cfg.BodyWait <= 0 {
		cfg.BodyWait = defaultBodyWait
	}
	if cfg.PopTimeout <= 0 {
		cfg.PopTimeout = DefaultPopTimeout
	}
	cfg.PopTimeout = min(cfg.PopTimeout, maxPopTimeout)
	if cfg.StallTimeout <= 0 {
		cfg.StallTimeout = DefaultStallTimeout
	}
	if cfg.Version == "" {
		cfg.Version = "dev"
	}
	if cfg.ServerID == "" {
		cfg.ServerID = "local"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
}

// setDefaults fills in what may be left out.
func (deps *Deps) setDefaults() {
	if deps.Traces == nil {
		deps.Traces = deps.Store
	}
	if deps.Registry == nil {
		deps.Registry = prometheus.NewRegistry()
	}
	never := func() bool { return false }
	if deps.Starting == nil {
		deps.Starting = never
	}
	if deps.Stopping == nil {
		deps.Stopping = never
	}
	if deps.QueueChanged == nil {
		deps.QueueChanged = func(uuid.UUID, string) {}
	}
	nothing := func(uuid.UUID, string, string) {}
	if deps.GroupChanged == nil {
		deps.GroupChanged = nothing
	}
	if deps.Wake == nil {
		deps.Wake = nothing
	}
	if deps.FlagsChanged == nil {
		deps.FlagsChanged = func() {}
	}
	if deps.Brokers == nil {
		deps.Brokers = func(context.Context, pg.BrokerFilter) (json.RawMessage, error) {
			return json.RawMessage(`{"brokers":[],"total":0,"nextCursor":null}`), nil
		}
	}
	if deps.RefreshStats == nil {
		deps.RefreshStats = noStats
	}
}
