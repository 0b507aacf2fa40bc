package push

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

type sealerFunc func(payload []byte) []byte

func (f sealerFunc) Seal(payload []byte) []byte { return f(payload) }

var mark = sealerFunc(func(payload []byte) []byte { return append([]byte("sealed:"), payload...) })

// demanding refuses plain segments of the queue, as the database does.
func demanding(f *fixture) {
	f.store.answer = func(_ int, segments []pg.Segment) []pg.PushVerdict {
		verdicts := make([]pg.PushVerdict, len(segments))
		for i := range segments {
			if !segments[i].Plain {
				return nil // the store's own answer
			}
			verdicts[i].Status = pg.PushConfig
		}
		return verdicts
	}
}

func requireSealed(t *testing.T, frames []segment.Frame, payloads ...string) {
	t.Helper()
	require.Len(t, frames, len(payloads))
	for i, payload := range payloads {
		require.True(t, frames[i].Encrypted)
		require.Equal(t, "sealed:"+payload, string(frames[i].Payload))
	}
}

func TestPush_EncryptsWhatTheQueueDemands(t *testing.T) {
	t.Parallel()

	t.Run("KnownFromItsSettings", func(t *testing.T) {
		t.Parallel()
		f := setup(t, Config{Sealer: mark}, demanding, func(f *fixture) { f.store.encrypted = map[string]bool{"orders": true} })
		v := f.push(t, item("p", "a", "1"), item("p", "b", "2"), item("other", "c", "3"))
		require.Equal(t, []Status{StatusQueued, StatusQueued, StatusQueued}, statuses(v))
		for _, call := range f.store.calls {
			for _, s := range call {
				require.False(t, s.Plain, "no plain attempt")
			}
		}
		requireSealed(t, f.store.stored("orders", "p"), "1", "2")
		requireSealed(t, f.store.stored("orders", "other"), "3")
	})

	t.Run("ToldByTheDatabase", func(t *testing.T) {
		t.Parallel()
		f := setup(t, Config{Sealer: mark}, demanding)
		v := f.push(t, item("p", "a", "1"))
		require.Equal(t, []Status{StatusQueued}, statuses(v))
		require.Equal(t, 2, f.store.callCount(), "refused, encrypted, repeated")
		requireSealed(t, f.store.stored("orders", "p"), "1")
	})

	t.Run("DuplicatesAreStillFound", func(t *testing.T) {
		t.Parallel()
		f := setup(t, Config{Sealer: mark}, demanding, func(f *fixture) { f.store.encrypted = map[string]bool{"orders": true} })
		first := f.push(t, item("p", "a", "1"))
		again := f.push(t, item("p", "a", "1"), item("p", "b", "2"))
		require.Equal(t, []Status{StatusDuplicate, StatusQueued}, statuses(again))
		require.Equal(t, first[0].MessageID, again[0].MessageID)
		requireSealed(t, f.store.stored("orders", "p"), "1", "2")
	})

	t.Run("WithoutAKeyNothingIsWritten", func(t *testing.T) {
		t.Parallel()
		f := setup(t, Config{}, demanding, func(f *fixture) { f.store.encrypted = map[string]bool{"orders": true} })
		v := f.push(t, item("p", "a", "1"), Item{Queue: "plain", Partition: "p", TransactionID: "x", Payload: []byte("1")})
		require.ErrorIs(t, v[0].Err, ErrEncryptionRequired)
		for _, call := range f.store.calls {
			for _, s := range call {
				require.NotEqual(t, "orders", s.Queue)
			}
		}
	})

	t.Run("EncryptedTakenForPlainDoesNotLoop", func(t *testing.T) {
		t.Parallel()
		f := setup(t, Config{Sealer: mark}, func(f *fixture) {
			f.store.answer = func(_ int, segments []pg.Segment) []pg.PushVerdict { return []pg.PushVerdict{{Status: pg.PushConfig}} }
		})
		v := f.push(t, item("p", "a", "1"))
		require.ErrorIs(t, v[0].Err, ErrInternal)
		require.Equal(t, 2, f.store.callCount())
	})
}

func TestPackSeals(t *testing.T) {
	t.Parallel()
	sealerOf := func(queue string) Sealer {
		if queue == "orders" {
			return mark
		}
		return nil
	}
	b, err := Pack(nil, sealerOf, uuid.New(), "alice", []Item{item("p", "a", "1"), {Queue: "plain", Partition: "p", Payload: []byte("2")}})
	require.NoError(t, err)
	require.Equal(t, []bool{false, true}, []bool{b.Segments[0].Plain, b.Segments[1].Plain})
	frames, err := segment.Unpack(b.Segments[0].Blob)
	require.NoError(t, err)
	defer frames.Release()
	requireSealed(t, []segment.Frame{frames.At(0)}, "1")
	require.Equal(t, "alice", frames.At(0).ProducerSub)
}

func TestEncryptsTellsWhatTheSettingsSay(t *testing.T) {
	t.Parallel()
	f := setup(t, Config{}, func(f *fixture) { f.store.encrypted = map[string]bool{"orders": true} })
	demanded, err := f.Encrypts(t.Context(), testTenant, "orders")
	require.NoError(t, err)
	require.True(t, demanded)
	demanded, err = f.Encrypts(t.Context(), testTenant, "unknown")
	require.NoError(t, err)
	require.False(t, demanded)
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, err = f.Encrypts(gone, testTenant, "third")
	if err != nil { // it may have been read in time
		require.ErrorIs(t, err, context.Canceled)
	}
}
