package segment

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

func TestTraceparent(t *testing.T) {
	t.Parallel()
	const text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	c := ParseTraceparent([]byte(text))
	require.NotZero(t, c)
	require.Equal(t, text, string(c.AppendTraceparent(nil)))
	for _, none := range []string{
		"", "00", text[1:], text + "0", "ff" + text[2:], "00-00000000000000000000000000000000-b7ad6b7169203331-01",
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", "00-0af7651916cd43dd8448eb211c80319g-b7ad6b7169203331-01", "00_" + text[3:],
	} {
		require.Zero(t, ParseTraceparent([]byte(none)), none)
	}
}

func TestTraceContextTravelsWithItsFrame(t *testing.T) {
	t.Parallel()
	context := ParseTraceparent([]byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
	frames := []Frame{
		{ID: NewID(), TransactionID: "with", Context: context, Payload: []byte("1")},
		{ID: NewID(), TransactionID: "without", Payload: []byte("2")},
	}
	blob, _, err := Pack(frames)
	require.NoError(t, err)
	got, err := Unpack(blob)
	require.NoError(t, err)
	defer got.Release()
	for i := range frames {
		require.Empty(t, cmp.Diff(frames[i], got.At(i)))
	}
	_, _, err = parseFrame([]byte{19, 0, 0, 0, flagContext, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	require.ErrorIs(t, err, ErrMalformed, "a context that runs over its frame")
}
