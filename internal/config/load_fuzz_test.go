package config

import (
	"slices"
	"strings"
	"testing"
)

// FuzzLoad gives any text to any setting: it is taken, or refused on lines that begin with the name of a setting and do not repeat a secret.
func FuzzLoad(f *testing.F) {
	var names []string
	for field := range settings(&Config{}) {
		names = append(names, field.names...)
	}
	for i, value := range []string{"", "0", "-1", "true", "99999999999999999999", "1e9", "postgres://u:secret@h:1/d?sslmode=x", "a\x00b", " 5 ", "off", "0x10", "10s"} {
		f.Add(uint16(i*7), value)
	}
	f.Fuzz(func(t *testing.T, which uint16, value string) {
		name := names[int(which)%len(names)]
		lookup := func(asked string) (string, bool) { return value, asked == name }
		loaded, err := Load(lookup, []string{name}, ThisMachine(true, "/root"))
		if err == nil {
			if len(loaded.Values()) == 0 {
				t.Fatal("no values")
			}
			return
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(line, name) }) {
				t.Fatalf("%s=%q: %q names no setting", name, value, line)
			}
		}
	})
}
