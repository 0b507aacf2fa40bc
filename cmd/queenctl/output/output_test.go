package output

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// safe is what may reach a terminal.
func safe(text string) bool {
	for _, r := range text {
		if r != '\n' && r != '\t' && dangerous(r) {
			return false
		}
	}
	return utf8.ValidString(text)
}

// Whatever bytes come, in whatever pieces, what a terminal gets is safe, and the pieces make no difference.
func TestSafeWriterIsSafeInPieces(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.SliceOf(rapid.Byte()), rapid.Map(rapid.String(), func(s string) []byte { return []byte(s) })).Draw(t, "text")
		write := func(pieces func() int) string {
			var out strings.Builder
			w := SafeWriter{To: &out}
			for rest := text; len(rest) > 0; {
				n := min(pieces(), len(rest))
				if _, err := w.Write(rest[:n]); err != nil {
					t.Fatal(err)
				}
				rest = rest[n:]
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			return out.String()
		}
		whole := write(func() int { return len(text) })
		split := write(func() int { return rapid.IntRange(1, 3).Draw(t, "piece") })
		if whole != split {
			t.Fatalf("%q in pieces is %q", whole, split)
		}
		if !safe(whole) || !safe(Clean(string(text))) || strings.ContainsAny(Clean(string(text)), "\n\t") {
			t.Fatalf("%q is not safe", whole)
		}
	})
}

func TestHarmlessTextStaysAsItIs(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "plain", "né 漢字 🙂", `C:\n"x"`, "a b"} {
		require.Equal(t, text, Clean(text))
		require.Equal(t, text+"\n\tnext", CleanLines(text+"\n\tnext"))
	}
	require.Equal(t, `\u001b[2J\n\t\r\u202e\udb40\udc41\ufffd`, Clean("\x1b[2J\n\t\r\u202e\U000e0041\xff"))
}

// JSON that was escaped for a terminal means what it meant.
func TestEscapedJSONKeepsItsMeaning(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOf(rapid.OneOf(rapid.Rune(), rapid.SampledFrom([]rune{0x7f, 0x9b, 0x202e, 0x2066, 0x200b, 0xfeff, 0xe0041, 0x2028}))).Draw(t, "text")
		var encoded bytes.Buffer
		encoder := json.NewEncoder(&encoded)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(text); err != nil {
			t.Fatal(err)
		}
		var back string
		if err := json.Unmarshal([]byte(CleanLines(encoded.String())), &back); err != nil {
			t.Fatal(err)
		}
		if back != strings.ToValidUTF8(text, "\ufffd") {
			t.Fatalf("%q became %q", text, back)
		}
	})
}

func TestFormats(t *testing.T) {
	t.Parallel()
	items := []json.RawMessage{
		[]byte(`{"name":"a","n":12345678901234567890.10,"in":{"b":[1,{"z":1,"a":2}],"s":["x","y"]},"t":true,"none":null,"empty":""}`),
		[]byte(`{"name":"漢字\u001b","n":1e400,"in":{"b":[],"s":[]},"t":false,"empty":"abcdefgh"}`),
	}
	columns := []Column{Col("NAME", "other", "name"), Num("N", "n"), Col("B", "in.b"), Col("S", "in.s").InWide(), Col("T", "t"), Col("NONE", "none"), Col("EMPTY", "empty").AtMost(5)}
	for _, row := range []struct{ format, want string }{
		{"table", "NAME        N                        B                T    NONE  EMPTY\n" +
			"a           12345678901234567890.10  [1,{\"z\":1,\"a\":2}]  yes  -     \"\"\n"},
		{"ndjson", string(items[0]) + "\n" + string(items[1]) + "\n"},
		{"template={{.name}} {{json .in}}", ""},
		{"yaml", "things:\n  - name: a\n    n: 12345678901234567890.10\n    in:\n      b:\n        - 1\n        - z: 1\n          a: 2\n      s:\n        - x\n        - y\n    t: true\n    none: null\n    empty: \"\"\n" +
			"  - name: \"漢字\\e\"\n    n: !!float 1e400\n    in:\n      b: []\n      s: []\n    t: false\n    empty: abcdefgh\n"},
	} {
		format, err := ParseFormat(row.format)
		require.NoError(t, err)
		var out bytes.Buffer
		p := Printer{&out, format}
		require.NoError(t, p.List("things", items, columns))
		switch row.format {
		case "table":
			require.Equal(t, []string{
				"NAME        " + "                      N  B                  T    NONE  EMPTY",
				"a           " + "12345678901234567890.10  [1,{\"z\":1,\"a\":2}]  yes  -     \"\"",
				"漢字\\u001b  " + "                  1e400  []                 no   -     abcd…",
			}, strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n"))
		case "template={{.name}} {{json .in}}":
			require.Equal(t, "a {\"b\":[1,{\"a\":2,\"z\":1}],\"s\":[\"x\",\"y\"]}\n漢字\u001b {\"b\":[],\"s\":[]}\n", out.String())
		default:
			require.Empty(t, cmp.Diff(row.want, out.String()))
		}
	}
	for _, text := range []string{"xml", "template={{", ""} {
		_, err := ParseFormat(text)
		require.Error(t, err, text)
	}
}

func TestProgressSaysHowLongTheRestTakes(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	var out bytes.Buffer
	p := NewProgress(&out, func() int { return 200 }, func() time.Time { return now }, "moved", "rows", 1000)
	now = now.Add(10 * time.Second)
	p.Add(250)
	require.Equal(t, "\r\x1b[K[#####...............]  25% moved 250 of 1,000 rows, 25/s, ETA 30s", out.String())
	p.Add(1)
	require.Equal(t, 1, strings.Count(out.String(), "\r"), "it is not drawn more often than it can be seen")
	now = now.Add(time.Second)
	p.Set(1000, 0, "bad \x1b[2J news")
	require.Contains(t, out.String(), `100% moved 1,000 of 1,000 rows, 90/s, bad \u001b[2J news`)
	p.Finish()
	require.True(t, strings.HasSuffix(out.String(), "\n"))

	out.Reset()
	narrow := NewProgress(&out, func() int { return 20 }, func() time.Time { return now }, "moved", "rows", 0)
	now = now.Add(time.Second)
	narrow.Add(5)
	require.Equal(t, "\r\x1b[Kmoved 5 rows, 5/s", out.String())
	var none *Progress
	none.Add(1)
	none.Set(1, 1, "")
	none.Finish()
}

func TestNumbersAndTimesForPeople(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000", -100: "-100"} {
		require.Equal(t, want, Grouped(n))
	}
	for d, want := range map[time.Duration]string{
		950 * time.Millisecond: "950ms", 12 * time.Second: "12s", 185 * time.Second: "3m05s", 260 * time.Minute: "4h20m", 51 * time.Hour: "2d3h",
	} {
		require.Equal(t, want, Short(d))
	}
}

// A diff turns one text into the other.
func TestDiffTurnsLeftIntoRight(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 12)
		left, right := texts.Draw(t, "left"), texts.Draw(t, "right")
		lines, same := Diff(left, right)
		var from, to []string
		for _, line := range lines {
			if line[0] != '+' {
				from = append(from, line[2:])
			}
			if line[0] != '-' {
				to = append(to, line[2:])
			}
		}
		if strings.Join(from, "\n") != strings.Join(left, "\n") || strings.Join(to, "\n") != strings.Join(right, "\n") {
			t.Fatalf("%q", lines)
		}
		if same != (strings.Join(left, "\n") == strings.Join(right, "\n") && len(left) == len(right)) {
			t.Fatalf("same is %t", same)
		}
	})
}

func TestWithoutKeepsBytes(t *testing.T) {
	t.Parallel()
	kept, err := Without([]byte(`{"a": 1.00, "payload":{"x":1}, "b":"\u00e9"}`), "payload")
	require.NoError(t, err)
	require.Equal(t, `{"a":1.00,"b":"\u00e9"}`, string(kept))
}

func TestJSONPath(t *testing.T) {
	t.Parallel()
	document := json.RawMessage(`{"queues":[{"name":"a","n":1.00,"in":{"x y":[1,2,3]}},{"name":"b\n","n":null}],"z":{"p":1,"q":"two"}}`)
	for path, want := range map[string]string{
		"{.queues[*].name}": "a\nb\n\n", "$.queues[0].n": "1.00\n", ".queues[-1].n": "null\n", "{.queues[0].in['x y'][*]}": "1\n2\n3\n", ".z.*": "1\ntwo\n", ".queues[0].in": "{\"x y\":[1,2,3]}\n",
		".queues[9].name": "", ".none.at.all": "", ".z.p.q": "", ".queues.name": "", "{$.z.q}": "two\n", ".queues[*]['in'][\"x y\"][1]": "2\n",
	} {
		format, err := ParseFormat("jsonpath=" + path)
		require.NoError(t, err, path)
		var out bytes.Buffer
		p := Printer{&out, format}
		require.NoError(t, p.Item(document))
		require.Equal(t, want, out.String(), path)
	}
	for _, path := range []string{"{.a", "a", ".a[", ".a[x]", "..a", ".a[?(@.b)]", ".a..b", ".[0"} {
		_, err := ParseFormat("jsonpath=" + path)
		require.Error(t, err, path)
	}
}
