package pop

import (
	"testing"
	"time"
)

// FuzzSubscriptionFrom: the database is told nothing but "", "now" or a time within its bounds, in one form.
func FuzzSubscriptionFrom(f *testing.F) {
	for _, sent := range []string{"", "now", " NOW ", "2026-01-01", "2026-01-01T00:00:00+05:30", "infinity", "tomorrow", "0001-01-01T00:00:00Z", "99999-01-01T00:00:00Z"} {
		f.Add(sent)
	}
	f.Fuzz(func(t *testing.T, sent string) {
		for _, kind := range []Kind{Queue, Partition, Discovery} {
			got := subscriptionFrom(kind, sent)
			if got == "" || got == fromNow {
				continue
			}
			at, err := time.Parse("2006-01-02T15:04:05.000000Z", got)
			if err != nil || at.Before(earliestTime) || at.After(latestTime) {
				t.Fatalf("%q became %q", sent, got)
			}
		}
	})
}
