package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/output"
	"queenmq/queen"
)

// A finding is what one examination found.
type finding struct {
	Check string `json:"check"`
	// State is ok, warn, fail or unknown.
	State  string `json:"state"`
	Detail string `json:"detail"`
	// Hint says what to do, empty when nothing is wrong.
	Hint string `json:"hint,omitempty"`
}

func ok(check, format string, args ...any) finding {
	return finding{check, "ok", fmt.Sprintf(format, args...), ""}
}

func warn(check, hint, format string, args ...any) finding {
	return finding{check, "warn", fmt.Sprintf(format, args...), hint}
}

func fail(check, hint, format string, args ...any) finding {
	return finding{check, "fail", fmt.Sprintf(format, args...), hint}
}

// The bounds of the doctor.
const (
	maxClockSkew   = 5 * time.Second
	maxSnapshotAge = 5 * time.Minute
	minCacheRatio  = 0.9
)

// examinations are what the doctor looks at, in this order.
var examinations = []struct {
	name string
	look func(*app, context.Context) ([]finding, error)
}{
	{"readiness", (*app).examineReadiness},
	{"version", (*app).examineVersion},
	{"clock", (*app).examineClock},
	{"rights", (*app).examineRights},
	{"brokers", (*app).examineBrokers},
	{"maintenance", (*app).examineMaintenance},
	{"hints", (*app).examineHints},
	{"database", (*app).examineDatabase},
	{"capacity", (*app).examineCapacity},
	{"leases", (*app).examineLeases},
}

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Examine broker and database, and say what to do", Args: args(cobra.NoArgs),
		Long: `Examine readiness (database, schema, loops), versions, clocks, the rights of the token, the other brokers, maintenance and file buffer,
hints between brokers (notify, pooler), PostgreSQL (oldest snapshot, dead rows, cache, vacuum), full queues and abandoned leases.
A failure is exit code 5. queen doctor, on the broker's machine, examines its settings too.`,
		RunE: func(command *cobra.Command, _ []string) error { return a.doctor(command.Context()) },
	}
}

func (a *app) doctor(ctx context.Context) error {
	if _, err := a.call(ctx, http.MethodGet, "/livez", nil, nil); err != nil {
		return err
	}
	var all []json.RawMessage
	failed := 0
	for _, examination := range examinations {
		findings, err := examination.look(a, ctx)
		switch {
		case isMissingRoute(err):
			findings = []finding{{examination.name, "unknown", err.Error(), ""}}
		case errors.Is(err, queen.ErrForbidden), errors.Is(err, queen.ErrUnauthenticated):
			findings = []finding{{examination.name, "unknown", "the token may not look", "use a token with the role admin"}}
		case err != nil:
			findings = []finding{fail(examination.name, "see the broker's log", "%v", err)}
		}
		for _, f := range findings {
			if f.State == "fail" {
				failed++
			}
			text, err := bodyText(f)
			if err != nil {
				return err
			}
			all = append(all, text)
		}
	}
	if err := a.printer.List("findings", all, []output.Column{output.Col("STATE", "state"), output.Col("CHECK", "check"), output.Col("DETAIL", "detail"), output.Col("DO", "hint")}); err != nil {
		return err
	}
	if failed > 0 {
		return differs("%s failed", many(failed, "examination"))
	}
	return nil
}

func (a *app) examineReadiness(ctx context.Context) ([]finding, error) {
	answer, err := a.readiness(ctx)
	if err != nil {
		return nil, err
	}
	var findings []finding
	for _, name := range slices.Sorted(maps.Keys(answer.Checks)) {
		switch reason := answer.Checks[name]; {
		case reason == "ok":
			findings = append(findings, ok(name, "ok"))
		case answer.Ready:
			findings = append(findings, warn(name, "see the broker's log", "%s", reason))
		default:
			findings = append(findings, fail(name, "see the broker's log", "%s", reason))
		}
	}
	return findings, nil
}

type readiness struct {
	Ready  bool              `json:"ready"`
	Checks map[string]string `json:"checks"`
}

// readiness asks /readyz; a broker that is not ready answers too.
func (a *app) readiness(ctx context.Context) (readiness, error) {
	answer, err := a.call(ctx, http.MethodGet, "/readyz", nil, nil)
	if refused, is := errors.AsType[*queen.Error](err); is && refused.Status == http.StatusServiceUnavailable {
		if r, decoded := decode[readiness](refused.Body); decoded == nil && r.Checks != nil {
			return r, nil
		}
	}
	if err != nil {
		return readiness{}, err
	}
	return decode[readiness](answer)
}

func (a *app) examineVersion(ctx context.Context) ([]finding, error) {
	answer, err := a.call(ctx, http.MethodGet, "/health", nil, nil)
	if err != nil {
		return nil, err
	}
	health, err := decode[struct{ Version, Engine string }](answer)
	return []finding{ok("version", "broker %s, queenctl %s", health.Version, ownVersion())}, err
}

// examineClock compares this machine's clock with the database's. Messages and leases go by the latter alone; people compare them.
func (a *app) examineClock(ctx context.Context) ([]finding, error) {
	start := a.now()
	answer, err := a.call(ctx, http.MethodGet, "/api/v1/analytics/postgres-stats", nil, nil)
	if err != nil {
		return nil, err
	}
	took := a.now().Sub(start)
	database, err := decode[struct{ Timestamp time.Time }](answer)
	if err != nil {
		return nil, err
	}
	skew := database.Timestamp.Sub(start.Add(took / 2)).Abs()
	if skew > maxClockSkew+took {
		return []finding{warn("clock", "set this machine's clock (NTP); times given as 90m are counted from it", "this machine and the database differ by %s", output.Short(skew))}, nil
	}
	return []finding{ok("clock", "this machine and the database agree within %s", output.Short(max(skew, took, time.Second)))}, nil
}

func (a *app) examineRights(ctx context.Context) ([]finding, error) {
	_, err := a.call(ctx, http.MethodGet, "/api/v1/system/maintenance", nil, nil)
	if err != nil {
		return nil, err
	}
	if a.target.Token == "" {
		return []finding{warn("rights", "SECURITY.md says how to turn authentication on (JWT_ENABLED)", "everybody who reaches this address may do everything")}, nil
	}
	return []finding{ok("rights", "the token from the %s is an admin's", a.target.TokenSource)}, nil
}

func (a *app) examineBrokers(ctx context.Context) ([]finding, error) {
	answer, err := a.call(ctx, http.MethodGet, "/api/v1/system/brokers", nil, nil)
	if err != nil {
		return nil, err
	}
	list, err := decode[struct {
		Brokers []struct {
			ID, Version string
			Alive       bool
		}
	}](answer)
	if err != nil {
		return nil, err
	}
	alive, versions := 0, map[string]bool{}
	for _, b := range list.Brokers {
		if b.Alive {
			alive++
			versions[b.Version] = true
		}
	}
	if len(versions) > 1 {
		return []finding{warn("brokers", "finish the upgrade", "%d alive, of different versions: %s", alive, strings.Join(slices.Sorted(maps.Keys(versions)), ", "))}, nil
	}
	return []finding{ok("brokers", "%d alive", alive)}, nil
}

func (a *app) examineMaintenance(ctx context.Context) ([]finding, error) {
	answer, err := a.call(ctx, http.MethodGet, "/api/v1/system/maintenance", nil, nil)
	if err != nil {
		return nil, err
	}
	m, err := decode[struct {
		MaintenanceMode, PopMaintenanceMode, BufferHealthy bool
		BufferedMessages                                   int64
		BufferStats                                        struct {
			FailedFiles struct{ Count int64 }
		}
	}](answer)
	if err != nil {
		return nil, err
	}
	var findings []finding
	for _, s := range []struct {
		name string
		on   bool
	}{{"push", m.MaintenanceMode}, {"pop", m.PopMaintenanceMode}} {
		if s.on {
			findings = append(findings, warn("maintenance", "queenctl maintenance "+s.name+" off", "the %s switch is on", s.name))
		}
	}
	if len(findings) == 0 {
		findings = append(findings, ok("maintenance", "both switches are off"))
	}
	switch {
	case m.BufferStats.FailedFiles.Count > 0:
		findings = append(findings, fail("file buffer", "look into failed/ of the broker's FILE_BUFFER_DIR: each file has its reason beside it", "%d files hold messages that could not be stored", m.BufferStats.FailedFiles.Count))
	case !m.BufferHealthy:
		findings = append(findings, fail("file buffer", "see the broker's log; a full disk most likely", "the broker cannot write it"))
	case m.BufferedMessages > 0:
		findings = append(findings, warn("file buffer", "it empties by itself when the database is back", "%d messages wait on the broker's disk", m.BufferedMessages))
	default:
		findings = append(findings, ok("file buffer", "empty"))
	}
	return findings, nil
}

func (a *app) examineHints(ctx context.Context) ([]finding, error) {
	answer, err := a.call(ctx, http.MethodGet, "/internal/api/shared-state/stats", nil, nil)
	if err != nil {
		return nil, err
	}
	mesh, err := decode[struct {
		Enabled bool
		Running *bool
		Reason  string
	}](answer)
	switch {
	case err != nil:
		return nil, err
	case !mesh.Enabled && mesh.Reason == "no_peers":
		return []finding{ok("hints", "there is no other broker to send any")}, nil
	case !mesh.Enabled:
		return []finding{warn("hints", "nothing is lost without them; consumers of other brokers wait a little longer (QUEEN_SYNC_ENABLED)", "brokers send each other none: %s", mesh.Reason)}, nil
	case mesh.Running != nil && !*mesh.Running:
		return []finding{fail("hints", "LISTEN does not pass through a transaction pooler: set QUEEN_LISTEN_URL to the database itself", "the broker does not hear the others")}, nil
	}
	return []finding{ok("hints", "the broker hears the others (LISTEN)")}, nil
}

func (a *app) examineDatabase(ctx context.Context) ([]finding, error) {
	answer, err := a.call(ctx, http.MethodGet, "/api/v1/analytics/postgres-stats", nil, nil)
	if err != nil {
		return nil, err
	}
	stats, err := decode[struct {
		DatabaseCache  struct{ CacheHitRatio *float64 }
		OldestSnapshot *struct {
			PID        int
			AgeSeconds *float64
			Query      string
		}
		DeadTuples []struct {
			Table                  string
			DeadTuples, LiveTuples int64
			DeadPercentage         *float64
		}
	}](answer)
	if err != nil {
		return nil, err
	}
	findings := []finding{ok("oldest snapshot", "none is held for long")}
	if s := stats.OldestSnapshot; s != nil && s.AgeSeconds != nil {
		if age := time.Duration(*s.AgeSeconds * float64(time.Second)); age > maxSnapshotAge {
			findings[0] = warn("oldest snapshot", fmt.Sprintf("end that session (SELECT pg_terminate_backend(%d)): vacuum cannot clean behind it", s.PID), "process %d holds one for %s: %s", s.PID, output.Short(age), s.Query)
		}
	}
	vacuum := ok("vacuum", "few dead rows")
	for _, t := range stats.DeadTuples {
		if t.DeadPercentage != nil && *t.DeadPercentage > 50 && t.DeadTuples > 100_000 {
			vacuum = warn("vacuum", "see whether autovacuum runs, and whether an old snapshot holds it back", "%s has %d dead rows and %d live ones", t.Table, t.DeadTuples, t.LiveTuples)
		}
	}
	findings = append(findings, vacuum)
	if ratio := stats.DatabaseCache.CacheHitRatio; ratio != nil {
		share := *ratio
		if share > 1 {
			share /= 100
		}
		if share < minCacheRatio {
			findings = append(findings, warn("cache", "give PostgreSQL more shared_buffers, or the machine more memory", "%.0f %% of the reads are served from memory", share*100))
		} else {
			findings = append(findings, ok("cache", "%.0f %% of the reads are served from memory", share*100))
		}
	}
	return findings, nil
}

func (a *app) examineCapacity(ctx context.Context) ([]finding, error) {
	type bounded struct {
		Queue string
		Full  bool
	}
	queues, err := eventPages[bounded](ctx, a, "/api/v1/resources/capacity", "queues", nil, true)
	if err != nil {
		return nil, err
	}
	var full []string
	for _, q := range queues {
		if q.Full {
			full = append(full, q.Queue)
		}
	}
	if len(full) > 0 {
		return []finding{warn("capacity", "consume, or raise maxSize (queenctl queue set QUEUE --max-size N)", "full: %s", strings.Join(full, ", "))}, nil
	}
	return []finding{ok("capacity", "none of %d bounded queues is full", len(queues))}, nil
}

func (a *app) examineLeases(ctx context.Context) ([]finding, error) {
	answer, err := a.call(ctx, http.MethodGet, "/api/v1/leases", values("abandoned", "true", "limit", "1"), nil)
	if err != nil {
		return nil, err
	}
	leases, err := decode[struct{ Total int64 }](answer)
	if err != nil {
		return nil, err
	}
	if leases.Total > 0 {
		return []finding{warn("leases", "queenctl lease list --abandoned shows them: consumers die or are too slow for the leaseTime", "%d batches were given up and wait for another worker", leases.Total)}, nil
	}
	return []finding{ok("leases", "no batch was given up")}, nil
}
