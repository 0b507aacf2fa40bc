package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/output"
	"queenmq/queen"
)

const (
	// maxPushBytes ends a request before its number of messages does: brokers take 64 MiB and smaller ones make progress visible.
	maxPushBytes = 4 << 20
	// maxAtomic is the most messages that one transaction of a broker takes.
	maxAtomic = 10_000
	// shownFailures is how many refused messages are named on stderr.
	shownFailures = 5
)

// pushOptions are the flags of push.
type pushOptions struct {
	queue, file, data             string
	partition, partitionKey       string
	transactionID, transactionKey string
	traceID, format               string
	batch                         int
	rate                          float64
	atomic, dryRun                bool
}

func (a *app) pushCommand() *cobra.Command {
	var o pushOptions
	command := &cobra.Command{
		Use: "push QUEUE [FILE]", Short: "Push messages from a file or stdin, one a line",
		Long: `Push messages, one for each line of FILE or stdin.

Lines are JSON values (--format ndjson), texts that become JSON strings (lines), or objects with "data" or "payload" and optionally
"partition", "transactionId" and "traceId" (items), as peek, pop and tail print them with -o ndjson. By default a line that is
valid JSON is a JSON value and anything else is an error.

A transaction id makes a repeated push harmless: give one with --txn-key wherever the data has one.`,
		Example: `  queenctl push orders < orders.ndjson --partition-key customer.id --txn-key order.id
  queenctl push orders --data '{"total":12.5}' --partition customer-7
  tail -F app.log | queenctl push logs --format lines --rate 100
  queenctl peek orders -o ndjson | queenctl push orders-copy --format items`,
		Args: args(cobra.RangeArgs(1, 2)),
		RunE: func(command *cobra.Command, given []string) error {
			o.queue = given[0]
			if len(given) > 1 {
				o.file = given[1]
			}
			return a.push(command.Context(), o)
		},
	}
	f := command.Flags()
	f.StringVarP(&o.data, "data", "d", "", "push this one JSON value instead of lines")
	f.StringVarP(&o.partition, "partition", "p", "", "partition of every message (default: Default)")
	f.StringVar(&o.partitionKey, "partition-key", "", "path of the member that names the partition, as customer.id")
	f.StringVar(&o.transactionID, "transaction-id", "", "transaction id, with --data")
	f.StringVar(&o.transactionKey, "txn-key", "", "path of the member that is the transaction id")
	f.StringVar(&o.traceID, "trace-id", "", "trace id (a UUID) of every message")
	f.StringVar(&o.format, "format", "ndjson", "what a line is: ndjson, lines or items")
	f.IntVar(&o.batch, "batch", 500, "messages in one request")
	f.Float64Var(&o.rate, "rate", 0, "most messages a second; 0 is any number")
	f.BoolVar(&o.atomic, "atomic", false, "all of them in one transaction, or none (at most 10,000)")
	f.BoolVar(&o.dryRun, "dry-run", false, "read everything, say what would be pushed, and push nothing")
	must(command.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"ndjson", "lines", "items"}, cobra.ShellCompDirectiveNoFileComp)))
	return command
}

func (o *pushOptions) check() error {
	switch {
	case !slices.Contains([]string{"ndjson", "lines", "items"}, o.format):
		return usage("--format must be ndjson, lines or items, not %q", o.format)
	case o.batch < 1 || o.batch > 100_000:
		return usage("--batch must be between 1 and 100000")
	case o.rate < 0:
		return usage("--rate must not be negative")
	case o.data != "" && o.file != "":
		return usage("give --data or a file, not both")
	case o.partition != "" && o.partitionKey != "":
		return usage("give --partition or --partition-key, not both")
	case o.transactionID != "" && o.data == "":
		return usage("--transaction-id is for --data; --txn-key takes it from each message")
	case o.format == "lines" && (o.partitionKey != "" || o.transactionKey != ""):
		return usage("lines of text have no members for --partition-key and --txn-key")
	}
	return nil
}

// source opens what is to be pushed.
func (a *app) pushSource(o pushOptions) (io.ReadCloser, int64, error) {
	if o.data != "" {
		return io.NopCloser(strings.NewReader(strings.ReplaceAll(o.data, "\n", " "))), 1, nil
	}
	in, err := a.open(o.file)
	if err != nil {
		return nil, 0, err
	}
	counted := io.Reader(in)
	if o.file == "" || o.file == "-" {
		counted = a.stdin
	}
	total, err := countLines(counted)
	return in, total, err
}

// push reads, gathers and sends. Messages of earlier lines are pushed when a later line turns out wrong, unless --atomic.
func (a *app) push(ctx context.Context, o pushOptions) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	in, total, err := a.pushSource(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	if !o.dryRun {
		if err := a.connect(); err != nil {
			return err
		}
	}
	run := &pushRun{app: a, o: o, counts: map[string]int64{}, partitions: map[string]int64{}, started: a.now()}
	run.progress = a.progress("pushed", "messages", total)
	err = run.all(ctx, newLineReader(in))
	run.progress.Finish()
	if errors.Is(err, errExplained) {
		return err
	}
	return run.summary(err)
}

// A pushRun is one push under way.
type pushRun struct {
	*app
	o          pushOptions
	items      []queen.Item
	lines      []int
	size       int
	counts     map[string]int64
	partitions map[string]int64
	sent       int64
	started    time.Time
	progress   *output.Progress
}

func (r *pushRun) all(ctx context.Context, lines *lineReader) error {
	for {
		line, err := lines.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the input: %w", err)
		}
		item, err := r.item(line)
		if err != nil {
			return usage("line %d: %w", lines.number, err)
		}
		r.items, r.lines, r.size = append(r.items, item), append(r.lines, lines.number), r.size+len(line)
		if r.o.atomic {
			if len(r.items) > maxAtomic {
				return usage("line %d: --atomic takes at most %d messages; nothing was pushed", lines.number, maxAtomic)
			}
			continue
		}
		if len(r.items) >= r.o.batch || r.size >= maxPushBytes {
			if err := r.flush(ctx); err != nil {
				return err
			}
		}
	}
	if len(r.items) == 0 {
		return nil
	}
	return r.flush(ctx)
}

// item makes a message of a line.
func (r *pushRun) item(line []byte) (queen.Item, error) {
	o := &r.o
	item := queen.Item{Queue: o.queue, Partition: o.partition, TransactionID: o.transactionID, TraceID: o.traceID, Payload: line}
	if o.format == "lines" {
		text, err := json.Marshal(strings.ToValidUTF8(string(line), "\ufffd"))
		item.Payload = text
		return item, err
	}
	if !json.Valid(line) {
		return item, errors.New("it is no JSON value; --format lines pushes texts")
	}
	if o.format == "items" {
		if err := readItem(line, &item); err != nil {
			return item, err
		}
	}
	var err error
	if o.partitionKey != "" {
		if item.Partition, err = atPath(item.Payload, o.partitionKey); err != nil {
			return item, err
		}
	}
	if o.transactionKey != "" {
		if item.TransactionID, err = atPath(item.Payload, o.transactionKey); err != nil {
			return item, err
		}
	}
	return item, nil
}

// readItem reads an object as it comes out of peek, pop, tail and backups.
func readItem(line []byte, item *queen.Item) error {
	var given struct {
		Partition     *string         `json:"partition"`
		TransactionID *string         `json:"transactionId"`
		TraceID       *string         `json:"traceId"`
		Traceparent   *string         `json:"traceparent"`
		Data          json.RawMessage `json:"data"`
		Payload       json.RawMessage `json:"payload"`
	}
	if err := json.Unmarshal(line, &given); err != nil {
		return errors.New("--format items wants an object")
	}
	if item.Payload = given.Data; item.Payload == nil {
		item.Payload = given.Payload
	}
	if item.Payload == nil {
		return errors.New(`--format items wants an object with "data" or "payload"`)
	}
	if given.Partition != nil && *given.Partition == "" {
		return errors.New("the partition with the empty name cannot be pushed to from here; copy and restore can")
	}
	for _, member := range []struct {
		from *string
		to   *string
	}{{given.Partition, &item.Partition}, {given.TransactionID, &item.TransactionID}, {given.TraceID, &item.TraceID}, {given.Traceparent, &item.Traceparent}} {
		if member.from != nil && *member.to == "" {
			*member.to = *member.from
		}
	}
	return nil
}

// flush sends what was gathered.
func (r *pushRun) flush(ctx context.Context) error {
	items, lines := r.items, r.lines
	r.items, r.lines, r.size = nil, nil, 0
	for i := range items {
		r.partitions[items[i].Partition]++
	}
	if r.o.dryRun {
		r.counts["would push"] += int64(len(items))
		return nil
	}
	if err := r.pace(ctx); err != nil {
		return err
	}
	if r.flags.explain {
		_, err := r.call(ctx, http.MethodPost, "/api/v1/push", nil, pushBody(items))
		return err
	}
	results, err := r.send(ctx, items)
	for i, result := range results {
		r.counts[string(result.Status)]++
		if result.Status == queen.Failed && r.counts[string(queen.Failed)] <= shownFailures {
			fmt.Fprintf(r.stderr, "line %d was not pushed: %v\n", lines[i], result.Err)
		}
	}
	r.sent += int64(len(items))
	r.progress.Set(r.sent, 0, "")
	if len(results) > 0 {
		return nil // the results say what failed
	}
	return err
}

func (r *pushRun) send(ctx context.Context, items []queen.Item) ([]queen.PushResult, error) {
	if !r.o.atomic {
		return r.client.Push(ctx, items...)
	}
	done, err := r.client.Transaction().Push(items...).Commit(ctx)
	if err != nil {
		if errors.Is(err, queen.ErrRolledBack) {
			return nil, differs("nothing was pushed: %w", err)
		}
		return nil, err
	}
	return done.Pushed, nil
}

// pace waits until what was sent so far fits the rate.
func (r *pushRun) pace(ctx context.Context) error {
	if r.o.rate <= 0 {
		return nil
	}
	due := r.started.Add(time.Duration(float64(r.sent) / r.o.rate * float64(time.Second)))
	return sleep(ctx, due.Sub(r.now()))
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// summary shows the counts, and fails when messages did.
func (r *pushRun) summary(err error) error {
	words := []string{"would push", string(queen.Queued), string(queen.Buffered), string(queen.Duplicate), string(queen.Failed)}
	object := map[string]any{"queue": r.o.queue, "partitions": len(r.partitions)}
	var texts []string
	for _, word := range words {
		if n := r.counts[word]; n > 0 {
			object[strings.ReplaceAll(word, " ", "_")] = n
			texts = append(texts, fmt.Sprintf("%s %d", word, n))
		}
	}
	if len(texts) > 0 {
		if shown := r.shown(object, strings.Join(texts, ", ")); err == nil {
			err = shown
		}
	}
	switch {
	case err != nil:
		return err
	case len(texts) == 0:
		return empty("there was nothing to push")
	case r.counts[string(queen.Failed)] > 0:
		return differs("not pushed: %s", many(r.counts[string(queen.Failed)], "message"))
	}
	return nil
}

func (r *pushRun) shown(object map[string]any, text string) error {
	if r.printer.Format.Table() {
		_, err := fmt.Fprintf(r.stdout, "%s (queue %s, %s)\n", text, output.Clean(r.o.queue), many(len(r.partitions), "partition"))
		return err
	}
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return r.printer.Item(body)
}

// pushBody is the body of a push request; payloads keep their bytes.
func pushBody(items []queen.Item) json.RawMessage {
	var b bytes.Buffer
	b.WriteString(`{"items":[`)
	for i := range items {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`{"queue":` + jsonText(items[i].Queue))
		if items[i].Partition != "" {
			b.WriteString(`,"partition":` + jsonText(items[i].Partition))
		}
		if items[i].TransactionID != "" {
			b.WriteString(`,"transactionId":` + jsonText(items[i].TransactionID))
		}
		if items[i].TraceID != "" {
			b.WriteString(`,"traceId":` + jsonText(items[i].TraceID))
		}
		if items[i].Traceparent != "" {
			b.WriteString(`,"traceparent":` + jsonText(items[i].Traceparent))
		}
		b.WriteString(`,"payload":`)
		b.Write(items[i].Payload)
		b.WriteByte('}')
	}
	b.WriteString("]}")
	return b.Bytes()
}

func jsonText(text string) string {
	encoded, err := bodyText(text)
	must(err) // a string always encodes
	return string(encoded)
}
