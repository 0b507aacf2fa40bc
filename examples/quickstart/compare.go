package main

import (
	"bytes"
	"fmt"
)

// compare returns the first difference between the file and what one group received.
func compare(lines []line, received map[string][][]byte) error {
	next := map[string]int{}
	for number, l := range lines {
		got := received[l.customer]
		i := next[l.customer]
		next[l.customer]++
		switch {
		case i >= len(got):
			return fmt.Errorf("line %d (customer %q) did not arrive", number+1, l.customer)
		case !bytes.Equal(got[i], l.payload):
			return fmt.Errorf("customer %q, record %d: line %d of the file was expected\n  pushed   %s\n  received %s", l.customer, i+1, number+1, l.payload, got[i])
		}
	}
	for customer, got := range received {
		if surplus := len(got) - next[customer]; surplus > 0 {
			return fmt.Errorf("customer %q received %d records too many", customer, surplus)
		}
	}
	return nil
}
