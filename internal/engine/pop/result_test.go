package pop

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

var update = flag.Bool("update", false, "rewrite the golden answers")

var (
	messageID = uuid.MustParse("0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731")
	traceID   = uuid.NullUUID{UUID: uuid.MustParse("11112222-3333-4444-8555-666677778888"), Valid: true}
	leaseID   = "0199b0cb-02d8-7a90-b6c1-9f7e30415ad2"
)

// deliver serves one pop from the claim and gives it a fixed lease id.
func deliver(t *testing.T, req Request, claim pg.Claim) *Result {
	t.Helper()
	server, db, _ := setup(t, Config{Opener: openerFunc(func(payload []byte, _ bool) ([]byte, error) { return payload, nil })})
	db.claim = func(context.Context, string, pg.PopRequest) (pg.Claim, error) { return claim, nil }
	result, err := server.Pop(t.Context(), req)
	require.NoError(t, err)
	require.NotNil(t, result)
	t.Cleanup(result.Release)
	if result.LeaseID != "" {
		require.Equal(t, db.last().Worker, result.LeaseID)
		require.Equal(t, uuid.Version(7), uuid.MustParse(result.LeaseID).Version())
		result.LeaseID = leaseID
	}
	return result
}

func TestAnswerIsTheContractByteForByte(t *testing.T) {
	t.Parallel()
	frame := func(change func(*segment.Frame)) segment.Frame {
		f := segment.Frame{ID: messageID, TransactionID: "scan-55120", Payload: []byte(`{"parcel": 55120, "weightG": 730}`)}
		if change != nil {
			change(&f)
		}
		return f
	}
	trace := func(f *segment.Frame) { f.TraceID = traceID }
	sub := func(f *segment.Frame) { f.ProducerSub = "alice" }
	encrypted := func(f *segment.Frame) {
		f.Encrypted = true
		f.Payload = []byte(`{"encrypted":"PCC4Of/Uvw==","iv":"AAECAwQFBgcICQoLDA0ODw==","authTag":"nC7+pk5gtDf6uERqsDtuOw=="}`)
	}
	payload := func(raw string) func(*segment.Frame) {
		return func(f *segment.Frame) { f.Payload = []byte(raw) }
	}
	all := func(f *segment.Frame) { trace(f); sub(f); encrypted(f) }
	lease := Request{Tenant: tenant, Queue: "orders", Group: "labelling"}
	middle := stored(t, 40, message(0), frame(nil), frame(trace), message(3))
	middle.StartIndex, middle.Take = 1, 2

	other := pg.ClaimedPartition{
		Queue: "orders", Partition: "us", PartitionID: uuid.MustParse("0199b0c4-6a11-7f3e-8c55-41d0e9a7b2f7"),
		Segments: []pg.ClaimedSegment{stored(t, 7, frame(sub))},
	}
	two := claimOf(stored(t, 0, frame(nil)), stored(t, 1, frame(trace)))
	two.Partitions = append(two.Partitions, other)

	odd := claimOf(stored(t, 0, frame(func(f *segment.Frame) {
		f.TransactionID, f.ProducerSub = "a\"\\/\u2028\u0001<é😀>", "s\nub\""
	})))
	odd.Partitions[0].Queue, odd.Partitions[0].Partition = `q"/\ü😀`, "p\t%2F"

	cases := []struct {
		name    string
		request Request
		claim   pg.Claim
	}{
		{"plain", lease, claimOf(stored(t, 0, frame(nil)))},
		{"trace", lease, claimOf(stored(t, 0, frame(trace)))},
		{"sub", lease, claimOf(stored(t, 0, frame(sub)))},
		{"encrypted", lease, claimOf(stored(t, 0, frame(encrypted)))},
		{"trace_sub", lease, claimOf(stored(t, 0, frame(func(f *segment.Frame) { trace(f); sub(f) })))},
		{"trace_encrypted", lease, claimOf(stored(t, 0, frame(func(f *segment.Frame) { trace(f); encrypted(f) })))},
		{"sub_encrypted", lease, claimOf(stored(t, 0, frame(func(f *segment.Frame) { sub(f); encrypted(f) })))},
		{"trace_sub_encrypted", lease, claimOf(stored(t, 0, frame(all)))},
		{"empty_payload", lease, claimOf(stored(t, 0, frame(payload(""))))},
		{"payload_verbatim", lease, claimOf(stored(t, 0, frame(payload(
			` { "b":1, "a":1E400, "a":12345678901234567890123456789012345678901, "s":"\u0000\ud800\/é" } `))))},
		{"queue_mode", Request{Tenant: tenant, Queue: "orders"}, claimOf(stored(t, 0, frame(nil)))},
		{"auto_ack", Request{Tenant: tenant, Queue: "orders", Group: "labelling", AutoAck: true}, claimOf(stored(t, 0, frame(nil)))},
		{"one_partition", Request{Tenant: tenant, Kind: Partition, Queue: "orders", Partition: "eu", Group: "labelling"}, claimOf(stored(t, 0, frame(nil)))},
		{"discovery", Request{Tenant: tenant, Kind: Discovery, Namespace: "shop", Group: "labelling"}, claimOf(stored(t, 0, frame(nil)))},
		{"middle_of_a_segment", lease, claimOf(middle)},
		{"several", lease, two},
		{"odd_names", Request{Tenant: tenant, Queue: `q"/\ü😀`, Group: "g\"\x7f"}, odd},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			result := deliver(t, c.request, c.claim)
			body := result.AppendJSON([]byte("kept:"))
			require.True(t, bytes.HasPrefix(body, []byte("kept:")))
			body = body[len("kept:"):]
			require.True(t, json.Valid(body), "%s", body)
			require.Equal(t, body, result.AppendJSON(nil), "rendering again gives the same")
			require.LessOrEqual(t, len(body), result.sizeHint(), "the body is built in one allocation")

			golden := filepath.Join("testdata", c.name+".json")
			if *update {
				require.NoError(t, os.WriteFile(golden, append(body, '\n'), 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(string(bytes.TrimRight(want, "\n")), string(body)))
		})
	}
}

func TestResultDescribesItsBatches(t *testing.T) {
	t.Parallel()
	middle := stored(t, 40, message(0), message(1), message(2), message(3))
	middle.StartIndex, middle.Take = 1, 2
	result := deliver(t, Request{Tenant: tenant, Queue: "orders", Group: "g"}, claimOf(stored(t, 30, message(9)), middle))
	require.Equal(t, 3, result.Messages())
	batch := result.Partitions[0]
	require.Equal(t, Batch{
		Queue: "orders", Partition: "eu", PartitionID: partitionID, Messages: 3, End: 42, Whole: true, CreatedAt: createdAt,
		slices: batch.slices,
	}, batch)
	result.Release()
	result.Release()
}

func TestAbandonGivesTheLeasesBackAndWakesOthers(t *testing.T) {
	t.Parallel()
	server, db, gates := setup(t, Config{})
	db.claim = func(context.Context, string, pg.PopRequest) (pg.Claim, error) {
		return claimOf(stored(t, 0, message(1))), nil
	}
	result, err := server.Pop(t.Context(), Request{Tenant: tenant, Queue: "orders", Group: "g"})
	require.NoError(t, err)
	waiter := gates.Subscribe(tenant, "orders")
	defer waiter.Release()
	opened, _ := waiter.Arm()

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	result.Abandon(gone)

	require.Equal(t, []string{fmt.Sprintf("%s/g/%s", partitionID, result.LeaseID)}, db.released)
	requireWoken(t, opened)
	require.Zero(t, server.slots.Stats().InFlight)

	db.setPending(true)
	auto, err := server.Pop(t.Context(), Request{Tenant: tenant, Queue: "orders", Group: "g", AutoAck: true})
	require.NoError(t, err)
	auto.Abandon(gone)
	require.Len(t, db.released, 1, "an auto-ack pop holds no lease")
}

// damage returns the segment with its blob changed in a way that decoding notices.
var damages = map[string]func(t *testing.T, blob []byte) []byte{
	"flipped header": func(_ *testing.T, blob []byte) []byte {
		changed := bytes.Clone(blob)
		changed[0] ^= 0x40
		return changed
	},
	"truncated": func(_ *testing.T, blob []byte) []byte { return blob[:len(blob)-3] },
	"empty":     func(*testing.T, []byte) []byte { return nil },
	"zstd of garbage": func(t *testing.T, _ []byte) []byte {
		encoder, err := zstd.NewWriter(nil)
		require.NoError(t, err)
		defer encoder.Close()
		return encoder.EncodeAll([]byte(strings.Repeat("no frame at all ", 10)), nil)
	},
	"fewer messages than counted": func(t *testing.T, _ []byte) []byte {
		return stored(t, 0, message(1)).Blob
	},
}

func TestUndecodableSegmentIsNeverSkipped(t *testing.T) {
	t.Parallel()
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			good, bad := stored(t, 10, message(1), message(2)), stored(t, 12, message(3), message(4))
			bad.Blob = damage(t, bad.Blob)
			after := stored(t, 14, message(5))
			serve := func(t *testing.T, req Request, claim pg.Claim) (*Result, *fakeStore, *Server, *bytes.Buffer, error) {
				t.Helper()
				var log bytes.Buffer
				server, db, _ := setup(t, Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
				db.claim = func(context.Context, string, pg.PopRequest) (pg.Claim, error) { return claim, nil }
				result, err := server.Pop(t.Context(), req)
				return result, db, server, &log, err
			}
			lease := Request{Tenant: tenant, Queue: "orders", Group: "g"}

			t.Run("leased pop delivers what lies before", func(t *testing.T) {
				t.Parallel()
				result, db, server, log, err := serve(t, lease, claimOf(good, bad, after))
				require.NoError(t, err)
				defer result.Release()
				require.Equal(t, 2, result.Messages())
				require.False(t, result.Partitions[0].Whole)
				require.EqualValues(t, 11, result.Partitions[0].End)
				require.Empty(t, db.released, "the delivered part is held")
				require.EqualValues(t, 1, server.Stats().Undecodable)
				require.Contains(t, log.String(), "base_offset=12")
				require.Contains(t, log.String(), partitionID.String())
			})

			t.Run("leased pop gives back what begins with it", func(t *testing.T) {
				t.Parallel()
				claim := claimOf(bad, after)
				claim.Partitions = append(claim.Partitions, pg.ClaimedPartition{
					Queue: "orders", Partition: "us", PartitionID: uuid.New(), Segments: []pg.ClaimedSegment{good},
				})
				result, db, _, _, err := serve(t, lease, claim)
				require.NoError(t, err)
				defer result.Release()
				require.Len(t, result.Partitions, 1)
				require.Equal(t, "us", result.Partitions[0].Partition)
				require.Equal(t, []string{fmt.Sprintf("%s/g/%s", partitionID, result.LeaseID)}, db.released)
				require.Contains(t, string(result.AppendJSON(nil)), `"partitionsClaimed":1`)
			})

			t.Run("leased pop with nothing else is empty", func(t *testing.T) {
				t.Parallel()
				result, db, _, _, err := serve(t, lease, claimOf(bad))
				require.NoError(t, err)
				require.Nil(t, result)
				require.Len(t, db.released, 1)
			})

			t.Run("auto-ack pop is rolled back", func(t *testing.T) {
				t.Parallel()
				auto := lease
				auto.AutoAck = true
				result, db, server, _, err := serve(t, auto, claimOf(good, bad, after))
				require.ErrorIs(t, err, ErrUndecodable)
				require.Nil(t, result)
				require.Empty(t, db.released)
				require.EqualValues(t, 1, server.Stats().Undecodable)
			})
		})
	}
}

func TestAutoAckIsRolledBackWhenTheCallerIsGone(t *testing.T) {
	t.Parallel()
	server, db, _ := setup(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	db.claim = func(context.Context, string, pg.PopRequest) (pg.Claim, error) {
		cancel()
		return claimOf(stored(t, 0, message(1))), nil
	}
	_, err := server.Pop(ctx, Request{Tenant: tenant, Queue: "orders", AutoAck: true})
	require.ErrorIs(t, err, context.Canceled, "Accept must refuse, so that the claim is not committed")
}

func BenchmarkAppendJSON(b *testing.B) {
	frames := make([]segment.Frame, 100)
	for i := range frames {
		frames[i] = message(i)
	}
	batches, broken := decode(claimOf(stored(b, 0, frames...)).Partitions)
	require.Empty(b, broken)
	result := &Result{Queue: "orders", LeaseID: leaseID, Group: "billing", Partitions: batches}
	var body []byte
	b.ReportAllocs()
	for b.Loop() {
		body = result.AppendJSON(body[:0])
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100, "ns/message")
}
