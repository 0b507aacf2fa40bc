package streams

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestCronWindowsFollowTheClockOnTheWall(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, expression, zone, at, start, end string
	}{
		{"ordinary day", "0 6 * * *", "Europe/Rome", "2026-07-01T12:00:00Z", "2026-07-01T04:00:00Z", "2026-07-02T04:00:00Z"},
		{"a start belongs to its window", "0 6 * * *", "Europe/Rome", "2026-07-01T04:00:00Z", "2026-07-01T04:00:00Z", "2026-07-02T04:00:00Z"},
		{"a day of 23 hours", "0 0 * * *", "Europe/Rome", "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"},
		{"a day of 25 hours", "0 0 * * *", "Europe/Rome", "2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"},
		{"a time that is jumped over counts at the jump", "30 2 * * *", "Europe/Rome", "2026-03-29T05:00:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"},
		{"a time that comes twice counts the first time", "30 2 * * *", "Europe/Rome", "2026-10-25T12:00:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"},
		{"no window between the two", "30 2 * * *", "Europe/Rome", "2026-10-25T01:00:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"},
		{"every hour, also the doubled one", "0 * * * *", "Europe/Rome", "2026-10-25T01:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"},
		{"every hour, none is missing", "0 * * * *", "America/New_York", "2026-03-08T07:15:00Z", "2026-03-08T07:00:00Z", "2026-03-08T08:00:00Z"},
		{"half an hour of summer time", "45 1 * * *", "Australia/Lord_Howe", "2026-04-04T15:15:00Z", "2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"},
		{"working days", "0 9 * * 1-5", "America/New_York", "2026-07-04T12:00:00Z", "2026-07-03T13:00:00Z", "2026-07-06T13:00:00Z"},
		{"leap days", "0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", "2024-02-29T00:00:00Z", "2028-02-29T00:00:00Z"},
		{"a day that a zone skipped", "0 12 * * *", "Pacific/Apia", "2011-12-30T12:00:00Z", "2011-12-30T10:00:00Z", "2011-12-30T22:00:00Z"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			clock, err := newCron(test.expression, test.zone)
			require.NoError(t, err)
			at, err := time.Parse(time.RFC3339, test.at)
			require.NoError(t, err)
			got := clock.around(at.UnixMilli())
			require.Equal(t, test.start+" "+test.end,
				time.UnixMilli(got.start).UTC().Format(time.RFC3339)+" "+time.UnixMilli(got.end).UTC().Format(time.RFC3339))
		})
	}
}

// Whatever is asked first, a time lies in its window, and the windows that follow each other leave no gap and do not overlap.
func TestCronWindowsCutAllTimeOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		clock, err := newCron(
			rapid.SampledFrom([]string{"*/7 * * * *", "0 */5 * * *", "30 1,2,3 * * *", "0 0 * * *", "15 2 * 3,10 0", "59 23 31 * *"}).Draw(t, "expression"),
			rapid.SampledFrom([]string{"UTC", "Europe/Rome", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kolkata", "Africa/Casablanca"}).Draw(t, "zone"))
		require.NoError(t, err)
		at := rapid.Int64Range(0, 2_000_000_000_000).Draw(t, "at")
		w := clock.around(at)
		require.LessOrEqual(t, w.start, at)
		require.Less(t, at, w.end)
		for range 20 {
			next := clock.around(w.end)
			require.Equal(t, w.end, next.start)
			require.Less(t, next.start, next.end)
			inside := rapid.Int64Range(next.start, next.end-1).Draw(t, "inside")
			clock.last.Store(nil)
			require.Equal(t, next, clock.around(inside))
			w = next
		}
	})
}

func TestCronExpressionsThatMakeNoSenseAreRefused(t *testing.T) {
	t.Parallel()
	for _, bad := range [][2]string{
		{"", "UTC"},
		{"@daily", "UTC"},
		{"0 0 0 * * *", "UTC"},
		{"60 * * * *", "UTC"},
		{"0 0 30 2 *", "UTC"},
		{"0 0 * * *", "Europe/Nowhere"},
		{"0 0 * * *", "Local"},
		{"0 0 * * *", "../etc/passwd"},
		{"TZ=UTC 0 0 * * *", "UTC"},
	} {
		_, err := NewRunner(nil, "q", Count(From[event]("q").Window(Cron(bad[0], bad[1]))).To("out"))
		require.ErrorContains(t, err, "cron windows", "%q", bad)
	}
}
