package stream

import (
	"encoding/json"
	"fmt"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestValuesAreComparedAsTheDatabaseWould(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		a, b string
		want bool
	}{
		{`{"a":1,"b":[true,null]}`, ` { "b":[ true , null], "a":1.0 }`, true},
		{`{"a":1,"a":2}`, `{"a":2}`, true},
		{`"\u0061"`, `"a"`, true},
		{`1e2`, `100`, true},
		{`0.10`, `1E-1`, true},
		{`-0`, `0.00`, true},
		{`123456789012345678901234567890`, `123456789012345678901234567891`, false},
		{`1e999999999999999999999`, `1`, false},
		{`-1`, `1`, false},
		{`"1"`, `1`, false},
		{`[1,2]`, `[2,1]`, false},
		{`{}`, `[]`, false},
		{`{"a":null}`, `{}`, false},
		{`null`, `false`, false},
	} {
		require.Equal(t, row.want, equal(json.RawMessage(row.a), json.RawMessage(row.b)), "%s and %s", row.a, row.b)
	}
}

func TestNumbersAreEqualWhenTheyAreWorthTheSame(t *testing.T) {
	t.Parallel()
	one := rapid.Custom(func(t *rapid.T) string {
		return fmt.Sprintf("%s%de%d", rapid.SampledFrom([]string{"", "0.", "10."}).Draw(t, "front"), rapid.IntRange(0, 200).Draw(t, "digits"), rapid.IntRange(-4, 4).Draw(t, "exponent"))
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := one.Draw(t, "a"), one.Draw(t, "b")
		x, okX := new(big.Rat).SetString(a)
		y, okY := new(big.Rat).SetString(b)
		require.True(t, okX && okY)
		require.Equal(t, x.Cmp(y) == 0, plainNumber(json.Number(a)) == plainNumber(json.Number(b)), "%s and %s", a, b)
	})
}
