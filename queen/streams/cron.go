package streams

import (
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/robfig/cron/v3"
)

// A cronClock knows the times of a cron expression in a zone. It is safe for concurrent use.
type cronClock struct {
	schedule  cron.Schedule
	zone      *time.Location
	everyHour bool
	last      atomic.Pointer[span] // records come close together
}

func newCron(expression, zone string) (*cronClock, error) {
	fields := strings.Fields(expression)
	if len(fields) != 5 {
		return nil, errors.New("want five fields: minute, hour, day of month, month, day of week")
	}
	location, err := time.LoadLocation(zone)
	if err != nil || zone == "Local" {
		return nil, errors.New("unknown time zone; use a name like Europe/Rome, or UTC")
	}
	schedule, err := cron.ParseStandard(strings.Join(fields, " "))
	if err != nil {
		return nil, err
	}
	c := &cronClock{schedule: schedule, zone: location, everyHour: strings.HasPrefix(fields[1], "*")}
	// A year with a 29th of February and every combination of the other fields lies within the next nine.
	if c.next(time.Date(2023, 12, 31, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, errors.New("no such time ever comes")
	}
	return c, nil
}

// next returns the first time of the expression after t.
func (c *cronClock) next(t time.Time) time.Time {
	if c.everyHour {
		return c.schedule.Next(t.In(c.zone))
	}
	// The schedule is asked about the clock on the wall, written as if it were UTC, where no hour is missing or doubled. No zone has
	// ever moved its clocks by more than a day.
	local := t.In(c.zone)
	wall := time.Date(local.Year(), local.Month(), local.Day(), local.Hour(), local.Minute(), local.Second(), local.Nanosecond(), time.UTC)
	for wall = c.schedule.Next(wall.Add(-25 * time.Hour)); !wall.IsZero(); wall = c.schedule.Next(wall) {
		if at := c.instant(wall); at.After(t) {
			return at
		}
	}
	return time.Time{}
}

// instant returns when a clock on the wall shows a time: the first time if it does twice, and when it jumps over it if it never does.
func (c *cronClock) instant(wall time.Time) time.Time {
	_, before := wall.Add(-25 * time.Hour).In(c.zone).Zone()
	_, after := wall.Add(25 * time.Hour).In(c.zone).Zone()
	early := wall.Add(-time.Duration(max(before, after)) * time.Second).In(c.zone)
	late := wall.Add(-time.Duration(min(before, after)) * time.Second).In(c.zone)
	for _, at := range [...]time.Time{early, late} {
		if at.Hour() == wall.Hour() && at.Minute() == wall.Minute() && at.Day() == wall.Day() {
			return at
		}
	}
	jump, _ := late.ZoneBounds()
	return jump
}

// around returns the window that holds a time (epoch ms).
func (c *cronClock) around(at int64) span {
	if last := c.last.Load(); last != nil && last.start <= at && at < last.end {
		return *last
	}
	t := time.UnixMilli(at)
	// Look back further and further until a time of the expression lies behind us.
	start := time.Time{}
	for back := 2 * time.Hour; start.IsZero() || start.After(t); back *= 4 {
		start = c.next(t.Add(-back))
		if back > 40*366*24*time.Hour { // more than any gap between two 29ths of February
			break
		}
	}
	end := c.next(start)
	for !end.After(t) {
		start, end = end, c.next(end)
	}
	found := span{start.UnixMilli(), end.UnixMilli()}
	c.last.Store(&found)
	return found
}
