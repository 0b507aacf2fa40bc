package telemetry_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"queenmq/internal/telemetry"
)

func TestLogger(t *testing.T) {
	t.Parallel()

	t.Run("JSONIsOneObjectALineInUTC", func(t *testing.T) {
		t.Parallel()
		var out bytes.Buffer
		logger, err := telemetry.NewLogger(&out, "info", true)
		require.NoError(t, err)
		logger.Debug("hidden")
		logger.Info("seen", slog.String("queue", "a\nb"))
		require.Equal(t, 1, bytes.Count(out.Bytes(), []byte("\n")))
		var event map[string]string
		require.NoError(t, json.Unmarshal(out.Bytes(), &event))
		require.Equal(t, "seen", event["msg"])
		require.Equal(t, "a\nb", event["queue"])
		require.Regexp(t, `Z$`, event["time"])
	})

	t.Run("TextIsPairs", func(t *testing.T) {
		t.Parallel()
		var out bytes.Buffer
		logger, err := telemetry.NewLogger(&out, "warn", false)
		require.NoError(t, err)
		logger.Info("hidden")
		logger.Warn("seen", slog.Int("pid", 7))
		require.Regexp(t, `^time=\S+Z level=WARN msg=seen pid=7\n$`, out.String())
	})

	t.Run("UnknownLevelIsAnError", func(t *testing.T) {
		t.Parallel()
		_, err := telemetry.NewLogger(&bytes.Buffer{}, "loud", false)
		require.ErrorContains(t, err, "loud")
	})
}

func TestServerErrorsAreDebugLines(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	logger, err := telemetry.NewLogger(&out, "debug", false)
	require.NoError(t, err)
	telemetry.ServerErrorLog(logger).Printf("http: TLS handshake error from %s", "127.0.0.1")
	require.Contains(t, out.String(), "level=DEBUG")
	require.Contains(t, out.String(), "handshake error from 127.0.0.1")
}

func TestRegistriesAreIndependentAndClean(t *testing.T) {
	t.Parallel()
	first, second := telemetry.NewRegistry(), telemetry.NewRegistry()
	require.NotSame(t, first, second)
	count, err := testutil.GatherAndCount(first, "go_goroutines")
	require.NoError(t, err)
	require.Equal(t, 1, count)
	problems, err := testutil.GatherAndLint(second)
	require.NoError(t, err)
	require.Empty(t, problems)
}
