package http1

import (
	"net/http"
	"sync/atomic"
	"time"
)

// A clock measures how long connections wait, and words the Date header once a second.
type clock struct {
	date atomic.Pointer[dateLine]
}

// A dateLine is the header line of one second.
type dateLine struct {
	second int64
	text   []byte
}

var clockStart = time.Now()

// now is the monotonic time in nanoseconds.
func (*clock) now() int64 { return int64(time.Since(clockStart)) }

// appendDate appends the header line for the present second.
func (c *clock) appendDate(dst []byte) []byte {
	now := time.Now()
	line := c.date.Load()
	if line == nil || line.second != now.Unix() {
		line = &dateLine{now.Unix(), []byte("Date: " + now.UTC().Format(http.TimeFormat) + "\r\n")}
		c.date.Store(line)
	}
	return append(dst, line.text...)
}
