package pop

import (
	"strings"
	"time"
)

// The two places where a new group can start.
const (
	modeAll = "all"
	modeNew = "new"
	fromNow = "now"
)

// subscriptionMode maps what clients send to the two modes there are. Everything that does not ask for new messages only, such as
// "from_beginning", "earliest" or a typing error, means all: history is never skipped because of a word nobody knows.
func subscriptionMode(sent string) string {
	switch strings.ToLower(strings.TrimSpace(sent)) {
	case "new", "new-only", "new_only", "newonly":
		return modeNew
	default:
		return modeAll
	}
}

// timeLayouts are the ISO 8601 forms that are accepted as a subscription time. Without an offset the time is UTC. Clients write offsets
// with a colon, without one (strftime, DATE_ISO8601) and as hours alone (PostgreSQL).
var timeLayouts = []string{
	time.RFC3339Nano,
	"2006-01-02T15:04:05.999999999",
	"2006-01-02T15:04:05.999999999Z0700",
	"2006-01-02T15:04:05.999999999Z07",
	"2006-01-02 15:04:05.999999999Z07:00",
	"2006-01-02 15:04:05.999999999",
	"2006-01-02 15:04:05.999999999Z0700",
	"2006-01-02 15:04:05.999999999Z07",
	"2006-01-02T15:04Z07:00",
	"2006-01-02T15:04",
	time.DateOnly,
}

// The range of times the database is given. Earlier ones mean the beginning anyway, later ones the end.
var (
	earliestTime = time.Unix(0, 0).UTC()
	latestTime   = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// subscriptionFrom returns "", "now" or a time in UTC with microseconds. PostgreSQL would also understand words such as "tomorrow"
// or "infinity"; they are nonsense here, and nonsense must not depend on what a database makes of it.
//
// Nonsense counts as "now" where the pop registers its group with the queue: whoever names a starting point does not expect
// the whole history. A partition pop registers nothing, there it is ignored and the mode decides.
func subscriptionFrom(kind Kind, sent string) string {
	word := strings.TrimSpace(sent)
	if word == "" {
		return ""
	}
	if strings.EqualFold(word, fromNow) {
		return fromNow
	}
	for _, layout := range timeLayouts {
		at, err := time.Parse(layout, word)
		if err != nil {
			continue
		}
		at = at.UTC()
		if at.Before(earliestTime) {
			at = earliestTime
		}
		if at.After(latestTime) {
			at = latestTime
		}
		return at.Format("2006-01-02T15:04:05.000000Z")
	}
	if kind == Partition {
		return ""
	}
	return fromNow
}
