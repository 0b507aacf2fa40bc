package spool

import (
	"encoding/binary"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"queenmq/internal/engine/push"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

func messageGenerator() *rapid.Generator[push.Accepted] {
	text := rapid.StringOfN(rapid.RuneFrom([]rune(`ab"\,:{}é水😀 <&`+"\u2028\n")), 1, 12, -1)
	return rapid.Custom(func(t *rapid.T) push.Accepted {
		m := push.Accepted{
			Tenant: pg.DefaultTenant, ID: uuid.New(), Sealed: rapid.Bool().Draw(t, "sealed"),
			Item: push.Item{
				Queue: text.Draw(t, "queue"), Partition: rapid.SampledFrom([]string{"", "p", `,"payload":`}).Draw(t, "partition"),
				TransactionID: text.Draw(t, "transaction"),
				// Bytes must survive that an encoder would change: spaces, escapes, big numbers, repeated members.
				Payload: []byte(rapid.SampledFrom([]string{`null`, `{"a": 1.0e5,"a":"\u00e9\/"}`, `12345678901234567890123`, `"x,\"payload\":y"`, `[]`}).Draw(t, "payload")),
			},
		}
		if rapid.Bool().Draw(t, "other tenant") {
			m.Tenant = uuid.New()
		}
		if rapid.Bool().Draw(t, "traced") {
			m.TraceID = uuid.NullUUID{UUID: uuid.New(), Valid: true}
		}
		if rapid.Bool().Draw(t, "in a span") {
			m.Context = segment.ParseTraceparent([]byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
		}
		if rapid.Bool().Draw(t, "authenticated") {
			m.ProducerSub = text.Draw(t, "subject")
		}
		return m
	})
}

func TestRecordsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := messageGenerator().Draw(t, "message")
		data := appendRecord(nil, &want)
		body, size, err := nextRecord(data)
		require.NoError(t, err)
		require.Equal(t, len(data), size)
		require.True(t, json.Valid(body))
		got, err := decodeRecord(body)
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(want, got))
	})
}

func TestRecordsOfOtherWritersAreRead(t *testing.T) {
	t.Parallel()
	m, err := decodeRecord([]byte(`{"queue":"q","partition":"p","transactionId":"t","messageId":"01890000-0000-7000-8000-000000000001","payload":{}}`))
	require.NoError(t, err)
	require.Equal(t, pg.DefaultTenant, m.Tenant)
	for _, text := range []string{
		``, `{}`, `{"queue":"q"}`, `{"queue":"q","payload":`, `{"queue":"q","payload":1}`, `{"queue":"","transactionId":"t","messageId":"01890000-0000-7000-8000-000000000001","payload":1}`,
		`{"queue":7,"transactionId":"t","payload":1}`,
	} {
		_, err := decodeRecord([]byte(text))
		require.Error(t, err, text)
	}
}

// sample is a file of n records.
func sample(n int) (data []byte, messages []push.Accepted, ends []int) {
	data = []byte(header)
	for i := range n {
		m := push.Accepted{Tenant: pg.DefaultTenant, ID: uuid.New(), Item: push.Item{
			Queue: "q", Partition: string(rune('a' + i)), TransactionID: uuid.NewString(), Payload: []byte(`{"n":` + string(rune('0'+i)) + `}`),
		}}
		data = appendRecord(data, &m)
		messages, ends = append(messages, m), append(ends, len(data))
	}
	return data, messages, ends
}

// read lists what scan finds.
func read(data []byte, complete bool) (ids []uuid.UUID, faults, length int) {
	length, _ = scan(data, complete, func(f found) error {
		if f.fault != nil {
			faults++
		} else {
			ids = append(ids, f.message.ID)
		}
		return nil
	})
	return ids, faults, length
}

// A write that was interrupted at any byte leaves all records before it, and nothing else.
func TestTornWritesLeaveWhatWasWhole(t *testing.T) {
	t.Parallel()
	data, messages, ends := sample(6)
	for cut := range len(data) + 1 {
		whole := 0
		for whole < len(ends) && ends[whole] <= cut {
			whole++
		}
		ids, faults, length := read(data[:cut], false)
		require.Len(t, ids, whole, "cut at %d", cut)
		for i, id := range ids {
			require.Equal(t, messages[i].ID, id)
		}
		require.Zero(t, faults, "cut at %d", cut)
		switch {
		case whole > 0:
			require.Equal(t, ends[whole-1], length)
		case cut >= len(header):
			require.Equal(t, len(header), length)
		default:
			require.Zero(t, length)
		}
	}
}

// A byte that was changed anywhere costs the record it belongs to, which is reported, and no other.
func TestDamageCostsOneRecord(t *testing.T) {
	t.Parallel()
	data, messages, ends := sample(6)
	for at := range data {
		for _, flip := range []byte{0x01, 0x80, 0xff} {
			damaged := append([]byte(nil), data...)
			damaged[at] ^= flip
			hit := -1 // the header
			if at >= len(header) {
				for hit = 0; ends[hit] <= at; hit++ {
				}
			}
			var want []uuid.UUID
			for i, m := range messages {
				if i != hit {
					want = append(want, m.ID)
				}
			}
			ids, faults, length := read(damaged, true)
			require.Equal(t, want, ids, "byte %d", at)
			require.Equal(t, 1, faults, "byte %d", at)
			require.Equal(t, len(data), length)
		}
	}
}

// Whatever a file holds, reading it ends, covers every byte once, and finds only records with a right checksum.
func FuzzScan(f *testing.F) {
	data, _, _ := sample(3)
	f.Add(data, true)
	f.Add(data[:len(data)-3], false)
	f.Add([]byte(header), true)
	f.Add([]byte("QSP2 something else"), true)
	f.Add(append(append([]byte(nil), data[:40]...), data...), true)
	f.Fuzz(func(t *testing.T, data []byte, complete bool) {
		at := 0
		length, err := scan(data, complete, func(f found) error {
			if at == 0 && len(data) >= len(header) && string(data[:len(header)]) == header {
				at = len(header)
			}
			require.Equal(t, f.end-len(f.raw), at)
			require.NotEmpty(t, f.raw)
			if f.fault == nil {
				_, size, err := nextRecord(f.raw)
				require.NoError(t, err)
				require.Equal(t, len(f.raw), size)
				again := appendRecord(nil, &f.message)
				body, _, err := nextRecord(again)
				require.NoError(t, err)
				back, err := decodeRecord(body)
				require.NoError(t, err)
				require.Equal(t, f.message, back)
			}
			at = f.end
			return nil
		})
		require.NoError(t, err)
		require.LessOrEqual(t, length, len(data))
		if complete {
			require.Equal(t, len(data), length)
		}
	})
}

// Room that the file was given and that was never written to is a torn tail like any other.
func TestUnwrittenTailIsTorn(t *testing.T) {
	t.Parallel()
	data, _, ends := sample(3)
	for cut := ends[1]; cut < len(data)-frameBytes/2; cut++ {
		for _, room := range []int{0, 1, 7, len(data) - cut, 4096} {
			torn := append(append([]byte(nil), data[:cut]...), make([]byte, room)...)
			ids, faults, length := read(torn, false)
			require.Len(t, ids, 2)
			require.Zero(t, faults, "cut at %d, %d bytes of nothing", cut, room)
			require.Equal(t, ends[1], length)
		}
	}
}

// A length that claims the records behind its own costs none of them.
func TestLengthThatLiesCostsOneRecord(t *testing.T) {
	t.Parallel()
	data, messages, ends := sample(5)
	for last := 1; last < len(ends); last++ {
		for _, complete := range []bool{false, true} {
			damaged := append([]byte(nil), data...)
			binary.LittleEndian.PutUint32(damaged[len(header):], uint32(ends[last]-len(header)-frameBytes)) //nolint:gosec // small
			ids, faults, length := read(damaged, complete)
			require.Equal(t, 1, faults)
			require.Len(t, ids, 4)
			for i, id := range ids {
				require.Equal(t, messages[i+1].ID, id)
			}
			require.Equal(t, len(data), length)
		}
	}
	for _, length := range []uint32{0, 1, 7, 1 << 31, 1<<32 - 1} {
		damaged := append([]byte(nil), data...)
		binary.LittleEndian.PutUint32(damaged[len(header):], length)
		ids, faults, _ := read(damaged, true)
		require.Equal(t, 1, faults)
		require.Len(t, ids, 4)
	}
}
