// Package payload makes the message bodies of the benchmarks.
package payload

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
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
		dst = fmt.Appendf(dst, `{"seq":%d,"noise":"`, sequence)
		dst = base64.StdEncoding.AppendEncode(dst, s.noise[:raw])
		return append(dst, `"}`...)
	}
	dst = fmt.Appendf(dst, `{"seq":%d,"order":{"id":%d,"customer":%d,"city":%q,"status":%q,"totalCents":%d,"currency":"EUR","lines":[`,
		sequence, s.random.Uint64()>>1, s.random.IntN(1_000_000), cities[s.random.IntN(len(cities))], statuses[s.random.IntN(len(statuses))], s.random.IntN(1_000_00))
	for line := 0; line == 0 || len(dst)-start < s.size-60; line++ {
		if line > 0 {
			dst = append(dst, ',')
		}
		dst = fmt.Appendf(dst, `{"sku":"SKU-%05d","quantity":%d,"unitCents":%d,"gift":null}`, s.random.IntN(99999), 1+s.random.IntN(9), s.random.IntN(20000))
	}
	return append(dst, `]}}`...)
}
