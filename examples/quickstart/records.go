package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
)

// A line is one record: its bytes are the payload, its customer names the partition.
type line struct {
	customer string
	payload  []byte
}

// customers are keys of many kinds: a partition may have any name.
var customers = []string{
	"acme", "Zoë & Søns", "株式会社 さくら", "Ο Ήλιος", "مخبز الحي", "🦊 fox/8", "50% off", `quote " and \ backslash`, "semi;colon=1", "a b  c",
	"über/unter", "#hash?query", "café", "cafe\u0301", "0", "null", "très-très-long-" + strings.Repeat("x", 80),
}

const ordinaryCustomers = 40

// Fragments that a careless broker changes: numbers beyond 64 bits or the range of a double, escapes, duplicate and empty keys.
var fragments = []string{
	`12345678901234567890123456789`, `-0`, `1E400`, `0.1000000000000000055511151231257827`, `1.0`, `9007199254740993`,
	`"\u0000\u001f\uD83D\uDE00\/"`, `"\"\\\b\f\n\r\t"`, `"😀 e\u0301 é"`, `null`, `[]`, `{}`, `[[],[[]],{"":[null,true,false]}]`,
	`{"twice":1,"twice":2}`, `{"":"","z":1,"a":2}`, `"<script>&amp;\u2028</script>"`,
}

// writeRecords writes n orders, one JSON object a line. The same n gives the same bytes on every machine.
func writeRecords(path string, n int) error {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write the records: %w", err)
	}
	w := bufio.NewWriter(file)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		record(w, random, i)
	}
	if err := w.Flush(); err != nil {
		_ = file.Close()
		return fmt.Errorf("write the records: %w", err)
	}
	return file.Close()
}

func record(w *bufio.Writer, random *rand.Rand, i int) {
	customer := fmt.Sprintf("c-%03d", random.IntN(ordinaryCustomers))
	if random.IntN(3) == 0 {
		customer = customers[random.IntN(len(customers))]
	}
	key, err := json.Marshal(customer)
	if err != nil {
		panic(err) // a string can always be marshalled
	}
	// Some records put space where JSON allows it: it is part of the bytes.
	gap := strings.Repeat(" ", random.IntN(2))
	fmt.Fprintf(w, `{"order":%d,%s"customer":%s,"placed":"2026-%02d-%02dT%02d:00:00Z","total":%d.%02d,"items":[`,
		i, gap, key, 1+random.IntN(12), 1+random.IntN(28), random.IntN(24), random.IntN(10000), random.IntN(100))
	for j := range random.IntN(6) {
		if j > 0 {
			w.WriteString("," + gap)
		}
		fmt.Fprintf(w, `{"sku":"S-%05d","quantity":%d,"note":%s}`, random.IntN(100000), 1+random.IntN(9), fragments[random.IntN(len(fragments))])
	}
	fmt.Fprintf(w, `],"extra":{"id":%d%019d,"odd":%s%s,"address":{"lines":["%d Rue de l'Été",null],"geo":[%.6f,%.6f]}}}`+"\n",
		1+random.IntN(9), random.Int64(), gap, fragments[random.IntN(len(fragments))], random.IntN(400), random.Float64()*90, random.Float64()*180)
}

// readLines reads the file back; from here on the program knows nothing but what the file says.
func readLines(path string) ([]line, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the records: %w", err)
	}
	var lines []line
	for payload := range bytes.Lines(text) {
		payload = bytes.TrimSuffix(payload, []byte("\n"))
		var key struct{ Customer string }
		if err := json.Unmarshal(payload, &key); err != nil {
			return nil, fmt.Errorf("line %d of %s: %w", len(lines)+1, path, err)
		}
		lines = append(lines, line{key.Customer, payload})
	}
	return lines, nil
}
