package segment

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
)

// compressionFrames are n messages with random transaction ids. The payloads of about 256 bytes are alike ("order"), or hold
// mostly random base64 ("random"), which is as incompressible as JSON gets.
func compressionFrames(kind string, n int) []Frame {
	r := rand.New(rand.NewPCG(7, 7))
	frames := make([]Frame, n)
	noise := make([]byte, 168)
	for i := range frames {
		frames[i] = Frame{ID: NewID(), TransactionID: uuid.Must(uuid.NewRandomFromReader(noiseReader{r})).String()}
		if kind == "random" {
			_, _ = noiseReader{r}.Read(noise)
			frames[i].Payload = fmt.Appendf(nil, `{"seq":%d,"noise":"%s"}`, i, base64.StdEncoding.EncodeToString(noise))
			continue
		}
		frames[i].Payload = fmt.Appendf(nil,
			`{"orderId":%d,"customer":{"id":"c-%d","city":%q,"country":"DE"},"items":[{"sku":"SKU-%05d","quantity":%d,"unitCents":%d,"gift":null},`+
				`{"sku":"SKU-%05d","quantity":1,"unitCents":%d,"gift":null}],"currency":"EUR","status":"created"}`,
			1_000_000+i, r.IntN(1_000_000), []string{"Porto", "Łódź", "Kyōto", "Bergen"}[r.IntN(4)], r.IntN(99_999), 1+r.IntN(9), r.IntN(20_000), r.IntN(99_999), r.IntN(20_000))
	}
	return frames
}

type noiseReader struct{ *rand.Rand }

func (r noiseReader) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(r.Uint32()) //nolint:gosec // the low byte
	}
	return len(b), nil
}

// processorTime is what this process has used; on a shared machine it says more than the clock.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkCompression is the table of docs/performance.md: what a level costs on both sides and what it saves, by the number
// of messages in a segment.
func BenchmarkCompression(b *testing.B) {
	for _, kind := range []string{"order", "random"} {
		for _, n := range []int{1, 2, 10, 100, 1000} {
			frames := compressionFrames(kind, n)
			raw := 0
			for i := range frames {
				raw += frames[i].EncodedLen()
			}
			for _, level := range []int{1, 3, 7} {
				b.Run(fmt.Sprintf("%s/%d/level-%d", kind, n, level), func(b *testing.B) {
					p, err := NewPacker(level)
					if err != nil {
						b.Fatal(err)
					}
					var blob []byte
					start := processorTime(b)
					for b.Loop() {
						if blob, err = p.Encode(frames); err != nil {
							b.Fatal(err)
						}
					}
					packing := processorTime(b) - start
					const reads = 200
					start = processorTime(b)
					for range reads {
						f, err := Unpack(blob)
						if err != nil {
							b.Fatal(err)
						}
						f.Release()
					}
					b.ReportMetric(float64(processorTime(b)-start)/float64(reads*n), "unpack-ns/message")
					b.ReportMetric(float64(packing)/float64(b.N*n), "pack-ns/message")
					b.ReportMetric(float64(len(blob))/float64(n), "bytes/message")
					b.ReportMetric(float64(len(blob))/float64(raw), "ratio")
					b.ReportMetric(0, "ns/op")
				})
			}
		}
	}
}
