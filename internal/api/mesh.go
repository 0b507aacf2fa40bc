package api

import (
	"net"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"queenmq/internal/pg"
)

// MeshFigures are those of the traffic between the brokers of a database. Counters are since the start.
type MeshFigures struct {
	// Listening tells that the session that hears is open, Proven that what this broker sent came back over it.
	Listening, Proven bool
	Peers             []MeshPeer
	// Payloads: sent and received; failed to be sent; received beyond the allowance of their sender; not understood.
	Sent, Received, Failed, Dropped, Malformed uint64
	// Suppressed hints, flushes with queues in place of partitions, changes lost to a full outbox, sessions opened to hear.
	Suppressed, Partial, Lost, Sessions uint64
	// Usage is how full the server's queue of notifications is, from 0 to 1.
	Usage float64
}

// A MeshPeer is another broker that was heard.
type MeshPeer struct {
	ServerID, Address string
	Alive             bool
}

// brokers lists the brokers of the database page by page, oldest first.
func (s *Server) brokers(w http.ResponseWriter, r *http.Request) error {
	q := lenient(r)
	filter := pg.BrokerFilter{Contains: q.text("contains"), Cursor: q.text("cursor")}
	filter.Limit, _ = q.page(maxPageLimit) // who asks for no page wants all of them
	if q.text("alive") != "" {
		filter.Alive = new(q.boolean("alive", true))
	}
	return relay(w)(s.deps.Brokers(r.Context(), filter))
}

// meshAnswer is the shape that clients of the older line read. Nothing is signed or sequenced here, so these failures stay 0.
type meshAnswer struct {
	ServerID    string           `json:"server_id"`
	Transport   string           `json:"transport"`
	Port        int              `json:"port"`
	PeerCount   int              `json:"peer_count"`
	Peers       []meshPeerAnswer `json:"peers"`
	Alive       int              `json:"servers_alive"`
	Dead        int              `json:"servers_dead"`
	Sent        uint64           `json:"messages_sent"`
	Received    uint64           `json:"messages_received"`
	Dropped     uint64           `json:"messages_dropped"`
	Signatures  int              `json:"signature_failures"`
	Handshakes  int              `json:"handshake_failures"`
	Sequences   int              `json:"sequence_rejections"`
	Enabled     bool             `json:"enabled"`
	Running     bool             `json:"running"`
	Maintenance bool             `json:"maintenance_mode"`
	PopsPaused  bool             `json:"pop_maintenance_mode"`
}

type meshPeerAnswer struct {
	Host       string `json:"host"`
	Port       int    `json:"port"`
	Connected  bool   `json:"connected"`
	Resolved   bool   `json:"resolved"`
	ResolvedIP string `json:"resolved_ip"`
	ServerID   string `json:"server_id"`
}

// meshStats shows the traffic between brokers, once there is another one.
func (s *Server) meshStats(w http.ResponseWriter, _ *http.Request) error {
	var figures MeshFigures
	if s.deps.Mesh != nil {
		figures = s.deps.Mesh()
	}
	pushes, pops := s.deps.Flags.PushesPaused(), s.deps.Flags.PopsPaused()
	if len(figures.Peers) == 0 {
		return writeValue(w, http.StatusOK, sharedStateAnswer{Reason: "no_peers", Maintenance: pushes, PopMaintenance: pops})
	}
	answer := meshAnswer{
		ServerID: s.cfg.ServerID, Transport: "listen-notify", PeerCount: len(figures.Peers),
		Sent: figures.Sent, Received: figures.Received, Dropped: figures.Dropped,
		Enabled: true, Running: figures.Listening, Maintenance: pushes, PopsPaused: pops,
	}
	for _, peer := range figures.Peers {
		host, port, _ := net.SplitHostPort(peer.Address) // another broker says it; nobody connects there
		number, _ := strconv.Atoi(port)
		answer.Peers = append(answer.Peers, meshPeerAnswer{Host: host, Port: number, Connected: peer.Alive, Resolved: true, ServerID: peer.ServerID})
		if peer.Alive {
			answer.Alive++
		} else {
			answer.Dead++
		}
	}
	return writeValue(w, http.StatusOK, answer)
}

var (
	meshListening  = engineDesc("queen_mesh_listening", "1 while hints of other brokers are heard: the session is open and what this broker sends comes back over it.")
	meshPeers      = engineDesc("queen_mesh_peers", "Other brokers that were heard lately.", "state")
	meshSent       = engineDesc("queen_mesh_payloads_sent_total", "Notifications sent to other brokers.")
	meshReceived   = engineDesc("queen_mesh_payloads_received_total", "Notifications of other brokers.")
	meshDropped    = engineDesc("queen_mesh_payloads_dropped_total", "Notifications lost: not sent because the session was broken, beyond the allowance of their sender, or not understood.", "reason")
	meshSuppressed = engineDesc("queen_mesh_hints_suppressed_total", "Queues whose messages were not told because the server's queue of notifications was half full.")
	meshPartial    = engineDesc("queen_mesh_partial_flushes_total", "Flushes in which queues stood for their partitions because there were too many.")
	meshSessions   = engineDesc("queen_mesh_sessions_total", "Sessions opened to hear.")
	meshUsage      = engineDesc("queen_mesh_notification_queue_usage", "How full the server's queue of notifications is, from 0 to 1.")
)

// A meshCollector reads the figures of the traffic between brokers when they are asked for.
type meshCollector struct{ read func() MeshFigures }

// Describe names every family.
func (c meshCollector) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range [...]*prometheus.Desc{
		meshListening, meshPeers, meshSent, meshReceived, meshDropped, meshSuppressed, meshPartial, meshSessions, meshUsage,
	} {
		descs <- desc
	}
}

// Collect sends the figures.
func (c meshCollector) Collect(out chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	counter := func(desc *prometheus.Desc, value uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), labels...)
	}
	figures := c.read()
	alive := 0
	for _, peer := range figures.Peers {
		if peer.Alive {
			alive++
		}
	}
	gauge(meshListening, oneIf(figures.Listening && figures.Proven))
	gauge(meshPeers, float64(alive), "alive")
	gauge(meshPeers, float64(len(figures.Peers)-alive), "dead")
	counter(meshSent, figures.Sent)
	counter(meshReceived, figures.Received)
	counter(meshDropped, figures.Failed, "unsent")
	counter(meshDropped, figures.Dropped, "flood")
	counter(meshDropped, figures.Malformed, "malformed")
	counter(meshDropped, figures.Lost, "outbox")
	counter(meshSuppressed, figures.Suppressed)
	counter(meshPartial, figures.Partial)
	counter(meshSessions, figures.Sessions)
	gauge(meshUsage, figures.Usage)
}
