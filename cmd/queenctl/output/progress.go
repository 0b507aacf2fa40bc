package output

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// redrawEvery keeps a progress bar from costing more than the work it shows.
const redrawEvery = 100 * time.Millisecond

// A Progress is one line on a terminal that is written over and over: what is done, how fast, and how long the rest takes.
// A nil Progress shows nothing. Its methods may be called from any goroutine.
type Progress struct {
	to    io.Writer
	width func() int
	now   func() time.Time
	verb  string
	unit  string
	// total is 0 while it is not known.
	total int64

	mu      sync.Mutex
	started time.Time
	drawn   time.Time
	done    int64
	note    string
}

// NewProgress starts a progress line on a terminal of width() columns. verb says what is being done ("pushed"), unit what is
// counted ("messages").
func NewProgress(to io.Writer, width func() int, now func() time.Time, verb, unit string, total int64) *Progress {
	p := &Progress{to: to, width: width, now: now, verb: verb, unit: unit, total: total}
	p.started = now()
	return p
}

// Add counts n more and redraws now and then.
func (p *Progress) Add(n int64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += n
	p.maybeDraw()
}

// Set is Add with the whole count; a total above 0 replaces the one that is shown, and a note stands at the end of the line.
func (p *Progress) Set(done, total int64, note string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.note = done, note
	if total > 0 {
		p.total = total
	}
	p.maybeDraw()
}

func (p *Progress) maybeDraw() {
	if now := p.now(); now.Sub(p.drawn) >= redrawEvery {
		p.draw(now)
	}
}

// Finish draws the last state and leaves the line.
func (p *Progress) Finish() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draw(p.now())
	_, _ = io.WriteString(p.to, "\n") // a terminal that is gone has no use for progress
}

func (p *Progress) draw(now time.Time) {
	p.drawn = now
	elapsed := now.Sub(p.started).Seconds()
	rate := 0.0
	if elapsed > 0 {
		rate = float64(p.done) / elapsed
	}
	text := fmt.Sprintf("%s %s", p.verb, Grouped(p.done))
	if p.total > 0 {
		text = fmt.Sprintf("%s %s of %s %s", bar(p.done, p.total), p.verb+" "+Grouped(p.done), Grouped(p.total), p.unit)
	} else {
		text += " " + p.unit
	}
	text += fmt.Sprintf(", %s/s", Grouped(int64(rate)))
	if p.total > p.done && rate > 0 {
		left := time.Duration(float64(p.total-p.done) / rate * float64(time.Second))
		text += ", ETA " + Short(left)
	}
	if p.note != "" {
		text += ", " + Clean(p.note)
	}
	if columns := p.width(); columns > 1 {
		text = cut(text, columns-1)
	}
	_, _ = fmt.Fprintf(p.to, "\r\x1b[K%s", text) // as above
}

func bar(done, total int64) string {
	const cells = 20
	full := int(min(done, total) * cells / total)
	return fmt.Sprintf("[%s%s] %3d%%", strings.Repeat("#", full), strings.Repeat(".", cells-full), min(done, total)*100/total)
}

// Grouped is a number with commas between groups of three digits.
func Grouped(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// Short is a duration in at most two units: 950ms, 12s, 3m05s, 4h20m, 2d3h.
func Short(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < time.Hour:
		d = d.Round(time.Second)
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		d = d.Round(time.Minute)
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	d = d.Round(time.Hour)
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}
