package pg

import (
	"errors"
	"strings"
	"testing"
)

// FuzzDecodeClaim: an answer of a pop is malformed, or each of its segments has a position and frames.
func FuzzDecodeClaim(f *testing.F) {
	f.Add([]byte(`{"partitions":[{"queue":"q","partition":"p","partitionId":"0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731","segments":[{"base":0,"startIndex":0,"take":1,"createdAt":"2026-01-01T00:00:00Z"}]}]}`),
		[]byte("frames"), 1, []byte(`[{"p":"p","s":"took","lastOff":3},{"p":"q","s":"leased","until":"2026-01-01T00:00:00Z"},{"p":"r","s":"empty"}]`))
	f.Add([]byte(`{}`), []byte(""), 0, []byte(`[]`))
	f.Add([]byte(`{"partitions":[null]}`), []byte("x"), 2, []byte(`[{"p":null}]`))
	f.Fuzz(func(t *testing.T, meta, blob []byte, n int, states []byte) {
		blobs := make([][]byte, min(max(n, 0), 8))
		for i := range blobs {
			blobs[i] = blob
		}
		claim, err := decodeClaim(meta, blobs, "q")
		if err != nil && !errors.Is(err, ErrMalformedAnswer) {
			t.Fatalf("refused as %v", err)
		}
		for _, p := range claim.Partitions {
			for _, s := range p.Segments {
				if p.Queue == "" || s.Base < 0 || s.StartIndex < 0 || s.Take < 1 || len(s.Blob) == 0 {
					t.Fatalf("accepted %+v", p)
				}
			}
		}
		if _, err := decodeStates(states); err != nil && !errors.Is(err, ErrMalformedAnswer) {
			t.Fatalf("refused as %v", err)
		}
	})
}

// FuzzCheckServerVersion: a version is too old, new enough, or not a version.
func FuzzCheckServerVersion(f *testing.F) {
	for _, version := range []string{"15.3 (Debian 15.3-1)", "18beta1", "9.6.24", "", "x", "99999999999999999999"} {
		f.Add(version)
	}
	f.Fuzz(func(t *testing.T, version string) {
		if err := checkServerVersion(version); err == nil && (version == "" || version[0] < '0' || version[0] > '9') {
			t.Fatalf("%q was taken for a version", version)
		}
	})
}

// FuzzParseConfig: whatever stands in a connection string, its password is not in the error.
func FuzzParseConfig(f *testing.F) {
	f.Add("postgres://user:", "@host:5432/db?sslmode=disable")
	f.Add("host=h user=u password=", " sslmode=wrong")
	f.Add("postgres://user:", "@host:x/%zz")
	f.Add("", "")
	const password = "correct-horse-battery"
	f.Fuzz(func(t *testing.T, before, after string) {
		if strings.Contains(before, "service") || strings.Contains(after, "service") || strings.Contains(before+after, "file") {
			return // those read files
		}
		config, err := ParseConfig(before + password + after)
		if err == nil && config == nil || err != nil && strings.Contains(err.Error(), password) {
			t.Fatalf("%v", err)
		}
	})
}
