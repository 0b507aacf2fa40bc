package pop

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

type openerFunc func(payload []byte, flagged bool) ([]byte, error)

func (f openerFunc) Open(payload []byte, flagged bool) ([]byte, error) { return f(payload, flagged) }

// upper "decrypts", and cannot open what says so.
var upper = openerFunc(func(payload []byte, flagged bool) ([]byte, error) {
	if strings.Contains(string(payload), "foreign") {
		return payload, errors.New("no key opens it")
	}
	return []byte(strings.ToUpper(string(payload))), nil
})

func framesOf(t *testing.T, encrypted bool, payloads ...string) pg.ClaimedSegment {
	t.Helper()
	frames := make([]segment.Frame, len(payloads))
	for i, payload := range payloads {
		frames[i] = segment.Frame{ID: messageID, TransactionID: payload, Encrypted: encrypted, Payload: []byte(payload)}
	}
	return stored(t, 0, frames...)
}

func TestMarkedPayloadsAreDecrypted(t *testing.T) {
	t.Parallel()
	request := Request{Tenant: tenant, Queue: "orders", Group: "g"}
	for name, row := range map[string]struct {
		cfg       Config
		encrypted bool
		want      []string
		count     int64
	}{
		"Marked":          {Config{Opener: upper}, true, []string{`"data":"A"`}, 0},
		"NotMarked":       {Config{Opener: upper}, false, []string{`"data":"a"`, `"data":"foreign",`}, 0},
		"NotMarkedSniffs": {Config{Opener: upper, Sniff: true}, false, []string{`"data":"A"`}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, db, _ := setup(t, row.cfg)
			db.claim = func(context.Context, string, pg.PopRequest) (pg.Claim, error) {
				return claimOf(framesOf(t, row.encrypted, `"a"`, `"foreign"`)), nil
			}
			result, err := server.Pop(t.Context(), request)
			require.NoError(t, err)
			defer result.Release()
			body := string(result.AppendJSON(nil))
			for _, want := range row.want {
				require.Contains(t, body, want)
			}
			if row.encrypted {
				require.EqualValues(t, 1, server.Stats().Undecryptable)
				require.Equal(t, 1, result.Messages())
				require.Equal(t, []pg.LeaseCut{{PartitionID: partitionID, End: 0}}, db.cuts, "the batch ends before what cannot be opened")
			} else if !row.cfg.Sniff {
				require.NotContains(t, body, "isEncrypted")
			}
		})
	}
}

func TestWithoutAKeyNothingEncryptedIsHandedOut(t *testing.T) {
	t.Parallel()

	t.Run("LeasesGoBack", func(t *testing.T) {
		t.Parallel()
		server, db, _ := setup(t, Config{})
		db.claim = func(context.Context, string, pg.PopRequest) (pg.Claim, error) {
			return claimOf(framesOf(t, true, `"a"`)), nil
		}
		_, err := server.Pop(t.Context(), Request{Tenant: tenant, Queue: "orders", Group: "g"})
		require.ErrorIs(t, err, ErrKeyMissing)
		require.Len(t, db.released, 1)
	})

	t.Run("AutoAckIsRolledBack", func(t *testing.T) {
		t.Parallel()
		server, db, _ := setup(t, Config{})
		db.claim = func(context.Context, string, pg.PopRequest) (pg.Claim, error) {
			return claimOf(framesOf(t, true, `"a"`)), nil
		}
		_, err := server.Pop(t.Context(), Request{Tenant: tenant, Queue: "orders", Group: "g", AutoAck: true})
		require.ErrorIs(t, err, ErrKeyMissing)
		require.Empty(t, db.released)
	})

	t.Run("PlainNeighboursAreDelivered", func(t *testing.T) {
		t.Parallel()
		server, db, _ := setup(t, Config{})
		db.claim = func(context.Context, string, pg.PopRequest) (pg.Claim, error) {
			claim := claimOf(framesOf(t, true, `"a"`))
			other := claimOf(framesOf(t, false, `"b"`)).Partitions[0]
			other.Queue = "plain"
			claim.Partitions = append(claim.Partitions, other)
			return claim, nil
		}
		result, err := server.Pop(t.Context(), Request{Tenant: tenant, Kind: Discovery, Namespace: "n", Group: "g"})
		require.NoError(t, err)
		defer result.Release()
		require.Equal(t, 1, result.Messages())
		require.Contains(t, string(result.AppendJSON(nil)), `"data":"b"`)
		require.Len(t, db.released, 1)
	})
}
