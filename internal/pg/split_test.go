package pg

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	queensql "queenmq/sql"
)

func TestSplitStatements(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, text string
		want       []string
	}{
		{"Empty", "", nil},
		{"OnlyComments", "-- nothing; here\n/* nor; here */ ;", nil},
		{"LastWithoutSemicolon", "SELECT 1; SELECT 2", []string{"SELECT 1", "SELECT 2"}},
		{"EmptyStatements", ";;SELECT 1;;", []string{"SELECT 1"}},
		{"String", "SELECT 'a;''b;'; SELECT 2;", []string{"SELECT 'a;''b;'", "SELECT 2"}},
		{"BackslashIsPlainInStandardString", `SELECT 'a\'; SELECT 2;`, []string{`SELECT 'a\'`, "SELECT 2"}},
		{"EscapeString", `SELECT E'a\';b', e'\\'; SELECT 2;`, []string{`SELECT E'a\';b', e'\\'`, "SELECT 2"}},
		{"NameEndingInE", `SELECT date'x\'; SELECT 2;`, []string{`SELECT date'x\'`, "SELECT 2"}},
		{"QuotedName", `SELECT "a;""b"; SELECT 2;`, []string{`SELECT "a;""b"`, "SELECT 2"}},
		{"DollarQuote", "DO $$ BEGIN; END $$; SELECT 2;", []string{"DO $$ BEGIN; END $$", "SELECT 2"}},
		{"TaggedDollarQuote", "DO $a$ x; $$ y; $b$ z; $a$; SELECT 2;", []string{"DO $a$ x; $$ y; $b$ z; $a$", "SELECT 2"}},
		{"DollarInsideName", "SELECT a$b; SELECT c$b$;", []string{"SELECT a$b", "SELECT c$b$"}},
		{"Parameter", "SELECT $1; SELECT $2", []string{"SELECT $1", "SELECT $2"}},
		{"LineComment", "SELECT 1 -- it's; $$ \"\n; SELECT 2;", []string{"SELECT 1 -- it's; $$ \"", "SELECT 2"}},
		{"NestedComment", "SELECT /* ; /* ; */ ' */ 1; SELECT 2;", []string{"SELECT /* ; /* ; */ ' */ 1", "SELECT 2"}},
		{"LeadingCommentStays", "-- why\nSELECT 1;", []string{"-- why\nSELECT 1"}},
		{"Parentheses", "CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2); SELECT 3;", []string{"CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2)", "SELECT 3"}},
		{"Numbers", "SELECT 1e5, 1E'; SELECT 2;'", []string{"SELECT 1e5, 1E'; SELECT 2;'"}},
		{"WindowsLineEnds", "SELECT 1;\r\nSELECT 2;\r\n", []string{"SELECT 1", "SELECT 2"}},
		{"MinusAndSlash", "SELECT 1-1/1; SELECT 2;", []string{"SELECT 1-1/1", "SELECT 2"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			statements, err := splitStatements(test.text)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(test.want, texts(statements)))
		})
	}
}

func TestSplitRefusesWhatDoesNotEnd(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"SELECT 1;\nSELECT 'a":   "line 2: string does not end",
		`SELECT "a`:              "line 1: quoted name does not end",
		`SELECT E'a\'`:           "line 1: string does not end",
		"\n\nDO $x$ a $y$":       "line 3: dollar quote $x$ does not end",
		"SELECT 1 /* /* */":      "line 1: comment does not end",
		"SELECT (1;\n SELECT 2;": "line 1: parenthesis in the statement does not end",
	} {
		_, err := splitStatements(text)
		require.EqualError(t, err, want)
	}
}

func TestSplitCountsLines(t *testing.T) {
	t.Parallel()
	statements, err := splitStatements("-- one\nSELECT 1;\n\nSELECT\n2; SELECT 3;")
	require.NoError(t, err)
	lines := []int{}
	for _, s := range statements {
		lines = append(lines, s.Line)
	}
	require.Equal(t, []int{2, 4, 5}, lines)
}

// Whatever statements are made of, joining them with semicolons and splitting gives them back.
func TestSplitUndoesJoin(t *testing.T) {
	t.Parallel()
	token := rapid.SampledFrom([]string{
		"SELECT", "a", "$1", "x$y", "1.5e3", "'s;'", "'it''s'", `'\'`, `E'\';'`, `"q;"`, "$$;'$$", "$t$ $$;-- $t$", "/* ; */", "/* /* ; */ */",
		"-- ;'\n", "(a, b)", "(';')", "=", "-", "/", "::", ".", "é",
	})
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) string {
			tokens := append([]string{"SELECT"}, rapid.SliceOfN(token, 0, 8).Draw(t, "tokens")...)
			return strings.TrimSpace(strings.Join(tokens, " "))
		}), 1, 5).Draw(t, "statements")
		statements, err := splitStatements(strings.Join(want, "\n;"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, texts(statements)); diff != "" {
			t.Fatal(diff)
		}
	})
}

// The embedded files are the text that matters.
func TestSplitReadsTheEmbeddedFiles(t *testing.T) {
	t.Parallel()
	files, err := queensql.Files()
	require.NoError(t, err)
	for _, file := range files {
		statements, err := splitStatements(file.Text)
		require.NoError(t, err, file.Name)
		for _, s := range statements {
			again, err := splitStatements(s.Text)
			require.NoError(t, err, file.Name)
			require.Len(t, again, 1, file.Name)
		}
	}
}

// FuzzSplitStatements checks that no byte outside of white space, comments and separators is lost, changed or moved, and that
// every piece is one statement.
func FuzzSplitStatements(f *testing.F) {
	for _, seed := range []string{"SELECT 1;", "DO $$;$$;", "/* /* */ */;'", `E'\'';"`, "a$b$;$b$", "(;);", "--", "$é$;$é$", "\x00;\xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		statements, err := splitStatements(text)
		if err != nil {
			require.ErrorIs(t, err, errUnterminated)
			return
		}
		end := 0
		for _, s := range statements {
			require.NotEmpty(t, s.Text)
			require.Equal(t, s.Text, text[s.Offset:s.Offset+len(s.Text)])
			require.Empty(t, strings.Trim(strip(t, text[end:s.Offset]), ";"+spaces), "text was lost between statements")
			end = s.Offset + len(s.Text)
			again, err := splitStatements(s.Text)
			require.NoError(t, err)
			require.Len(t, again, 1)
			require.Equal(t, s.Text, again[0].Text)
		}
		require.Empty(t, strings.Trim(strip(t, text[end:]), ";"+spaces), "text was lost after the last statement")
	})
}

// strip removes comments, of which splitting drops those that belong to no statement.
func strip(t *testing.T, text string) string {
	t.Helper()
	var kept strings.Builder
	for i := 0; i < len(text); {
		switch {
		case strings.HasPrefix(text[i:], "--"):
			i += lineCommentLen(text[i:])
		case strings.HasPrefix(text[i:], "/*"):
			n := blockCommentLen(text[i:])
			require.Positive(t, n)
			i += n
		default:
			kept.WriteByte(text[i])
			i++
		}
	}
	return kept.String()
}

func texts(statements []statement) []string {
	var out []string
	for _, s := range statements {
		out = append(out, s.Text)
	}
	return out
}
