package segment

import (
	"bytes"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestContentSizeIsWhatUnpackNeeds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		payload := bytes.Repeat([]byte("ab"), rapid.IntRange(0, 400_000).Draw(t, "pairs"))
		blob, _, err := Pack([]Frame{{TransactionID: "t", Payload: payload}})
		if err != nil {
			t.Fatal(err)
		}
		frame := Frame{TransactionID: "t", Payload: payload}
		if got := ContentSize(blob); got != int64(frame.EncodedLen()) {
			t.Fatalf("%d bytes announced, %d needed", got, frame.EncodedLen())
		}
	})
}

// A blob of another writer may leave its size open. What is then taken for it must not be less than it is.
func TestContentSizeWithoutAnAnnouncedSizeIsABound(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 200, 5_000, 3 << 20} {
		for _, text := range []string{"a", "abcdefghij"} {
			content := bytes.Repeat([]byte(text), size)
			var stream bytes.Buffer
			encoder, err := zstd.NewWriter(&stream)
			require.NoError(t, err)
			for piece := range slices.Chunk(content, 1<<20) { // more than one write: the size is not known when the header is written
				_, err = encoder.Write(piece)
				require.NoError(t, err)
				require.NoError(t, encoder.Flush())
			}
			require.NoError(t, encoder.Close())
			got := ContentSize(stream.Bytes())
			require.GreaterOrEqual(t, got, int64(len(content)))
			require.LessOrEqual(t, got, int64(len(content))+int64(len(content)/(1<<20)+2)*(128<<10))
		}
	}
}

func TestContentSizeOfWhatCannotBeUnpacked(t *testing.T) {
	t.Parallel()
	require.Zero(t, ContentSize(nil))
	require.Zero(t, ContentSize([]byte("garbage")))
	// A header that announces 2^63 bytes.
	require.EqualValues(t, MaxRawBytes, ContentSize([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 0, 0, 0x80, 1, 0, 0}))
}
