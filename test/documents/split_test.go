package documents

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSplit(t *testing.T) {
	t.Parallel()
	for script, want := range map[string][][]string{
		"make run":                                 {{"make", "run"}},
		"A=1 B='x y' make run # and so on":         {{"make", "run"}},
		"cd bench && go run . -a 'b c'; echo $?":   {{"cd", "bench"}, {"go", "run", ".", "-a", "b c"}, {"echo", "$?"}},
		"pop -n 2 > batch | tail":                  {{"pop", "-n", "2"}, {"tail"}},
		"curl -d '{\n\"a\":\"'$(id x)'\"}' \\\n u": {{"curl", "-d", "{\n\"a\":\"$(id x)\"}", "u"}},
		"f() { grep x | cut -f 1; }":               {{"f"}, {"grep", "x"}, {"cut", "-f", "1"}},
		"a --to '{{.state}}, {{.n}}'\nb":           {{"a", "--to", "{{.state}}, {{.n}}"}, {"b"}},
		"":                                         nil,
		"it's open":                                {{"its open"}},
	} {
		require.Equal(t, want, split(script), script)
	}
}
