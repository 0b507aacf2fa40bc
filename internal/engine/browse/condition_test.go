package browse

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The console judges what comes live by the same rules: both read the same examples.
func TestConditionsHoldAsInTheConsole(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../dashboard/src/lib/conditions.json")
	require.NoError(t, err)
	var examples []struct {
		Payload string
		Fits    []string
		FitsNot []string
	}
	require.NoError(t, json.Unmarshal(text, &examples))
	require.NotEmpty(t, examples)
	for _, example := range examples {
		for wanted, conditions := range map[bool][]string{true: example.Fits, false: example.FitsNot} {
			for _, condition := range conditions {
				c, err := ParseCondition(condition)
				require.NoError(t, err, condition)
				require.Equal(t, wanted, c.Holds([]byte(example.Payload)), "%s of %s", condition, example.Payload)
			}
		}
	}
}

func TestWhatIsNoConditionIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"order[", "order[x]", "a b", `a = "x`, `["a`, "a..b", "= 3", strings.Repeat("a", maxCondition+1)} {
		_, err := ParseCondition(text)
		require.ErrorIs(t, err, ErrCondition, text)
	}
}

// FuzzCondition: nothing that people write or send makes it fail, and what stands at a path fits the condition that it is there.
func FuzzCondition(f *testing.F) {
	f.Add("order.lines[*].n >= 2", `{"order":{"lines":[{"n":2}]}}`)
	f.Add(`["a\u0000"] = "\ud800"`, `{"a":"\ud800","a":[[[]]]}`)
	f.Add("payload ~ x", "[1,2")
	f.Fuzz(func(t *testing.T, condition, payload string) {
		c, err := ParseCondition(condition)
		if err != nil {
			require.ErrorIs(t, err, ErrCondition)
			return
		}
		if c.Holds([]byte(payload)) {
			c.operator = ""
			require.True(t, c.Holds([]byte(payload)), "the value is not there any more")
		}
	})
}
