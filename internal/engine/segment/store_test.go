package segment

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

func TestAppendStored_IsAZstdFrame(t *testing.T) {
	t.Parallel()
	strict, err := zstd.NewReader(nil)
	require.NoError(t, err)
	defer strict.Close()
	for n := range storedBytes + 1 {
		raw := bytes.Repeat([]byte{byte(n), 0x5a}, n)[:n]
		blob := appendStored([]byte("before"), raw)[len("before"):]
		require.LessOrEqual(t, len(blob), n+16)
		var header zstd.Header
		require.NoError(t, header.Decode(blob))
		require.True(t, header.HasCheckSum)
		require.EqualValues(t, n, header.FrameContentSize)
		back, err := strict.DecodeAll(blob, nil)
		require.NoError(t, err, "%d bytes", n)
		require.True(t, bytes.Equal(raw, back))
		if n > 0 {
			blob[len(blob)-5] ^= 1 // the last byte of the content
			_, err = strict.DecodeAll(blob, nil)
			require.ErrorIs(t, err, zstd.ErrCRCMismatch, "%d bytes", n)
		}
	}
}

func TestPack_SmallSegmentsAreStoredAndLargeOnesCompressed(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 100, storedBytes, 2 * storedBytes, 10_000} {
		frame := Frame{ID: NewID(), TransactionID: "t", Payload: fmt.Appendf(nil, `"%0*d"`, n, 1)}
		blob, _, err := Pack([]Frame{frame})
		require.NoError(t, err)
		if raw := frame.EncodedLen(); raw < storedBytes {
			require.Contains(t, string(blob), string(frame.Payload))
		} else {
			require.Less(t, len(blob), raw/2)
		}
		f, err := Unpack(blob)
		require.NoError(t, err)
		require.Equal(t, frame, f.At(0))
		f.Release()
	}
}
