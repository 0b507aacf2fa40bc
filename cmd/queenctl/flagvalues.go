package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// secondsValue is a flag that counts seconds into a duration.
type secondsValue struct{ d *time.Duration }

func (s secondsValue) String() string {
	if s.d == nil {
		return ""
	}
	return strconv.Itoa(int(s.d.Seconds()))
}

func (s secondsValue) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("%q is no number of seconds", text)
	}
	*s.d = time.Duration(n) * time.Second
	return nil
}

func (s secondsValue) Type() string { return "seconds" }

// A moment is a flag with a time: RFC 3339, a date, or how long ago, as 90m or 7d. Times without a zone are UTC.
type moment struct {
	at  time.Time
	now func() time.Time
}

func (m *moment) String() string {
	if m == nil || m.at.IsZero() {
		return ""
	}
	return m.at.UTC().Format(time.RFC3339Nano)
}

func (m *moment) Set(text string) error {
	at, err := parseMoment(text, m.now())
	m.at = at
	return err
}

func (m *moment) Type() string { return "time" }

func parseMoment(text string, now time.Time) (time.Time, error) {
	if text == "now" {
		return now, nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04Z07:00", "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02"} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n >= 0 {
			return now.AddDate(0, 0, -n), nil
		}
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	return time.Time{}, fmt.Errorf("%q is no time: give 2026-11-01T10:00:00Z, 2026-11-01, or how long ago, as 90m or 7d", text)
}
