package main

import (
	"testing"
	"time"
)

func TestLedger(t *testing.T) {
	t.Parallel()
	stored := func(keys int) *ledger {
		l := newLedger(2, keys)
		l.confirm(0, 130)
		l.confirm(1, 2)
		return l
	}
	deliver := func(l *ledger, producer int, numbers ...int64) {
		for _, n := range numbers {
			l.deliver(sequenceOf(producer, n))
		}
	}
	for _, row := range []struct {
		name                  string
		keys                  int
		deliveries            func(l *ledger)
		lost, again, disorder int64
	}{
		{"NothingDelivered", 0, func(*ledger) {}, 132, 0, 0},
		{"SecondDeliveryIsNoMessage", 0, func(l *ledger) { deliver(l, 0, 130, 130, 1) }, 130, 1, 0},
		{"ProducersAreToldApart", 0, func(l *ledger) { deliver(l, 0, 1, 2); deliver(l, 1, 1, 2) }, 128, 0, 0},
		{"WithoutKeysAnyOrderIsRight", 0, func(l *ledger) { deliver(l, 1, 2, 1) }, 130, 0, 0},
		{"OlderMessageOfTheKeyComesLater", 4, func(l *ledger) { deliver(l, 0, 4, 2) }, 130, 0, 1},
		{"KeysAreOrderedOneByOne", 4, func(l *ledger) { deliver(l, 0, 3, 2, 5, 4) }, 128, 0, 0},
	} {
		l := stored(row.keys)
		row.deliveries(l)
		lost, again, disorder := l.verdict()
		if lost != row.lost || again != row.again || disorder != row.disorder {
			t.Errorf("%s: lost %d, again %d, disorder %d; want %d, %d, %d", row.name, lost, again, disorder, row.lost, row.again, row.disorder)
		}
	}
}

func TestKeyBelongsToOneProducer(t *testing.T) {
	t.Parallel()
	l := newLedger(16, 10_000)
	owner := map[int]int{}
	for producer := range 16 {
		for n := int64(1); n <= 1300; n++ {
			key := l.key(producer, n)
			if other, known := owner[key]; known && other != producer || key < 0 || key >= 10_000 {
				t.Fatalf("key %d of producer %d belongs to producer %d", key, producer, other)
			}
			owner[key] = producer
		}
	}
	if len(owner) != 10_000 {
		t.Fatalf("%d keys are used", len(owner))
	}
}

func TestParseSequence(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`{"seq":20000007,"noise":"x"}`, `{"seq": 20000007, "order": {}}`, `{"noise": "x", "seq": 20000007}`} {
		if got, err := parseSequence([]byte(body)); err != nil || got != sequenceOf(2, 7) {
			t.Errorf("%s: %d, %v", body, got, err)
		}
	}
	for _, body := range []string{``, `{}`, `{"seq":`, `{"seq":"x","a":1}`} {
		if got, err := parseSequence([]byte(body)); err == nil {
			t.Errorf("%s: %d, want an error", body, got)
		}
	}
}

func TestMedianKeepsLossesOfAllRuns(t *testing.T) {
	t.Parallel()
	of := func(messages, lost int64) outcome {
		return outcome{messages: messages, elapsed: time.Second, lost: lost}
	}
	if got := median([]outcome{of(10, 0), of(30, 2), of(20, 0)}); got.messages != 20 || got.lost != 2 {
		t.Errorf("%+v", got)
	}
}
