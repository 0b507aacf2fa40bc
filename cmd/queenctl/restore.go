package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/archive"
	"queenmq/cmd/queenctl/manifest"
	"queenmq/cmd/queenctl/output"
	"queenmq/queen"
)

// restoreOptions are the flags of restore.
type restoreOptions struct {
	dir      string
	queues   []string
	resume   bool
	part     bool
	noGroups bool
	batch    int
	rate     float64
}

func (a *app) restoreCommand() *cobra.Command {
	o := restoreOptions{}
	command := a.destructive(&cobra.Command{
		Use: "restore DIRECTORY", Short: "Put a backup into a broker",
		Long: `Create the queues of a backup, push its messages and put the groups where they were. Every file is checked before it is used. Queues,
partitions, order, payload bytes, transaction ids and trace ids are those of the backup; message ids, offsets and times are new.

The queues must be empty, and nobody else may push to them meanwhile. A restore that was interrupted goes on with --resume: how much
of each partition is there already says where. Until it is done the queues take every transaction id (no de-duplication), know no
maxSize and delete nothing by age; their options come last. At the end every partition is counted: exit code 5 when one holds more or
less than the backup.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			o.dir = given[0]
			if o.batch < 1 || o.batch > 10_000 || o.rate < 0 {
				return usage("--batch must be between 1 and 10000 and --rate not negative")
			}
			return a.restore(command.Context(), o)
		},
	})
	f := command.Flags()
	f.StringArrayVar(&o.queues, "queue", nil, "only this queue; may be repeated")
	f.BoolVar(&o.resume, "resume", false, "go on with a restore that was interrupted")
	f.BoolVar(&o.part, "partial", false, "take a backup that was never completed")
	f.BoolVar(&o.noGroups, "no-groups", false, "leave out the positions of the groups: they see everything again")
	f.IntVar(&o.batch, "batch", 1000, "messages in one request")
	f.Float64Var(&o.rate, "rate", 0, "most messages a second; 0 is any number")
	return command
}

// A laneName names a partition.
type laneName struct{ queue, partition string }

// A messageName is what a broker takes for one message.
type messageName struct {
	laneName
	transactionID string
}

// A restoreRun is one restore under way.
type restoreRun struct {
	*app
	o        restoreOptions
	reader   *archive.Reader
	document manifest.Document
	wanted   map[string]bool
	// there counts what each partition held when this run began, seen what the backup has of it up to here.
	there, seen map[laneName]int64
	last        map[laneName]archive.Message // the last message that is there already
	push        copyRun
	// ids are those of the messages that are gathered: a broker takes an id once in one request, whatever the queue says.
	ids      map[messageName]bool
	progress *output.Progress
}

func (a *app) restore(ctx context.Context, o restoreOptions) error {
	reader, err := archive.Open(o.dir)
	if err != nil {
		return backupFault(err)
	}
	if !reader.Complete && !o.part {
		return differs("the backup is not complete: queenctl backup goes on with it, and --partial takes it as it is")
	}
	r := &restoreRun{app: a, o: o, reader: reader, wanted: map[string]bool{}, seen: map[laneName]int64{}, last: map[laneName]archive.Message{}}
	if err := r.choose(); err != nil {
		return err
	}
	total := r.messagesWanted()
	if !a.flags.explain {
		if err := r.settled(ctx); err != nil {
			return err
		}
	}
	done := int64(0)
	for _, n := range r.there {
		done += n
	}
	yes, err := a.confirm("create %s and push %s", many(len(r.document.Queues), "queue"), many(total-done, "message"))
	if !yes || err != nil {
		return err
	}
	if err := r.prepare(ctx); err != nil {
		return err
	}
	r.progress = a.progress("restored", "messages", total)
	r.progress.Set(done, 0, "")
	err = r.messages(ctx)
	r.progress.Finish()
	if err != nil {
		return err
	}
	return r.finish(ctx, total)
}

// choose reads the queues of the backup and keeps those that are wanted.
func (r *restoreRun) choose() error {
	text, err := r.reader.File(archive.QueuesFile)
	if err != nil {
		return backupFault(err)
	}
	if r.document, err = manifest.Read(text); err != nil {
		return backupFault(err)
	}
	r.document.Queues = slices.DeleteFunc(r.document.Queues, func(q manifest.Queue) bool {
		return len(r.o.queues) > 0 && !slices.Contains(r.o.queues, q.Name)
	})
	for _, q := range r.document.Queues {
		r.wanted[q.Name] = true
	}
	for _, name := range r.o.queues {
		if !r.wanted[name] {
			return empty("the backup has no queue %s", name)
		}
	}
	return nil
}

func (r *restoreRun) messagesWanted() (total int64) {
	for _, e := range r.reader.Chunks() {
		for _, part := range e.Ranges {
			if r.wanted[part.Queue] {
				total += part.Messages
			}
		}
	}
	return total
}

// settle is how long nothing may change before a restore is resumed: the last request of the one that was killed may still be under way
// at the broker, and what it commits after the count would be pushed twice. Should it take longer, the count at the end finds it.
const settle = 2 * time.Second

// settled surveys until nothing changes.
func (r *restoreRun) settled(ctx context.Context) error {
	for {
		before := r.there
		r.there = map[laneName]int64{}
		if err := r.survey(ctx); err != nil {
			return err
		}
		if len(r.there) == 0 && !r.o.resume || before != nil && maps.Equal(before, r.there) {
			return nil
		}
		if err := sleep(ctx, settle); err != nil {
			return err
		}
	}
}

// survey looks at what the queues hold. Anything is too much, unless an interrupted restore put it there.
func (r *restoreRun) survey(ctx context.Context) error {
	for _, q := range r.document.Queues {
		lanes, err := r.lanes(ctx, q.Name, "", nil)
		if isNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		for _, l := range lanes {
			if l.Messages.Total == 0 {
				continue
			}
			if !r.o.resume {
				return differs("the queue %s is not empty; --resume goes on with a restore that was interrupted", q.Name)
			}
			name := laneName{q.Name, l.Name}
			r.there[name] = l.Messages.Total
			p, err := r.look(ctx, queen.Path("api", "v1", "partitions", l.ID, "messages"), values("offset", "-1"))
			if err != nil {
				return err
			}
			end, err := decode[part](p)
			if err != nil {
				return err
			}
			if end.LogStart != 0 || len(end.Messages) != 1 {
				return differs("%s/%s has lost messages since the restore began: start again with empty queues", q.Name, l.Name)
			}
			r.last[name] = archive.Message{TransactionID: end.Messages[0].TransactionID, Data: end.Messages[0].Data}
		}
	}
	return nil
}

// whileRestoring are the options that would drop, refuse or delete messages of the backup.
var whileRestoring = map[string]json.RawMessage{
	"maxSize": json.RawMessage("0"), "dedupWindowSeconds": json.RawMessage("0"), "retentionEnabled": json.RawMessage("false"),
	"retentionSeconds": json.RawMessage("0"), "completedRetentionSeconds": json.RawMessage("0"), "maxWaitTimeSeconds": json.RawMessage("0"),
}

func (r *restoreRun) prepare(ctx context.Context) error {
	for _, q := range r.document.Queues {
		open := q
		open.Options = maps.Clone(q.Options)
		maps.Copy(open.Options, whileRestoring)
		if err := r.configure(ctx, open); err != nil {
			return fmt.Errorf("queue %s: %w", q.Name, err)
		}
	}
	return nil
}

func (r *restoreRun) messages(ctx context.Context) error {
	r.push = copyRun{app: r.app, o: copyOptions{batch: r.o.batch, rate: r.o.rate}, counts: map[string]int64{}, started: r.now()}
	for _, e := range r.reader.Chunks() {
		if !slices.ContainsFunc(e.Ranges, func(p archive.Range) bool { return r.wanted[p.Queue] }) {
			continue
		}
		err := r.reader.Chunk(e, func(m archive.Message) error { return r.message(ctx, m) })
		if err != nil {
			return backupFault(err)
		}
	}
	if err := r.flush(ctx); err != nil {
		return err
	}
	for name, n := range r.there {
		if r.seen[name] < n {
			return differs("%s/%s holds %d messages, the backup %d: somebody else pushed to it", name.queue, name.partition, n, r.seen[name])
		}
	}
	return nil
}

// message pushes one message, unless it is there already.
func (r *restoreRun) message(ctx context.Context, m archive.Message) error {
	if !r.wanted[m.Queue] {
		return nil
	}
	name := laneName{m.Queue, m.Partition}
	r.seen[name]++
	if n := r.seen[name]; n <= r.there[name] {
		if last := r.last[name]; n == r.there[name] && (last.TransactionID != m.TransactionID || !bytes.Equal(last.Data, m.Data)) {
			return differs("message %d of %s/%s is not that of the backup: it was not put there by an interrupted restore of it", n, m.Queue, m.Partition)
		}
		return nil
	}
	id := messageName{name, m.TransactionID}
	if r.ids[id] {
		if err := r.flush(ctx); err != nil {
			return err
		}
	}
	if r.ids == nil {
		r.ids = map[messageName]bool{}
	}
	if m.TransactionID != "" {
		r.ids[id] = true
	}
	appendStored(&r.push.body, m.Queue, m.Partition, m.TransactionID, &storedMessage{TraceID: m.TraceID, Traceparent: m.Traceparent, Data: m.Data})
	if r.push.gathered++; r.push.gathered >= r.o.batch || r.push.body.Len() >= maxPushBytes {
		return r.flush(ctx)
	}
	return nil
}

// flush pushes what was gathered. Only what is committed counts: a message that is refused, taken for a duplicate or kept on the
// broker's disk would make the count of a resumed restore wrong.
func (r *restoreRun) flush(ctx context.Context) error {
	n := int64(r.push.gathered)
	clear(r.ids)
	if err := r.push.flush(ctx); err != nil {
		return err
	}
	r.progress.Add(n)
	if b := r.push.counts["buffered"]; b > 0 {
		return errors.New("the database of the broker is away and messages wait on its disk: go on with --resume when queenctl check buffer says 0")
	}
	if bad := r.push.counts["failed"] + r.push.counts["duplicate"]; bad > 0 {
		return differs("%d messages were refused or taken for duplicates", bad)
	}
	return nil
}

// finish gives the queues their options, the groups their positions, and counts.
func (r *restoreRun) finish(ctx context.Context, total int64) error {
	groups := 0
	if !r.o.noGroups {
		var err error
		if groups, err = r.positions(ctx); err != nil {
			return err
		}
	}
	for _, q := range r.document.Queues {
		if err := r.configure(ctx, q); err != nil {
			return fmt.Errorf("queue %s: %w", q.Name, err)
		}
	}
	count := int64(0)
	for _, q := range r.document.Queues {
		lanes, err := r.lanes(ctx, q.Name, "", nil)
		if err != nil {
			return err
		}
		for _, l := range lanes {
			if want := r.seen[laneName{q.Name, l.Name}]; l.Messages.Total != want {
				return differs("%s/%s holds %d messages instead of %d", q.Name, l.Name, l.Messages.Total, want)
			}
			count += l.Messages.Total
		}
	}
	if count != total {
		return differs("the queues hold %d messages instead of %d", count, total)
	}
	return r.printer.Item(fmt.Appendf(nil, `{"queues":%d,"messages":%d,"groups":%d}`, len(r.document.Queues), count, groups))
}

// positions puts each group behind what it had consumed. Offsets of a restored partition count from 0.
func (r *restoreRun) positions(ctx context.Context) (groups int, err error) {
	all, err := r.reader.Positions()
	if err != nil {
		return 0, backupFault(err)
	}
	type groupOf struct{ group, queue string }
	byGroup := map[groupOf][]archive.Position{}
	var order []groupOf
	for _, p := range all {
		if !r.wanted[p.Queue] || r.seen[laneName{p.Queue, p.Partition}] == 0 {
			continue
		}
		key := groupOf{p.Group, p.Queue}
		if byGroup[key] == nil {
			order = append(order, key)
		}
		byGroup[key] = append(byGroup[key], p)
	}
	for _, key := range order {
		if err := r.position(ctx, key.group, key.queue, byGroup[key]); err != nil {
			return 0, fmt.Errorf("group %s of %s: %w", key.group, key.queue, err)
		}
	}
	return len(order), nil
}

func (r *restoreRun) position(ctx context.Context, group, queue string, positions []archive.Position) error {
	none, everything := true, true
	for _, p := range positions {
		none = none && p.Consumed == 0
		everything = everything && p.Consumed == r.seen[laneName{p.Queue, p.Partition}]
	}
	body := map[string]any{"offset": 0}
	if everything {
		body = map[string]any{"toEnd": true}
	}
	if _, err := r.call(ctx, http.MethodPost, seekPath(group, queue, nil), nil, body); err != nil {
		return err
	}
	if none || everything {
		return nil
	}
	for _, p := range positions {
		if p.Consumed == 0 {
			continue
		}
		if p.Partition == "" {
			r.remark("note: the position of group %s in the partition with the empty name cannot be restored: its messages come again", group)
			continue
		}
		if _, err := r.call(ctx, http.MethodPost, seekPath(group, queue, &p.Partition), nil, map[string]int64{"offset": p.Consumed}); err != nil {
			return err
		}
	}
	return nil
}
