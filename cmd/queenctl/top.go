package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"queenmq/cmd/queenctl/output"
)

// What top writes to the terminal around its frames: the other screen without a cursor, and back.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
)

func (a *app) topCommand() *cobra.Command {
	var interval time.Duration
	var once bool
	command := &cobra.Command{
		Use: "top", Short: "A live view: rates, the fullest queues and the groups that lag", Args: args(cobra.NoArgs),
		Long: "Show rates, the fullest queues and the groups that lag, anew every --interval. q or Ctrl-C ends it. --once shows it once.",
		RunE: func(command *cobra.Command, _ []string) error {
			if interval < 100*time.Millisecond {
				return usage("--interval must be at least 100ms")
			}
			if once {
				columns, lines := 120, 60
				if a.stdoutTerminal {
					columns, lines = a.size()
				}
				frame, err := a.topFrame(command.Context(), columns, lines)
				if err != nil {
					return err
				}
				_, err = io.WriteString(a.stdout, frame)
				return err
			}
			if !a.stdoutTerminal {
				return usage("top needs a terminal; --once shows it once")
			}
			return a.top(command.Context(), interval)
		},
	}
	command.Flags().DurationVarP(&interval, "interval", "i", 2*time.Second, "how often")
	command.Flags().BoolVar(&once, "once", false, "show it once and end")
	return command
}

// top redraws until q, Ctrl-C or an error that is not the broker's being away for a moment.
func (a *app) top(ctx context.Context, interval time.Duration) (err error) {
	if err := a.connect(); err != nil {
		return err
	}
	quit, restore := a.keys()
	defer restore()
	if _, err := io.WriteString(a.terminal, enterScreen); err != nil {
		return err
	}
	defer func() { _, _ = io.WriteString(a.terminal, leaveScreen) }() // the terminal may be gone
	for {
		columns, lines := a.size()
		frame, err := a.topFrame(ctx, columns, lines)
		switch {
		case interrupted(ctx, err):
			return nil
		case err != nil && exitCode(err) != exitServer:
			return err
		case err != nil:
			frame = "no answer: " + output.Clean(err.Error()) + "\n"
		}
		// Line by line over the old frame, then whatever is left of it is cleared: nothing flickers.
		text := strings.ReplaceAll(output.CleanLines(frame), "\n", "\x1b[K\r\n")
		if !a.flags.noColor {
			text = "\x1b[1m" + strings.Replace(text, "\x1b[K\r\n", "\x1b[0m\x1b[K\r\n", 1)
		}
		if _, err := io.WriteString(a.terminal, "\x1b[H"+text+"\x1b[J"); err != nil {
			return err
		}
		timer := time.NewTimer(interval)
		select {
		case <-ctx.Done():
		case <-quit:
		case <-timer.C:
			continue
		}
		timer.Stop()
		return nil
	}
}

// keys reads single key presses; the channel is closed by q, Ctrl-C or Ctrl-D. restore gives the terminal back as it was.
func (a *app) keys() (quit <-chan struct{}, restore func()) {
	file, ok := a.stdin.(*os.File)
	if !ok || !a.stdinTerminal {
		return nil, func() {}
	}
	before, err := term.MakeRaw(int(file.Fd()))
	if err != nil {
		return nil, func() {}
	}
	pressed := make(chan struct{})
	go func() { // ends with the process: a read of a terminal cannot be called off
		defer close(pressed)
		key := make([]byte, 1)
		for {
			if n, err := file.Read(key); err != nil || n == 1 && bytes.ContainsAny(key, "qQ\x03\x04") {
				return
			}
		}
	}()
	return pressed, func() { _ = term.Restore(int(file.Fd()), before) } // nothing else can be done about it
}

// topFigures are what a frame shows.
type topFigures struct {
	overview any
	queues   []topQueue
	groups   []topGroup
}

type topQueue struct {
	Name     string
	Messages struct{ Total, Pending, Processing int64 }
	Bytes    int64 `json:"retainedBytes"`
}

type topGroup struct {
	Name       string
	QueueName  string
	TotalLag   int64
	MaxTimeLag int64
	State      string
}

func (a *app) topFigures(ctx context.Context) (topFigures, error) {
	var f topFigures
	overview, err := a.call(ctx, http.MethodGet, "/api/v1/resources/overview", nil, nil)
	if err != nil {
		return f, err
	}
	if f.overview, err = output.Decode(overview); err != nil {
		return f, err
	}
	queues, err := a.call(ctx, http.MethodGet, "/api/v1/resources/queues", values("stats", "cached", "limit", "100000"), nil)
	if err != nil {
		return f, err
	}
	list, err := decode[struct{ Queues []topQueue }](queues)
	if err != nil {
		return f, err
	}
	f.queues = list.Queues
	groups, err := a.call(ctx, http.MethodGet, "/api/v1/consumer-groups", nil, nil)
	if err != nil {
		return f, err
	}
	if f.groups, err = decode[[]topGroup](groups); err != nil {
		return f, err
	}
	slices.SortStableFunc(f.queues, func(x, y topQueue) int {
		return cmp.Or(cmp.Compare(y.Messages.Pending, x.Messages.Pending), cmp.Compare(x.Name, y.Name))
	})
	slices.SortStableFunc(f.groups, func(x, y topGroup) int {
		return cmp.Or(cmp.Compare(y.TotalLag, x.TotalLag), cmp.Compare(x.Name, y.Name))
	})
	return f, nil
}

func (a *app) topFrame(ctx context.Context, columns, lines int) (string, error) {
	f, err := a.topFigures(ctx)
	if err != nil {
		return "", err
	}
	cell := func(path string) string { return output.Cell(f.overview, path) }
	var b bytes.Buffer
	fmt.Fprintf(&b, "queen %s  %s UTC\n", a.target.Servers[0], a.now().UTC().Format("15:04:05"))
	fmt.Fprintf(&b, "in %s/s  out %s/s  pending %s  processing %s  dead letters %s  queues %s  partitions %s  (figures %s)\n\n",
		cell("throughput.ingestedPerSecond"), cell("throughput.processedPerSecond"), cell("messages.pending"), cell("messages.processing"), cell("messages.deadLetter"),
		cell("queues"), cell("partitions"), age(cell("statsAge")))
	room := max((lines-6)/2, 1)
	printer := output.Printer{Out: &b}
	rows := [][]string{{"QUEUE", "PENDING", "PROCESSING", "STORED", "BYTES"}}
	for _, q := range f.queues[:min(len(f.queues), room)] {
		rows = append(rows, []string{q.Name, number(q.Messages.Pending), number(q.Messages.Processing), number(q.Messages.Total), number(q.Bytes)})
	}
	if err := printer.Rows(rows, 1, 2, 3, 4); err != nil {
		return "", err
	}
	b.WriteByte('\n')
	rows = [][]string{{"GROUP", "QUEUE", "LAG", "SECONDS", "STATE"}}
	for _, g := range f.groups[:min(len(f.groups), room)] {
		rows = append(rows, []string{g.Name, g.QueueName, number(g.TotalLag), number(g.MaxTimeLag), g.State})
	}
	if err := printer.Rows(rows, 2, 3); err != nil {
		return "", err
	}
	return output.Fit(b.String(), columns, lines-1), nil
}

func number(n int64) string { return output.Grouped(n) }
