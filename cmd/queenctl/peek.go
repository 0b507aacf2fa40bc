package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/output"
	"queenmq/queen"
)

var storedColumns = []output.Column{
	output.Col("CREATED", "createdAt"), output.Col("PARTITION", "partition"), output.Num("OFFSET", "offset"), output.Col("TRANSACTION", "transactionId"),
	output.Col("PARTITION-ID", "partitionId").InWide(), output.Col("ID", "id").InWide(), output.Col("TRACE", "traceId").InWide(),
	output.Col("PRODUCER", "producerSub").InWide(), output.Col("DATA", "data").AtMost(80),
}

// peekOptions are the flags of peek.
type peekOptions struct {
	queue, group string
	partitions   []string
	count        int
	offset       int64
	hasOffset    bool
	newest       bool
}

func (a *app) peekCommand() *cobra.Command {
	var o peekOptions
	command := &cobra.Command{
		Use: "peek QUEUE", Short: "Look at stored messages without claiming them",
		Long: `Show stored messages. No cursor moves, nothing is leased, and consumers do not notice.

By default the oldest messages of each partition are shown; --group starts where that group goes on, --newest at the end, --offset
at an offset.`,
		Example: `  queenctl peek orders -n 5
  queenctl peek orders --group billing --partition customer-7`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			o.queue, o.hasOffset = given[0], command.Flags().Changed("offset")
			return a.peek(command.Context(), o)
		},
	}
	f := command.Flags()
	f.StringArrayVarP(&o.partitions, "partition", "p", nil, "only this partition; may be repeated")
	f.StringVarP(&o.group, "group", "g", "", "start where this group goes on")
	f.IntVarP(&o.count, "count", "n", 10, "most messages of all partitions together")
	f.Int64Var(&o.offset, "offset", 0, "start at this offset of each partition; below 0 counts back from the end")
	f.BoolVar(&o.newest, "newest", false, "the newest messages instead of the oldest")
	return command
}

func (a *app) peek(ctx context.Context, o peekOptions) error {
	if o.count < 1 {
		return usage("--count must be at least 1")
	}
	lanes, err := a.lanes(ctx, o.queue, o.group, o.partitions)
	if err != nil {
		return err
	}
	if o.newest {
		messages, _, err := a.newest(ctx, lanes, o.count)
		if err != nil {
			return err
		}
		return a.showStored(messages, o.queue)
	}
	var messages []json.RawMessage
	for _, l := range lanes {
		if len(messages) == o.count {
			break
		}
		from := o.offset
		if o.group != "" && !o.hasOffset {
			if l.Messages.Pending == 0 {
				continue
			}
			from = -l.Messages.Pending
		}
		for len(messages) < o.count {
			p, err := a.read(ctx, l.ID, from, o.count-len(messages))
			if err != nil {
				return err
			}
			for i := range p.Messages {
				messages = append(messages, p.Messages[i].in(&p))
			}
			if from = p.Next; from >= p.End {
				break
			}
		}
	}
	return a.showStored(messages, o.queue)
}

func (a *app) showStored(messages []json.RawMessage, queue string) error {
	if err := a.show("messages", messages, storedColumns); err != nil {
		return err
	}
	if len(messages) == 0 {
		return empty("no messages in %s", queue)
	}
	return nil
}

// newest returns the newest n messages of some partitions in the order of time, and where each partition ends.
func (a *app) newest(ctx context.Context, lanes []lane, n int) ([]json.RawMessage, map[string]int64, error) {
	type found struct {
		at   time.Time
		id   string
		item json.RawMessage
	}
	var all []found
	ends := map[string]int64{}
	for _, l := range recent(lanes, n) {
		p, err := a.read(ctx, l.ID, -int64(n), n)
		if err != nil {
			return nil, nil, err
		}
		ends[l.ID] = p.Next
		for i := range p.Messages {
			m := &p.Messages[i]
			all = append(all, found{m.CreatedAt, m.ID, m.in(&p)})
		}
	}
	slices.SortStableFunc(all, func(x, y found) int { return cmp.Or(x.at.Compare(y.at), cmp.Compare(x.id, y.id)) })
	all = all[max(0, len(all)-n):]
	items := make([]json.RawMessage, len(all))
	for i := range all {
		items[i] = all[i].item
	}
	return items, ends, nil
}

// writeQuantum is how coarse the times of the last write are that brokers keep.
const writeQuantum = 2 * time.Second

// recent returns the partitions that can hold one of the newest n messages: the n that were written last, and those that may
// have been written as late.
func recent(lanes []lane, n int) []lane {
	sorted := slices.Clone(lanes)
	slices.SortFunc(sorted, func(x, y lane) int { return y.LastWriteAt.Compare(x.LastWriteAt) })
	if len(sorted) <= n {
		return sorted
	}
	limit := sorted[n-1].LastWriteAt.Add(-writeQuantum)
	end := slices.IndexFunc(sorted, func(l lane) bool { return l.LastWriteAt.Before(limit) })
	if end < 0 {
		return sorted
	}
	return sorted[:end]
}

// tailOptions are the flags of tail.
type tailOptions struct {
	queue, group string
	partitions   []string
	count        int
	follow       bool
	interval     time.Duration
}

func (a *app) tailCommand() *cobra.Command {
	var o tailOptions
	command := &cobra.Command{
		Use: "tail QUEUE", Short: "Show the newest messages, and with -f those that come",
		Long: `Show the newest messages of a queue, and with --follow the ones that come. No cursor moves and no group is made, so tailing
disturbs nobody and misses nothing that retention keeps.

With --group the messages are CONSUMED for that group instead: they are popped and acknowledged, and its other workers do not see
them.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			o.queue = given[0]
			if o.interval < 10*time.Millisecond {
				return usage("--interval must be at least 10ms")
			}
			if o.group != "" {
				return a.consume(command.Context(), o)
			}
			return a.tail(command.Context(), o)
		},
	}
	f := command.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "go on until Ctrl-C")
	f.IntVarP(&o.count, "count", "n", 10, "messages to begin with")
	f.StringArrayVarP(&o.partitions, "partition", "p", nil, "only this partition; may be repeated")
	f.StringVarP(&o.group, "group", "g", "", "consume for this group: moves its cursor")
	f.DurationVar(&o.interval, "interval", time.Second, "how often to look for new messages")
	return command
}

func (a *app) tail(ctx context.Context, o tailOptions) error {
	lanes, err := a.lanes(ctx, o.queue, "", o.partitions)
	if err != nil && !(o.follow && errors.Is(err, queen.ErrNotFound)) {
		return err
	}
	messages, ends, err := a.newest(ctx, lanes, max(o.count, 1))
	if err != nil {
		return err
	}
	if !o.follow {
		return a.showStored(messages[:min(len(messages), o.count)], o.queue)
	}
	if o.count == 0 {
		messages = nil
	}
	if err := a.each(messages, storedColumns); err != nil {
		return err
	}
	follow := &follower{app: a, o: o, lanes: map[string]*followed{}}
	for _, l := range lanes {
		f := &followed{written: l.LastWriteAt, seen: a.now(), end: -1} // its end is found when it is written again
		if end, read := ends[l.ID]; read {
			f.end = end
		}
		follow.lanes[l.ID] = f
	}
	if err := follow.run(ctx); !interrupted(ctx, err) {
		return err
	}
	return nil
}

// A followed partition is what tail knows of one: where the next message will be, the last write that it saw, since when, and when
// it was read last.
type followed struct {
	end          int64
	written      time.Time
	seen, readAt time.Time
}

// A follower shows what comes into the partitions of a queue.
type follower struct {
	*app
	o     tailOptions
	lanes map[string]*followed
}

func (f *follower) run(ctx context.Context) error {
	for {
		if err := sleep(ctx, f.o.interval); err != nil {
			return err
		}
		lanes, err := f.app.lanes(ctx, f.o.queue, "", f.o.partitions)
		if err != nil {
			if exitCode(err) == exitEmpty || errors.Is(err, queen.ErrNotFound) {
				continue // not there yet
			}
			return err
		}
		for _, l := range lanes {
			if err := f.look(ctx, l); err != nil {
				return err
			}
		}
	}
}

// look reads a partition when it was written since, or may have been: brokers note the time of a write at most once a second, so
// a time that is new says nothing of the writes right after it.
func (f *follower) look(ctx context.Context, l lane) error {
	known := f.lanes[l.ID]
	if known == nil {
		known = &followed{seen: f.now()}
		f.lanes[l.ID] = known
	}
	if !l.LastWriteAt.Equal(known.written) {
		if known.end < 0 {
			end, err := f.firstSince(ctx, l.ID, known.written)
			if err != nil {
				return err
			}
			known.end = end
		}
		known.written, known.seen = l.LastWriteAt, f.now()
	} else if known.end < 0 || known.readAt.Sub(known.seen) >= writeQuantum {
		return nil
	}
	now := f.now()
	end, err := f.showFrom(ctx, l.ID, known.end)
	known.end, known.readAt = end, now
	return err
}

// firstSince finds the first message of a partition that was stored after a time, walking back from the end.
func (a *app) firstSince(ctx context.Context, partitionID string, at time.Time) (int64, error) {
	for back := int64(100); ; back *= 4 {
		p, err := a.read(ctx, partitionID, -back, pageSize)
		if err != nil {
			return 0, err
		}
		for _, m := range p.Messages {
			if m.CreatedAt.After(at.Add(writeQuantum / 2)) {
				return m.Offset, nil
			}
		}
		if p.Next >= p.End || len(p.Messages) == 0 {
			return p.End, nil
		}
	}
}

// showFrom shows a partition from an offset to its end and returns the end.
func (a *app) showFrom(ctx context.Context, partitionID string, from int64) (int64, error) {
	for {
		p, err := a.read(ctx, partitionID, from, pageSize)
		if err != nil {
			return from, err
		}
		items := make([]json.RawMessage, len(p.Messages))
		for i := range p.Messages {
			items[i] = p.Messages[i].in(&p)
		}
		if err := a.each(items, storedColumns); err != nil {
			return from, err
		}
		if from = p.Next; from >= p.End {
			return from, nil
		}
	}
}

// each shows items of an endless list at once.
func (a *app) each(items []json.RawMessage, columns []output.Column) error {
	for _, item := range items {
		if err := a.printer.Each(item, columns); err != nil {
			return err
		}
	}
	return a.flush()
}

// consume pops for a group and acknowledges what was shown.
func (a *app) consume(ctx context.Context, o tailOptions) error {
	if len(o.partitions) > 1 {
		return usage("--group takes one --partition at most")
	}
	pop := popOptions{queue: o.queue, group: o.group, batch: max(o.count, 1), partitions: 0}
	if len(o.partitions) == 1 {
		pop.partition = o.partitions[0]
	}
	if o.follow {
		pop.wait, pop.batch = 20*time.Second, 200
	}
	path, err := pop.path()
	if err != nil {
		return err
	}
	for shown := 0; ; {
		messages, err := a.popAndAck(ctx, path, pop.query())
		if interrupted(ctx, err) {
			return nil
		}
		if err != nil {
			return err
		}
		if shown += messages; !o.follow {
			if shown == 0 {
				return empty("no messages for group %s", o.group)
			}
			return nil
		}
	}
}

func (a *app) popAndAck(ctx context.Context, path string, query url.Values) (int, error) {
	answer, err := a.call(ctx, http.MethodGet, path, query, nil)
	if err != nil || len(answer) == 0 {
		return 0, err
	}
	messages, _, err := listOf(answer, "messages")
	if err != nil {
		return 0, err
	}
	if err := a.each(messages, popColumns); err != nil {
		return 0, err
	}
	return len(messages), a.ackPrinted(context.WithoutCancel(ctx), messages)
}

// countFlag is the flag of lists that are cut by default.
func countFlag(command *cobra.Command, limit *int, standard int) {
	usage := "most items; 0 is all"
	if standard == 0 {
		usage = "most items (default all)"
	}
	command.Flags().IntVar(limit, "limit", standard, usage)
}
