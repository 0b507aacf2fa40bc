// Package payload makes the message bodies of the benchmarks.
package payload

import (
	"encoding/base64"
	"math/rand/v2"
	"strconv"
)

// A Kind names how message bodies are made.
type Kind string

const (
	// Random is JSON around random base64: it hardly compresses, the worst case for segments.
	Random Kind = "random"
	// Order is an order-like document of varying numbers and few words: it compresses about 5 to 1.
	Order Kind = "order"
)

// A Source makes bodies of about size bytes. It is not safe for concurrent use; every producer has its own.
type Source struct {
	kind   Kind
	size   int
	random *rand.Rand
	noise  []byte
}

// NewSource returns a source whose bodies follow from seed.
func NewSource(kind Kind, size int, seed uint64) *Source {
	return &Source{kind: kind, size: size, random: rand.New(rand.NewPCG(seed, 7)), noise: make([]byte, size)}
}

var (
	cities   = []string{"Porto", "Łódź", "Kyōto", "Bergen", "Cuenca", "Tromsø", "Gent", "Arequipa"}
	statuses = []string{"created", "paid", "packed", "shipped", "delivered", "returned"}
)

// Append appends one JSON document to dst. It begins with {"seq":SEQUENCE, whatever the kind.
func (s *Source) Append(dst []byte, sequence int64) []byte {
	start := len(dst)
	if s.kind != Order {
		raw := max((s.size-32)*3/4, 1)
		for i := range s.noise[:raw] {
			s.noise[i] = byte(s.random.Uint32())
		}
		dst = append(strconv.AppendInt(append(dst, `{"seq":`...), sequence, 10), `,"noise":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, s.noise[:raw])
		return append(dst, `"}`...)
	}
	number := func(before string, n int64) {
		dst = strconv.AppendInt(append(dst, before...), n, 10)
	}
	number(`{"seq":`, sequence)
	number(`,"order":{"id":`, int64(s.random.Uint64()>>1)) //nolint:gosec // fits after the shift
	number(`,"customer":`, s.random.Int64N(1_000_000))
	dst = append(append(append(dst, `,"city":"`...), cities[s.random.IntN(len(cities))]...), `","status":"`...)
	dst = append(dst, statuses[s.random.IntN(len(statuses))]...)
	number(`","totalCents":`, s.random.Int64N(1_000_00))
	dst = append(dst, `,"currency":"EUR","lines":[`...)
	for line := 0; line == 0 || len(dst)-start < s.size-60; line++ {
		if line > 0 {
			dst = append(dst, ',')
		}
		sku := s.random.Int64N(99999) + 1e5 // five digits behind the first one
		dst = append(dst, `{"sku":"SKU-`...)
		dst = append(dst, strconv.FormatInt(sku, 10)[1:]...)
		number(`","quantity":`, 1+s.random.Int64N(9))
		number(`,"unitCents":`, s.random.Int64N(20000))
		dst = append(dst, `,"gift":null}`...)
	}
	return append(dst, `]}}`...)
}
