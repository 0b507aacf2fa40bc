package broker_test

import (
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
)

func TestProfiles_AreServedOnTheirOwnListenerOnly(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	with := begin(t, map[string]string{"DATABASE_URL": testdb.New(t).ConnString(), "QUEEN_PPROF_ADDR": address}).ready(t)
	require.Contains(t, with.log.String(), "profiles are served without authentication")

	for _, profile := range []string{"", "heap", "goroutine?debug=1", "mutex", "cmdline"} {
		got, err := with.do(http.MethodGet, "http://"+address+"/debug/pprof/"+profile, "")
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, got.status, profile)
		require.NotEmpty(t, got.body, profile)
	}
	got, err := with.do(http.MethodPost, "http://"+address+"/debug/pprof/heap", "")
	require.NoError(t, err)
	require.Equal(t, http.StatusMethodNotAllowed, got.status)

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/debug/pprof/heap", nil)
	require.NoError(t, err)
	request.Host = "queen.example:6060"
	response, err := with.client.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusForbidden, response.StatusCode, "a page of another site that resolves to this machine")

	got, err = with.do(http.MethodGet, with.URL()+"/debug/pprof/heap", "")
	require.NoError(t, err)
	require.Equal(t, http.StatusNotFound, got.status, "never on the port of the API")
	require.NoError(t, with.end(t))
	_, err = net.Dial("tcp", address)
	require.Error(t, err, "it ends with the broker")
}

func TestProfiles_AreAbsentByDefault(t *testing.T) {
	t.Parallel()
	cfg := settings(t, nil)
	require.Empty(t, cfg.Server.ProfileAddr)
	without := begin(t, map[string]string{"DATABASE_URL": testdb.New(t).ConnString()}).ready(t)
	got, err := without.do(http.MethodGet, without.URL()+"/debug/pprof/", "")
	require.NoError(t, err)
	require.Equal(t, http.StatusNotFound, got.status)
	require.NotContains(t, without.log.String(), "profiles")
}

func TestProfiles_AnAddressInUseIsNamed(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	taken := begin(t, map[string]string{"DATABASE_URL": testdb.New(t).ConnString(), "QUEEN_PPROF_ADDR": listener.Addr().String()})
	require.ErrorContains(t, taken.result(t), "QUEEN_PPROF_ADDR")
}
