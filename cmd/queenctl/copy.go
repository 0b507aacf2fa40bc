package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/output"
	"queenmq/queen"
)

// copyOptions are the flags of copy, and what replay hands to it.
type copyOptions struct {
	from, to     string
	partitions   []string
	since, until time.Time
	rate         float64
	batch        int
	newIDs       bool
}

func (a *app) copyCommand() *cobra.Command {
	var o copyOptions
	since, until := moment{now: a.now}, moment{now: a.now}
	command := &cobra.Command{
		Use: "copy FROM TO", Aliases: []string{"cp"}, Short: "Copy the messages of a queue into another one",
		Long: `Copy stored messages into another queue: partitions, order, payload bytes, transaction ids and trace ids stay. Nothing changes in
the first queue. A copy that is repeated inside the second queue's de-duplication window copies nothing twice, unless --new-ids
is given.`,
		Args: args(cobra.ExactArgs(2)),
		RunE: func(command *cobra.Command, given []string) error {
			o.from, o.to, o.since, o.until = given[0], given[1], since.at, until.at
			if o.from == o.to {
				return usage("a queue cannot be copied into itself")
			}
			return a.copy(command.Context(), o, "copy")
		},
	}
	f := command.Flags()
	f.StringArrayVarP(&o.partitions, "partition", "p", nil, "only this partition; may be repeated")
	f.Var(&since, "since", "only messages stored at or after this time")
	f.Var(&until, "until", "only messages stored before this time")
	f.Float64Var(&o.rate, "rate", 0, "most messages a second; 0 is any number")
	f.IntVar(&o.batch, "batch", 500, "messages in one request")
	f.BoolVar(&o.newIDs, "new-ids", false, "give the copies transaction ids of their own")
	return a.destructive(command)
}

// copyRun is one copy under way.
type copyRun struct {
	*app
	o        copyOptions
	body     bytes.Buffer
	gathered int
	counts   map[string]int64
	sent     int64
	started  time.Time
	progress *output.Progress
}

func (a *app) copy(ctx context.Context, o copyOptions, verb string) error {
	if o.batch < 1 || o.batch > 10_000 || o.rate < 0 {
		return usage("--batch must be between 1 and 10000 and --rate not negative")
	}
	lanes, err := a.lanes(ctx, o.from, "", o.partitions)
	if err != nil {
		return err
	}
	spans, total, err := a.spans(ctx, lanes, o.since, o.until)
	if err != nil {
		return err
	}
	if total == 0 {
		return empty("there is nothing to %s", verb)
	}
	if yes, err := a.confirm("%s %s of %s from %s into %s", verb, many(total, "message"), many(len(spans), "partition"), o.from, o.to); !yes || err != nil {
		return err
	}
	run := &copyRun{app: a, o: o, counts: map[string]int64{}, started: a.now(), progress: a.progress("copied", "messages", total)}
	for _, s := range spans {
		if err = run.lane(ctx, s); err != nil {
			break
		}
	}
	if err == nil {
		err = run.flush(ctx)
	}
	run.progress.Finish()
	if errors.Is(err, errExplained) {
		return err
	}
	return errors.Join(err, run.summary())
}

// A span is a run of offsets of one partition.
type span struct {
	lane
	from, to int64
}

// spans finds the messages of some partitions that were stored in a time: offsets [from, to) of each that has any.
func (a *app) spans(ctx context.Context, lanes []lane, since, until time.Time) (found []span, total int64, err error) {
	for _, l := range lanes {
		if l.Messages.Total == 0 {
			continue
		}
		p, err := a.edge(ctx, l.ID)
		if err != nil {
			return nil, 0, err
		}
		s := span{l, p.LogStart, p.End}
		if !since.IsZero() {
			if s.from, err = a.firstAt(ctx, l.ID, p.LogStart, p.End, since); err != nil {
				return nil, 0, err
			}
		}
		if !until.IsZero() {
			if s.to, err = a.firstAt(ctx, l.ID, s.from, p.End, until); err != nil {
				return nil, 0, err
			}
		}
		if s.to > s.from {
			found, total = append(found, s), total+s.to-s.from
		}
	}
	return found, total, nil
}

// edge reads where a partition begins and ends.
func (a *app) edge(ctx context.Context, partitionID string) (part, error) {
	answer, err := a.look(ctx, queen.Path("api", "v1", "partitions", partitionID, "messages"), values("offset", "-1", "limit", "1"))
	if err != nil {
		return part{}, err
	}
	return decode[part](answer)
}

// firstAt finds the first offset in [from, end) that was stored at or after a time, end when there is none. Times never decrease
// along a partition, so halving finds it.
func (a *app) firstAt(ctx context.Context, partitionID string, from, end int64, at time.Time) (int64, error) {
	for from < end {
		middle := from + (end-from)/2
		answer, err := a.look(ctx, queen.Path("api", "v1", "partitions", partitionID, "messages"), values("offset", fmt.Sprint(middle), "limit", "1"))
		if err != nil {
			return 0, err
		}
		p, err := decode[part](answer)
		if err != nil {
			return 0, err
		}
		switch {
		case len(p.Messages) == 0 || !p.Messages[0].CreatedAt.Before(at):
			end = middle
		default:
			from = p.Messages[0].Offset + 1
		}
	}
	return end, nil
}

func (r *copyRun) lane(ctx context.Context, s span) error {
	for from := s.from; from < s.to; {
		answer, err := r.look(ctx, queen.Path("api", "v1", "partitions", s.ID, "messages"), values("offset", fmt.Sprint(from), "limit", fmt.Sprint(min(s.to-from, int64(r.o.batch)))))
		if err != nil {
			return err
		}
		p, err := decode[part](answer)
		if err != nil {
			return err
		}
		for i := range p.Messages {
			if p.Messages[i].Offset >= s.to {
				break
			}
			if err := r.add(ctx, s.Name, &p.Messages[i]); err != nil {
				return err
			}
		}
		if len(p.Messages) == 0 || p.Next <= from {
			return nil // retention took the rest
		}
		from = p.Next
	}
	return nil
}

func (r *copyRun) add(ctx context.Context, partition string, m *storedMessage) error {
	if m.Unreadable != nil {
		if r.counts["failed"]++; r.counts["failed"] <= shownFailures {
			fmt.Fprintf(r.stderr, "offset %d of %s cannot be read: %s\n", m.Offset, output.Clean(partition), output.Clean(*m.Unreadable))
		}
		return nil
	}
	id := m.TransactionID
	if r.o.newIDs {
		id = ""
	}
	appendStored(&r.body, r.o.to, partition, id, m)
	if r.gathered++; r.gathered >= r.o.batch || r.body.Len() >= maxPushBytes {
		return r.flush(ctx)
	}
	return nil
}

// appendStored adds a stored message to the items of a push body, with its payload's bytes and its partition's name, also the empty one.
func appendStored(body *bytes.Buffer, queue, partition, transactionID string, m *storedMessage) {
	if body.Len() == 0 {
		body.WriteString(`{"items":[`)
	} else {
		body.WriteByte(',')
	}
	fmt.Fprintf(body, `{"queue":%s,"partition":%s`, jsonText(queue), jsonText(partition))
	if transactionID != "" {
		body.WriteString(`,"transactionId":` + jsonText(transactionID))
	}
	if m.TraceID != nil {
		body.WriteString(`,"traceId":` + jsonText(*m.TraceID))
	}
	if m.Traceparent != nil {
		body.WriteString(`,"traceparent":` + jsonText(*m.Traceparent))
	}
	body.WriteString(`,"payload":`)
	body.Write(m.Data)
	body.WriteByte('}')
}

func (r *copyRun) flush(ctx context.Context) error {
	if r.gathered == 0 {
		return nil
	}
	if r.o.rate > 0 {
		if err := sleep(ctx, r.started.Add(time.Duration(float64(r.sent)/r.o.rate*float64(time.Second))).Sub(r.now())); err != nil {
			return err
		}
	}
	r.body.WriteString("]}")
	answer, err := r.call(ctx, http.MethodPost, "/api/v1/push", nil, r.body.Bytes())
	if err != nil {
		return err
	}
	verdicts, err := decode[[]struct{ Status, Error string }](answer)
	if err != nil {
		return err
	}
	for _, v := range verdicts {
		r.counts[v.Status]++
		if v.Status == "failed" && r.counts["failed"] <= shownFailures {
			fmt.Fprintf(r.stderr, "a message was not stored: %s\n", output.Clean(v.Error))
		}
	}
	r.sent += int64(r.gathered)
	r.gathered = 0
	r.body.Reset()
	r.progress.Set(r.sent, 0, "")
	return nil
}

func (r *copyRun) summary() error {
	stored := r.counts["queued"] + r.counts["buffered"]
	if r.printer.Format.Table() {
		fmt.Fprintf(r.stdout, "copied %s, %d there already\n", many(stored, "message"), r.counts["duplicate"])
	} else if err := r.printer.Item(fmt.Appendf(nil, `{"copied":%d,"duplicate":%d,"failed":%d}`, stored, r.counts["duplicate"], r.counts["failed"])); err != nil {
		return err
	}
	if r.counts["failed"] > 0 {
		return differs("not copied: %s", many(r.counts["failed"], "message"))
	}
	return nil
}
