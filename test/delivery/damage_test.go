package delivery

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/pop"
	"queenmq/internal/engine/segment"
	"queenmq/internal/secret"
)

// damage rewrites the stored segment that begins at offset base.
func (e *engine) damage(base int64, change func(blob []byte) []byte) {
	e.t.Helper()
	blob := value[[]byte](e, `SELECT blob FROM queen.log_segments WHERE base_offset = $1`, base)
	_, err := e.sql.Exec(e.t.Context(), `UPDATE queen.log_segments SET blob = $2 WHERE base_offset = $1`, base, change(bytes.Clone(blob)))
	require.NoError(e.t, err)
}

var damages = map[string]func(blob []byte) []byte{
	"flip":     func(blob []byte) []byte { blob[len(blob)/2] ^= 1; return blob },
	"truncate": func(blob []byte) []byte { return blob[:len(blob)-4] },
	"valid zstd of garbage": func([]byte) []byte {
		encoder, _ := zstd.NewWriter(nil)
		defer encoder.Close()
		return encoder.EncodeAll(bytes.Repeat([]byte("garbage "), 20), nil)
	},
}

func TestDamagedSegmentInTheMiddleOfABatch(t *testing.T) {
	t.Parallel()
	for name, change := range damages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			t.Run("leased", func(t *testing.T) {
				t.Parallel()
				e := setup(t)
				e.push("eu", "a", "b")
				e.push("eu", "c", "d")
				e.push("eu", "e")
				e.push("us", "x")
				e.damage(2, change)
				request := queuePop()
				request.Kind, request.Partition = pop.Partition, "eu"
				batch := e.pop(request)
				require.Equal(t, []string{"a", "b"}, batch.names(), "what lies before is delivered")
				e.acked(batch.all("completed")...)
				require.EqualValues(t, 1, e.committed("eu"))
				e.expire()
				for range 3 {
					require.Empty(t, e.pop(request).names(), "nothing behind it is delivered")
					require.EqualValues(t, 1, e.committed("eu"), "and the cursor stays before it")
				}
				require.Zero(t, value[int](e, `SELECT count(*) FROM queen.log_consumers WHERE worker_id IS NOT NULL`), "no lease is left on it")
				require.EqualValues(t, 4, e.pops.Stats().Undecodable)
				all := queuePop()
				all.MaxPartitions = 0
				require.Equal(t, []string{"x"}, e.pop(all).names(), "other partitions are served")
			})

			t.Run("auto-ack", func(t *testing.T) {
				t.Parallel()
				e := setup(t)
				e.push("eu", "a", "b")
				e.push("eu", "c", "d")
				e.damage(2, change)
				request := queuePop()
				request.Kind, request.Partition, request.AutoAck = pop.Partition, "eu", true
				_, err := e.pops.Pop(t.Context(), request)
				require.ErrorIs(t, err, pop.ErrUndecodable)
				require.Zero(t, value[int](e, `SELECT count(*) FROM queen.log_consumers WHERE committed > -1`), "rolled back")
				request.Batch = 2
				require.Equal(t, []string{"a", "b"}, e.pop(request).names(), "the readable part can be had")
				_, err = e.pops.Pop(t.Context(), request)
				require.ErrorIs(t, err, pop.ErrUndecodable)
				require.EqualValues(t, 1, e.committed("eu"))
			})
		})
	}
}

func TestDeadLetterKeepsThePayloadExactly(t *testing.T) {
	t.Parallel()
	payloads := map[string]string{
		"NUL escape":     `{"s":"a\u0000b"}`,
		"lone surrogate": `"\ud800"`,
		"40 digits":      `{"n":1234567890123456789012345678901234567890}`,
		"duplicate keys": ` {"k":1, "k":2, "a":0} `,
		"exponent":       `1E400`,
		"beyond numeric": `[1e999999]`,
		"encrypted":      `{"encrypted":"PCC4Of/Uvw==","iv":"AAECAwQFBgcICQoLDA0ODw==","authTag":"nC7+pk5gtDf6uERqsDtuOw=="}`,
		"ordinary":       `{"a":[1,2,{"é":"😀"}]}`,
	}
	ring, err := secret.NewRing("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f", "") // the envelope's
	require.NoError(t, err)
	e := setupWith(t, pop.Config{Backoff: pop.Backoff{Initial: time.Hour}, Opener: secret.Reader{Ring: ring}})
	for name, payload := range payloads {
		e.store(name, segment.Frame{ID: segment.NewID(), TransactionID: "a", Payload: []byte(payload), Encrypted: name == "encrypted"})
		request := queuePop()
		request.Kind, request.Partition = pop.Partition, name
		batch := e.pop(request)
		delivered, reported := strings.TrimSpace(payload), "bad \uFFFD words \uFFFD"
		if name == "encrypted" {
			delivered, reported = `{"n":1}`, "reported by the consumer; the text was not kept: the message is encrypted and this broker had no key"
		}
		require.Equal(t, delivered, string(batch.Messages[0].Data), "%s: delivered as it was pushed", name)
		item := batch.item(0, "dlq")
		item.Error = "bad \x00 words \xff"
		require.True(t, e.acked(item)[0].DeadLetter, name)
		id := e.partitionID(name)
		require.Equal(t, payload, string(value[[]byte](e, `SELECT payload_raw FROM queen.log_dlq WHERE partition_id = $1`, id)), name)
		require.Equal(t, reported, value[string](e, `SELECT error FROM queen.log_dlq WHERE partition_id = $1`, id))
		require.Equal(t, batch.Messages[0].ID, value[string](e, `SELECT message_id::text FROM queen.log_dlq WHERE partition_id = $1`, id))
	}
}
