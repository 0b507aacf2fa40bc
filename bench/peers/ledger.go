package main

import (
	"bytes"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
)

// perProducer is more messages than one producer stores in a run; sequences are told apart by it.
const perProducer = 10_000_000

// sequenceOf is the sequence of a producer's n-th message, n counting from 1.
func sequenceOf(producer int, n int64) int64 { return int64(producer)*perProducer + n }

// parseSequence reads the sequence out of a message body. Databases that store JSON parsed give it back with blanks and other
// field orders.
func parseSequence(body []byte) (int64, error) {
	_, rest, found := bytes.Cut(body, []byte(`"seq":`))
	rest = bytes.TrimLeft(rest, " ")
	end := bytes.IndexAny(rest, ",}")
	if !found || end < 0 {
		return 0, fmt.Errorf("no sequence in %.60q", body)
	}
	return strconv.ParseInt(string(rest[:end]), 10, 64)
}

// A ledger holds what was confirmed against what was delivered. It is safe for concurrent use.
type ledger struct {
	producers []account
	// last is the highest delivered message number of every key.
	last     []atomic.Int64
	stored   atomic.Int64
	disorder atomic.Int64
}

// An account is what happened to the messages of one producer.
type account struct {
	mu        sync.Mutex
	confirmed int64
	delivered int64 // different ones
	again     int64
	seen      []uint64 // one bit a message
}

func newLedger(producers, keys int) *ledger {
	return &ledger{producers: make([]account, producers), last: make([]atomic.Int64, keys)}
}

// key is the key of a producer's n-th message: each key belongs to one producer, which goes through its keys in turn.
func (l *ledger) key(producer int, n int64) int {
	if len(l.last) == 0 {
		return -1
	}
	own := len(l.last) / len(l.producers)
	return producer*own + int(n%int64(own))
}

// confirm notes that a producer's messages up to the n-th are stored.
func (l *ledger) confirm(producer int, n int64) {
	a := &l.producers[producer]
	a.mu.Lock()
	l.stored.Add(n - a.confirmed)
	a.confirmed = n
	a.mu.Unlock()
}

func (l *ledger) confirmed() int64 { return l.stored.Load() }

// deliver notes a delivery and tells whether it is the message's first. It must be called before the acknowledgment, which
// lets another consumer have the key's next message.
func (l *ledger) deliver(sequence int64) bool {
	producer, n := int(sequence/perProducer), sequence%perProducer
	if key := l.key(producer, n); key >= 0 && l.last[key].Swap(n) > n {
		l.disorder.Add(1)
	}
	a := &l.producers[producer]
	a.mu.Lock()
	defer a.mu.Unlock()
	for int(n/64) >= len(a.seen) {
		a.seen = append(a.seen, 0)
	}
	if bit := uint64(1) << (n % 64); a.seen[n/64]&bit == 0 {
		a.seen[n/64] |= bit
		a.delivered++
		return true
	}
	a.again++
	return false
}

func (l *ledger) verdict() (lost, again, disorder int64) {
	for i := range l.producers {
		a := &l.producers[i]
		a.mu.Lock()
		lost += max(a.confirmed-a.delivered, 0)
		again += a.again
		a.mu.Unlock()
	}
	return lost, again, l.disorder.Load()
}
