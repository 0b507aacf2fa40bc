package pg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

func TestEveryServerErrorHasItsMeaning(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		code, message string
		want          error
	}{
		{"08000", "connection exception", ErrUnavailable},
		{"08006", "connection failure", ErrUnavailable},
		{"57P01", "terminating connection due to administrator command", ErrUnavailable},
		{"57P02", "crash of another server process", ErrUnavailable},
		{"57P03", "the database system is starting up", ErrUnavailable},
		{"57P05", "terminating connection due to idle-session timeout", ErrUnavailable},
		{"25006", "cannot execute INSERT in a read-only transaction", ErrUnavailable},
		{"53100", "No space left on device", ErrUnavailable},
		{"53200", "out of memory", ErrUnavailable},
		{"53300", "too many clients already", ErrUnavailable},
		{"53400", `QUEUE_FULL queue "q" is full`, nil},
		{"57014", "canceling statement due to statement timeout", ErrTimeout},
		{"55P03", "canceling statement due to lock timeout", ErrLockTimeout},
		{"40001", "could not serialize access", ErrSerialization},
		{"40P01", "deadlock detected", ErrSerialization},
		{"22001", "value too long for type character varying(255)", ErrBadData},
		{"22021", "invalid byte sequence", ErrBadData},
		{"22P05", "unsupported Unicode escape sequence", ErrBadData},
		{"54000", "array size exceeds the maximum", ErrBadData},
		{"QU003", "QPUSH bad segment: 3 messages, 16 bytes of hashes", ErrBadData},
		{"QU003", "QMULTI misaligned arrays (3 queues)", ErrBadData},
		{"23503", "violates foreign key constraint", ErrVanished},
		{"QU002", "QPUSH partition 0199b0a1 vanished mid-push", ErrVanished},
		{"QU002", "QMULTI resolved 1 of 2 segments", ErrVanished},
		{"QU004", "QTXN ack failed", nil},
		{"23505", "duplicate key value", nil},
		{"42883", "function does not exist", nil},
		{"42501", "permission denied", nil},
		{"XX000", "cache lookup failed", nil},
	} {
		t.Run(test.code+" "+test.message, func(t *testing.T) {
			t.Parallel()
			cause := &pgconn.PgError{Code: test.code, Message: test.message}
			err := classify(t.Context(), t.Context(), fmt.Errorf("wrapped: %w", cause))
			for _, kind := range sentinels {
				require.Equal(t, kind == test.want, errors.Is(err, kind), "%v is %v", err, kind)
			}
			found, ok := errors.AsType[*pgconn.PgError](err)
			require.True(t, ok, "the server's error is lost")
			require.Equal(t, test.code, found.Code)
			require.ErrorContains(t, err, test.message)
		})
	}
}

var sentinels = []error{ErrUnavailable, ErrPoolTimeout, ErrTimeout, ErrLockTimeout, ErrSerialization, ErrBadData, ErrVanished}

func TestDriverErrorsMeanThatTheServerIsAway(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{
		io.ErrUnexpectedEOF, io.EOF, net.ErrClosed, pgconn.ErrConnClosed, &net.OpError{Op: "dial", Err: errors.New("connection refused")}, context.DeadlineExceeded,
	} {
		require.ErrorIs(t, classify(t.Context(), t.Context(), fmt.Errorf("wrapped: %w", cause)), ErrUnavailable)
	}
}

func TestContextsDecideWhoGaveUp(t *testing.T) {
	t.Parallel()
	left, leave := context.WithCancel(t.Context())
	leave()
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	canceledOnServer := &pgconn.PgError{Code: "57014", Message: "canceling statement due to user request"}

	for _, err := range []error{classify(left, left, context.Canceled), classify(left, left, canceledOnServer), classify(left, left, io.EOF)} {
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, ErrTimeout)
	}
	for _, err := range []error{classify(late, late, context.DeadlineExceeded), classify(t.Context(), late, canceledOnServer), classify(t.Context(), late, io.EOF)} {
		require.ErrorIs(t, err, ErrTimeout)
	}
	// What the server or we ourselves had decided is not made unknown by a caller that leaves at the same moment.
	rule := &TransactionError{Reason: "QDUP"}
	require.Same(t, rule, classify(left, left, rule))
	require.ErrorIs(t, classify(left, left, &pgconn.PgError{Code: "22001"}), ErrBadData)
}

func TestServerVersion(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"15.3 (Debian 15.3-1)": "", "15": "", "18beta1": "",
		"14.9": "PostgreSQL is too old: the server is version 14.9, Queen needs 15 or newer", "9.6.24": "too old", "": "is this PostgreSQL?", "proxy": "is this PostgreSQL?",
	} {
		err := checkServerVersion(version)
		if want == "" {
			require.NoError(t, err, version)
			continue
		}
		require.ErrorContains(t, err, want, version)
	}
	require.ErrorIs(t, checkServerVersion("14.9"), ErrServerTooOld)
}

func TestOnlyUTF8IsTaken(t *testing.T) {
	t.Parallel()
	require.NoError(t, checkServerEncoding("UTF8"))
	require.NoError(t, checkServerEncoding(""), "a pooler may keep it to itself")
	for _, encoding := range []string{"SQL_ASCII", "LATIN1"} {
		err := checkServerEncoding(encoding)
		require.ErrorIs(t, err, ErrNotUTF8)
		require.ErrorContains(t, err, encoding)
	}
}

func TestBackoffGrowsAndSpreads(t *testing.T) {
	t.Parallel()
	for n, base := range map[int]time.Duration{1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 3: 400 * time.Millisecond, 5: time.Second, 12: time.Second} {
		for range 100 {
			d := backoff(n)
			require.GreaterOrEqual(t, d, base*3/4)
			require.LessOrEqual(t, d, base*5/4)
		}
	}
}

func TestParseConfigKeepsPasswordsOutOfErrors(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"postgres://u:hunter2@h:notaport/d", "postgres://u:hun/ter2@h/d?sslmode=maybe", "password=hunter2 port=x", "hunter2", "password='hunter2"} {
		_, err := ParseConfig(text)
		require.Error(t, err, text)
		require.NotContains(t, err.Error(), "ter2")
	}
	_, err := ParseConfig("")
	require.ErrorContains(t, err, "is empty")
}

func TestParseConfigTLS(t *testing.T) {
	t.Parallel()
	plain, err := ParseConfig("host=/run/postgresql user=u dbname=d sslmode=disable")
	require.NoError(t, err)
	require.Equal(t, "/run/postgresql", plain.Host)
	require.Nil(t, plain.TLSConfig)

	for mode, verifies := range map[string]bool{"require": false, "verify-full": true} {
		config, err := ParseConfig("postgres://u:p@db.example:6432/d?sslmode=" + mode)
		require.NoError(t, err)
		require.NotNil(t, config.TLSConfig, mode)
		require.Equal(t, !verifies, config.TLSConfig.InsecureSkipVerify, mode)
		require.Empty(t, config.Fallbacks, "%s falls back to something", mode)
	}
}
