package segment

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var (
	vectorID    = uuid.MustParse("0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731")
	vectorTrace = uuid.MustParse("11112222-3333-4444-8555-666677778888")
)

// vectors are the frames whose bytes the storage format fixes.
var vectors = []struct {
	name  string
	frame Frame
	hex   string
}{
	{
		name:  "NoFlags",
		frame: Frame{ID: vectorID, TransactionID: "a", Payload: []byte(`{"n":1}`)},
		hex:   "1b000000 00 0199b0c47be27c04a1d95e2c8f0b6731 0100 61 7b226e223a317d",
	},
	{
		name: "TraceAndProducerSub",
		frame: Frame{
			ID: vectorID, TraceID: uuid.NullUUID{UUID: vectorTrace, Valid: true},
			TransactionID: "order-1", ProducerSub: "alice", Payload: []byte("null"),
		},
		hex: "35000000 03 0199b0c47be27c04a1d95e2c8f0b6731 11112222333344448555666677778888 0700 6f726465722d31 0500 616c696365 6e756c6c",
	},
	{
		name:  "EmptyTransactionIDAndPayload",
		frame: Frame{ID: vectorID, Payload: []byte{}},
		hex:   "13000000 00 0199b0c47be27c04a1d95e2c8f0b6731 0000",
	},
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	require.NoError(t, err)
	return b
}

func decodeAll(raw []byte) ([]Frame, error) {
	ends, _, err := frameEnds(raw)
	if err != nil {
		return nil, err
	}
	f := Frames{raw: raw, ends: ends}
	frames := make([]Frame, f.Len())
	for i := range frames {
		frames[i] = f.At(i)
	}
	return frames, nil
}

func TestFrame_HasTheFixedBytes(t *testing.T) {
	t.Parallel()
	for _, tt := range vectors {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			want := unhex(t, tt.hex)
			got, err := AppendFrame(nil, &tt.frame)
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.Equal(t, len(want), tt.frame.EncodedLen())

			decoded, err := decodeAll(want)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff([]Frame{tt.frame}, decoded))
		})
	}
}

func TestHash_HasTheFixedBytes(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		"":           "99aa06d3014798d86001c324468d497f",
		"a":          "a96faf705af16834e6c632b61e964e1f",
		"order-1":    "5a8a409613f90ad0af63a0f835ca6746",
		"scan-55120": "d377e0fb8752f0d245cae8b07a716455",
		"ключ":       "d3c7a9156a7094082062ac10e56def38",
	} {
		h := Hash(id)
		require.Equal(t, want, hex.EncodeToString(h[:]), "hash of %q", id)
		require.Equal(t, "ff"+want, hex.EncodeToString(AppendHash([]byte{0xff}, []byte(id))), "hash of the bytes of %q", id)
	}
}

func TestUnpack_RefusesMalformedSegments(t *testing.T) {
	t.Parallel()
	encoder, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	compress := func(raw []byte) []byte { return encoder.EncodeAll(raw, nil) }
	good := unhex(t, vectors[1].hex)
	edit := func(change func(raw []byte) []byte) []byte { return compress(change(append([]byte(nil), good...))) }
	whole := compress(good)

	for _, tt := range []struct {
		name string
		blob []byte
	}{
		{"NoBytes", nil},
		{"NotCompressed", good},
		{"NoFrames", []byte{0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x00, 0x01, 0x00, 0x00}},
		{"TruncatedBlob", whole[:len(whole)-1]},
		{"BytesAfterTheBlob", append(append([]byte(nil), whole...), 0xff)},
		{"BodyBelowMinimum", edit(func(b []byte) []byte { binary.LittleEndian.PutUint32(b, minBody-1); return b })},
		{"BodyBeyondInput", edit(func(b []byte) []byte { binary.LittleEndian.PutUint32(b, uint32(len(b))); return b })},
		{"BodyLengthOverflows", edit(func(b []byte) []byte { binary.LittleEndian.PutUint32(b, 0xffffffff); return b })},
		{"TrailingPartOfHeader", edit(func(b []byte) []byte { return append(b, 0, 0, 0) })},
		{"UnknownFlag", edit(func(b []byte) []byte { b[4] |= 8; return b })},
		{"TransactionIDRunsOver", edit(func(b []byte) []byte { b[4+1+16+16] = 0xff; return b })},
		{"ProducerSubRunsOver", edit(func(b []byte) []byte { b[4+1+16+16+2+7] = 0xff; return b })},
		{"TraceIDRunsOver", compress(unhex(t, "13000000 01 0199b0c47be27c04a1d95e2c8f0b6731 0000"))},
		{"ProducerSubMissing", compress(unhex(t, "13000000 02 0199b0c47be27c04a1d95e2c8f0b6731 0000"))},
		// Single segment, declared size 2^40: refused from the header, before any allocation.
		{"DeclaredSizeAboveLimit", append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 1, 0, 0}, 1, 0, 0)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			frames, err := Unpack(tt.blob)
			require.ErrorIs(t, err, ErrMalformed)
			require.Nil(t, frames)
		})
	}
}

func TestUnpack_RefusesContentAboveItsDeclaredSize(t *testing.T) {
	t.Parallel()
	blob, _, err := Pack([]Frame{{ID: vectorID, TransactionID: "a", Payload: []byte(strings.Repeat("7", 300))}})
	require.NoError(t, err)
	var h zstd.Header
	require.NoError(t, h.Decode(blob))
	require.True(t, h.HasFCS, "blobs carry their content size")
	require.EqualValues(t, 4+minBody+1+300, h.FrameContentSize)

	// The two-byte content size sits right before the first block; its stored form is size-256.
	at := h.HeaderSize - 2
	require.EqualValues(t, h.FrameContentSize-256, binary.LittleEndian.Uint16(blob[at:]))
	binary.LittleEndian.PutUint16(blob[at:], uint16(h.FrameContentSize-256-1))
	_, err = Unpack(blob)
	require.ErrorIs(t, err, ErrMalformed)
}

func TestUnpack_NoticesAFlippedByte(t *testing.T) {
	t.Parallel()
	random := make([]byte, 2000) // does not compress: lies in the blob as it is
	for i := range random {
		random[i] = byte(i * i >> 3)
	}
	blob, _, err := Pack([]Frame{{ID: vectorID, TransactionID: "a", Payload: random}})
	require.NoError(t, err)
	for at := range blob {
		damaged := append([]byte(nil), blob...)
		damaged[at] ^= 0x10
		if frames, err := Unpack(damaged); err == nil {
			// Bits that no reader needs (the checksum flag among them) may flip; the content may not.
			require.Equal(t, random, frames.At(0).Payload, "byte %d", at)
			frames.Release()
		}
	}
}

func TestPack_RefusesWhatAReaderCouldNotRead(t *testing.T) {
	t.Parallel()
	_, _, err := Pack(nil)
	require.ErrorIs(t, err, ErrEmpty)
	_, _, err = Pack([]Frame{{TransactionID: strings.Repeat("x", MaxTransactionIDBytes+1)}})
	require.ErrorIs(t, err, ErrTooLarge)
	_, _, err = Pack([]Frame{{ProducerSub: strings.Repeat("x", 1<<16)}})
	require.ErrorIs(t, err, ErrTooLarge)
	half := make([]byte, MaxRawBytes/2)
	_, _, err = Pack([]Frame{{Payload: half}, {Payload: half}})
	require.ErrorIs(t, err, ErrTooLarge)

	b := DefaultPacker().Build()
	require.NoError(t, b.Append(&Frame{ID: vectorID, TransactionID: "kept"}))
	require.ErrorIs(t, b.Append(&Frame{TransactionID: strings.Repeat("x", MaxTransactionIDBytes+1)}), ErrTooLarge)
	blob, err := b.Finish()
	require.NoError(t, err)
	kept, err := Unpack(blob)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff([]Frame{{ID: vectorID, TransactionID: "kept", Payload: []byte{}}}, copyOut(kept)), "the refused frame leaves no trace")

	blob, hashes, err := Pack([]Frame{{TransactionID: strings.Repeat("x", MaxTransactionIDBytes)}})
	require.NoError(t, err)
	require.Len(t, hashes, HashBytes)
	frames, err := Unpack(blob)
	require.NoError(t, err)
	defer frames.Release()
	require.Len(t, frames.At(0).TransactionID, MaxTransactionIDBytes)
}

func TestPacker_LevelsAreBoundedAndReadable(t *testing.T) {
	t.Parallel()
	for _, level := range []int{-1, 0, 23} {
		_, err := NewPacker(level)
		require.ErrorContains(t, err, "outside 1..22")
	}
	want := sampleFrames(50)
	for _, level := range []int{1, 3, 7, 22} {
		p, err := NewPacker(level)
		require.NoError(t, err)
		blob, _, err := p.Pack(want)
		require.NoError(t, err)
		frames, err := Unpack(blob)
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(want, copyOut(frames)), "level %d", level)
	}
}

func TestFrames_ReleaseTwiceDoesNotShareABuffer(t *testing.T) {
	t.Parallel()
	blob, _, err := Pack(sampleFrames(3))
	require.NoError(t, err)
	f, err := Unpack(blob)
	require.NoError(t, err)
	f.Release()
	f.Release()
	a, err := Unpack(blob)
	require.NoError(t, err)
	defer a.Release()
	b, err := Unpack(blob)
	require.NoError(t, err)
	defer b.Release()
	require.NotSame(t, a.buf, b.buf)
	require.Equal(t, 0, f.Len())
}

func TestFrames_AppendToAFieldDoesNotReachTheNext(t *testing.T) {
	t.Parallel()
	blob, _, err := Pack(sampleFrames(2))
	require.NoError(t, err)
	f, err := Unpack(blob)
	require.NoError(t, err)
	v := f.View(0)
	_ = append(v.TransactionID, "overwrite"...)
	_ = append(v.Payload, "overwrite"...)
	require.Empty(t, cmp.Diff(sampleFrames(2), copyOut(f)))
}

func TestNewID_IncreasesAcrossGoroutines(t *testing.T) {
	t.Parallel()
	const workers, each = 8, 2000
	ids := make([][]uuid.UUID, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for range each {
				ids[w] = append(ids[w], NewID())
			}
		})
	}
	wg.Wait()
	seen := make(map[uuid.UUID]bool, workers*each)
	for w := range workers {
		for i, id := range ids[w] {
			require.EqualValues(t, 7, id.Version())
			require.False(t, seen[id])
			seen[id] = true
			if i > 0 {
				require.Negative(t, strings.Compare(string(ids[w][i-1][:]), string(id[:])), "ids of one goroutine increase")
			}
		}
	}
}

func TestNewIDs_AreTimedVersion7AndIncrease(t *testing.T) {
	t.Parallel()
	before := time.Now().UnixMilli()
	got := make([]uuid.UUID, 200)
	NewIDs(got)
	for i, id := range got {
		require.EqualValues(t, 7, id.Version())
		require.Equal(t, uuid.RFC4122, id.Variant())
		ms := int64(binary.BigEndian.Uint64(id[:8]) >> 16)
		require.InDelta(t, before, ms, 5000)
		if i > 0 {
			require.Negative(t, bytes.Compare(got[i-1][:], id[:]))
			require.NotEqual(t, got[i-1][8:], id[8:], "the random part differs")
		}
	}
}

func TestIDSource_CountsOnWhenTheClockStepsBack(t *testing.T) {
	t.Parallel()
	var s idSource
	now := time.UnixMilli(1_790_000_000_000)
	first := s.reserve(now, 10)
	require.Equal(t, now.UnixMilli()<<12, first)
	require.Equal(t, first+10, s.reserve(now, 1))
	require.Equal(t, first+11, s.reserve(now.Add(-time.Hour), 5000))
	require.Equal(t, first+5011, s.reserve(now.Add(time.Millisecond), 1), "4,096 a millisecond, and on")
	require.Equal(t, now.Add(time.Second).UnixMilli()<<12|2048, s.reserve(now.Add(time.Second+500*time.Microsecond), 1))
}

func frameGenerator() *rapid.Generator[Frame] {
	return rapid.Custom(func(t *rapid.T) Frame {
		f := Frame{
			ID:            uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id")),
			TransactionID: rapid.StringN(0, 40, 300).Draw(t, "txn"),
			ProducerSub:   rapid.StringN(0, 10, -1).Draw(t, "sub"),
			Encrypted:     rapid.Bool().Draw(t, "encrypted"),
			Payload:       rapid.SliceOfN(rapid.Byte(), 0, 400).Draw(t, "payload"),
		}
		if rapid.Bool().Draw(t, "traced") {
			f.TraceID = uuid.NullUUID{UUID: uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "trace")), Valid: true}
		}
		return f
	})
}

func copyOut(f *Frames) []Frame {
	defer f.Release()
	out := make([]Frame, f.Len())
	for i := range out {
		out[i] = f.At(i)
		out[i].Payload = append([]byte{}, out[i].Payload...)
	}
	return out
}

func TestPack_RoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(frameGenerator(), 1, 60).Draw(t, "frames")
		blob, hashes, err := Pack(want)
		require.NoError(t, err)
		require.Len(t, hashes, HashBytes*len(want))
		for i := range want {
			h := Hash(want[i].TransactionID)
			require.Equal(t, h[:], hashes[i*HashBytes:(i+1)*HashBytes])
		}
		frames, err := Unpack(blob)
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(want, copyOut(frames)))
	})
}

// FuzzDecodeFrames feeds the frame parser raw bytes: it must refuse with ErrMalformed or return frames that encode back to
// the same length of input and the same content.
func FuzzDecodeFrames(f *testing.F) {
	for _, v := range vectors {
		f.Add(unhex(f, v.hex))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		frames, err := decodeAll(raw)
		if err != nil {
			require.ErrorIs(t, err, ErrMalformed)
			return
		}
		var again []byte
		for i := range frames {
			again, err = AppendFrame(again, &frames[i])
			require.NoError(t, err)
		}
		require.LessOrEqual(t, len(again), len(raw))
		reread, err := decodeAll(again)
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(frames, reread))
	})
}

// FuzzUnpack feeds whole blobs: never a panic, never more than the limit of memory, only ErrMalformed.
func FuzzUnpack(f *testing.F) {
	blob, _, err := Pack(sampleFrames(3))
	require.NoError(f, err)
	f.Add(blob)
	f.Add(blob[:len(blob)-2])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, blob []byte) {
		frames, err := Unpack(blob)
		if err != nil {
			require.ErrorIs(t, err, ErrMalformed)
			return
		}
		defer frames.Release()
		require.Positive(t, frames.Len())
		for i := range frames.Len() {
			_ = frames.At(i)
		}
	})
}

func sampleFrames(n int) []Frame {
	frames := make([]Frame, n)
	for i := range frames {
		id := vectorID
		binary.BigEndian.PutUint32(id[12:], uint32(i))
		frames[i] = Frame{
			ID:            id,
			TransactionID: fmt.Sprintf("order-%d", 100000+i),
			Payload: fmt.Appendf(nil,
				`{"orderId":%d,"customer":"c-%d","items":[{"sku":"A-%d","qty":%d}],"total":%d.%02d,"currency":"EUR","note":"leave at the door"}`,
				100000+i, i*7919%10007, i*31%977, i%9+1, i*13%500, i%100),
		}
	}
	return frames
}

func BenchmarkPack(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("%dx130B", n), func(b *testing.B) {
			frames := sampleFrames(n)
			b.ReportAllocs()
			var size int
			for b.Loop() {
				blob, _, err := Pack(frames)
				if err != nil {
					b.Fatal(err)
				}
				size = len(blob)
			}
			b.ReportMetric(float64(size), "B/segment")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/message")
		})
	}
}

func BenchmarkUnpack(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("%dx130B", n), func(b *testing.B) {
			blob, _, err := Pack(sampleFrames(n))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			bytes := 0
			for b.Loop() {
				f, err := Unpack(blob)
				if err != nil {
					b.Fatal(err)
				}
				for i := range f.Len() {
					bytes += len(f.View(i).Payload)
				}
				f.Release()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/message")
			if bytes == 0 {
				b.Fatal(errors.New("no payload read"))
			}
		})
	}
}

func BenchmarkHash(b *testing.B) {
	b.ReportAllocs()
	var sink byte
	for b.Loop() {
		h := Hash("order-1000001")
		sink ^= h[0]
	}
	_ = sink
}

func BenchmarkNewIDs(b *testing.B) {
	dst := make([]uuid.UUID, 100)
	b.ReportAllocs()
	for b.Loop() {
		NewIDs(dst)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(dst)), "ns/id")
}

func BenchmarkNewID(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_ = NewID()
	}
}
