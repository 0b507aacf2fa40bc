package api

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

// The shape of the older transport, on figures of ours.
func TestMeshIsShownOnceThereIsAnotherBroker(t *testing.T) {
	t.Parallel()
	figures := MeshFigures{Listening: true, Proven: true, Sent: 7, Received: 5, Dropped: 1}
	s := &Server{cfg: Config{ServerID: "broker-a"}, deps: Deps{Flags: &emptyBroker{paused: true}, Mesh: func() MeshFigures { return figures }}}
	show := func() string {
		w := httptest.NewRecorder()
		require.NoError(t, s.meshStats(w, httptest.NewRequest(http.MethodGet, "/internal/api/inter-instance/stats", nil)))
		return w.Body.String()
	}
	require.JSONEq(t, `{"enabled":false,"reason":"no_peers","maintenance_mode":true,"pop_maintenance_mode":false}`, show())
	figures.Peers = []MeshPeer{{ServerID: "broker-b", Address: "[fd00::2]:6632", Alive: true}, {ServerID: "broker-c", Address: ""}}
	require.JSONEq(t, `{"server_id":"broker-a","transport":"listen-notify","port":0,"peer_count":2,
		"peers":[{"host":"fd00::2","port":6632,"connected":true,"resolved":true,"resolved_ip":"","server_id":"broker-b"},
			{"host":"","port":0,"connected":false,"resolved":true,"resolved_ip":"","server_id":"broker-c"}],
		"servers_alive":1,"servers_dead":1,"messages_sent":7,"messages_received":5,"messages_dropped":1,
		"signature_failures":0,"handshake_failures":0,"sequence_rejections":0,
		"enabled":true,"running":true,"maintenance_mode":true,"pop_maintenance_mode":false}`, show())
	problems, err := testutil.CollectAndLint(meshCollector{s.deps.Mesh})
	require.NoError(t, err)
	require.Empty(t, problems)
	require.NoError(t, prometheus.NewRegistry().Register(meshCollector{s.deps.Mesh}))
}
