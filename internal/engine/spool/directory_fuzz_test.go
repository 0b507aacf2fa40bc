package spool

import "testing"

// FuzzParseName: a file's name is none of ours, or is written again as it was read.
func FuzzParseName(f *testing.F) {
	for _, text := range []string{"queen-1764000000000-00000001", "queen-1764000000000-00000001.0", "queen--000000000001-00000001", "queen-+764000000000-00000001", "probe", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, ok := parseName(text); ok && n.String() != text {
			t.Fatalf("%q was read as %s", text, n)
		}
	})
}
