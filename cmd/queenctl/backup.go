package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/archive"
	"queenmq/cmd/queenctl/manifest"
	"queenmq/cmd/queenctl/output"
)

// backupOptions are the flags of backup.
type backupOptions struct {
	dir       string
	queues    []string
	namespace string
	decrypted bool
	verify    bool
}

func (a *app) backupCommand() *cobra.Command {
	var o backupOptions
	command := &cobra.Command{
		Use: "backup DIRECTORY", Short: "Copy queues, messages and group positions into a directory",
		Long: `Copy the queues with their options, all stored messages and the positions of the groups into a directory of checksummed NDJSON
files. Nothing changes at the broker. A partition is copied as far as it reached when its copying began. A backup that was
interrupted goes on when the command is repeated. Dead letters, traces and leases are not part of it; for a copy of everything,
with its ids and offsets, use pg_dump on the database.

Messages of encrypted queues are written decrypted, which --decrypted has to allow. --verify checks an existing backup and needs no
broker.`,
		Example: "  queenctl backup /var/backups/queen-2026-11-30\n  queenctl backup --verify /var/backups/queen-2026-11-30",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			o.dir = given[0]
			if o.verify {
				return a.verifyBackup(o.dir)
			}
			return a.backup(command.Context(), o)
		},
	}
	f := command.Flags()
	f.StringArrayVar(&o.queues, "queue", nil, "only this queue; may be repeated")
	f.StringVar(&o.namespace, "namespace", "", "only queues of this namespace")
	f.BoolVar(&o.decrypted, "decrypted", false, "write messages of encrypted queues too, in plain text")
	f.BoolVar(&o.verify, "verify", false, "check the backup that is there")
	return command
}

func (a *app) verifyBackup(dir string) error {
	reader, err := archive.Open(dir)
	if err != nil {
		return backupFault(err)
	}
	progress := a.progress("checked", "messages", reader.Messages())
	err = reader.Verify(func(e archive.Entry) { progress.Add(e.Messages) })
	progress.Finish()
	if err != nil {
		return backupFault(err)
	}
	if err := a.printer.Item(fmt.Appendf(nil, `{"messages":%d,"files":%d,"complete":%t}`, reader.Messages(), len(reader.Entries), reader.Complete)); err != nil {
		return err
	}
	if !reader.Complete {
		return differs("the backup is not complete; queenctl backup goes on with it")
	}
	return nil
}

// backupFault gives damage its exit code.
func backupFault(err error) error {
	if errors.Is(err, archive.ErrDamaged) {
		return &exitError{exitDiffers, err}
	}
	return err
}

// A backupRun is one backup under way.
type backupRun struct {
	*app
	o        backupOptions
	w        *archive.Writer
	progress *output.Progress
	// unreadable counts the messages that the broker has and cannot read.
	unreadable int
}

func (a *app) backup(ctx context.Context, o backupOptions) (err error) {
	if a.flags.explain {
		_, err := a.call(ctx, http.MethodGet, "/api/v1/resources/queues", nil, nil)
		return err
	}
	writer, err := archive.Create(o.dir)
	if err != nil {
		return backupFault(err)
	}
	defer func() { err = errors.Join(err, writer.Close()) }()
	if writer.Complete() {
		return usage("%s holds a complete backup; take another directory", o.dir)
	}
	run := &backupRun{app: a, o: o, w: writer}
	document, err := run.describe(ctx)
	if err != nil {
		return err
	}
	if n := writer.Messages(); n > 0 {
		a.remark("going on after %s messages", output.Grouped(n))
	}
	if err := run.messages(ctx, document); err != nil {
		return err
	}
	if err := writer.Finish(); err != nil {
		return err
	}
	if err := a.printer.Item(fmt.Appendf(nil, `{"directory":%s,"queues":%d,"messages":%d}`, jsonText(o.dir), len(document.Queues), writer.Messages())); err != nil {
		return err
	}
	if run.unreadable > 0 {
		return differs("%d messages cannot be read by the broker and are not in the backup", run.unreadable)
	}
	return nil
}

// describe writes the queues and the positions of their groups, or reads which queues an earlier run decided on. Positions come first, so
// that every message that a group has consumed is copied after them.
func (r *backupRun) describe(ctx context.Context) (manifest.Document, error) {
	if r.w.Has(archive.QueuesFile) && r.w.Has(archive.GroupsFile) {
		reader, err := archive.Open(r.o.dir)
		if err != nil {
			return manifest.Document{}, backupFault(err)
		}
		text, err := reader.File(archive.QueuesFile)
		if err != nil {
			return manifest.Document{}, backupFault(err)
		}
		return manifest.Read(text)
	}
	document, err := r.there(ctx, r.o.queues, r.o.namespace)
	if err != nil {
		return document, err
	}
	for _, name := range r.o.queues {
		if !slices.ContainsFunc(document.Queues, func(q manifest.Queue) bool { return q.Name == name }) {
			return document, empty("there is no queue %s", name)
		}
	}
	if len(document.Queues) == 0 {
		return document, empty("there are no queues")
	}
	for _, q := range document.Queues {
		if string(q.Options["encryptionEnabled"]) == "true" && !r.o.decrypted {
			return document, usage("the queue %s is encrypted and would be written in plain text; --decrypted allows it", q.Name)
		}
	}
	if !r.w.Has(archive.QueuesFile) {
		text, err := manifest.Write(document)
		if err != nil {
			return document, err
		}
		if err := r.w.AddFile(archive.QueuesFile, text); err != nil {
			return document, err
		}
	}
	positions, err := r.positions(ctx, document)
	if err != nil {
		return document, err
	}
	return document, r.w.AddFile(archive.GroupsFile, positions)
}

// positions writes what each group has consumed of each partition.
func (r *backupRun) positions(ctx context.Context, document manifest.Document) ([]byte, error) {
	items, err := r.groups(ctx, "", "")
	if err != nil {
		return nil, err
	}
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	encoder.SetEscapeHTML(false)
	for _, item := range items {
		g, err := decode[struct{ Name, QueueName string }](item)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(document.Queues, func(q manifest.Queue) bool { return q.Name == g.QueueName }) {
			continue
		}
		lanes, err := r.lanes(ctx, g.QueueName, g.Name, nil)
		if err != nil {
			return nil, err
		}
		for _, l := range lanes {
			if err := encoder.Encode(archive.Position{Group: g.Name, Queue: g.QueueName, Partition: l.Name, Consumed: l.Messages.Total - l.Messages.Pending, Total: l.Messages.Total}); err != nil {
				return nil, err
			}
		}
	}
	return lines.Bytes(), nil
}

func (r *backupRun) messages(ctx context.Context, document manifest.Document) error {
	lanes := map[string][]lane{}
	total := int64(0)
	for _, q := range document.Queues {
		found, err := r.lanes(ctx, q.Name, "", nil)
		if isNotFound(err) {
			r.remark("note: the queue %s is gone", q.Name)
			continue
		}
		if err != nil {
			return err
		}
		lanes[q.Name] = found
		for _, l := range found {
			total += l.Messages.Total
		}
	}
	r.progress = r.app.progress("saved", "messages", total)
	r.progress.Set(r.w.Messages(), 0, "")
	defer r.progress.Finish()
	for _, q := range document.Queues {
		for _, l := range lanes[q.Name] {
			if err := r.lane(ctx, l); err != nil {
				return err
			}
		}
	}
	return nil
}

// lane copies one partition from where an earlier run left it.
func (r *backupRun) lane(ctx context.Context, l lane) error {
	next, until, begun := r.w.Reached(l.ID)
	if begun && next >= until || !begun && l.Messages.Total == 0 {
		return nil
	}
	if !begun {
		edge, err := r.edge(ctx, l.ID)
		if isNotFound(err) {
			return nil // deleted since the list was made
		}
		if err != nil {
			return err
		}
		next, until = edge.LogStart, edge.End
	}
	for first := true; next < until; {
		p, err := r.read(ctx, l.ID, next, pageSize)
		if err != nil {
			return err
		}
		if first {
			if err := r.w.Begin(archive.Range{Queue: p.Queue, Partition: p.Partition, PartitionID: l.ID, From: next, Until: until}); err != nil {
				return err
			}
			first = false
		}
		for i := range p.Messages {
			m := &p.Messages[i]
			if m.Offset >= until {
				break
			}
			full, err := r.add(&p, m)
			if err != nil {
				return err
			}
			if full {
				if err := r.w.Flush(); err != nil {
					return err
				}
				if err := r.w.Begin(archive.Range{Queue: p.Queue, Partition: p.Partition, PartitionID: l.ID, From: m.Offset + 1, Until: until}); err != nil {
					return err
				}
			}
		}
		if p.Next <= next {
			p.Next = until // retention took the rest
		}
		next = min(p.Next, until)
		r.w.Skip(next)
	}
	return nil
}

func (r *backupRun) add(p *part, m *storedMessage) (full bool, err error) {
	if m.Unreadable != nil {
		if r.unreadable++; r.unreadable <= shownFailures {
			fmt.Fprintf(r.stderr, "offset %d of %s/%s cannot be read: %s\n", m.Offset, output.Clean(p.Queue), output.Clean(p.Partition), output.Clean(*m.Unreadable))
		}
		return false, nil
	}
	if m.Encrypted && sealed(m.Data) {
		return false, fmt.Errorf("message %s of %s/%s is encrypted and the broker has no key for it; a backup of it would be of no use", m.TransactionID, p.Queue, p.Partition)
	}
	r.progress.Add(1)
	return r.w.Add(&archive.Message{
		Queue: p.Queue, Partition: p.Partition, Offset: m.Offset, ID: m.ID, TransactionID: m.TransactionID, TraceID: m.TraceID, Traceparent: m.Traceparent, ProducerSub: m.ProducerSub,
		CreatedAt: m.CreatedAt.UTC().Format(time.RFC3339Nano), Data: m.Data,
	})
}

// sealed reports whether the payload of an encrypted message is still its envelope.
func sealed(data json.RawMessage) bool {
	var envelope map[string]string
	if json.Unmarshal(data, &envelope) != nil {
		return false
	}
	return envelope["encrypted"] != "" && envelope["iv"] != "" && strings.TrimSpace(envelope["authTag"]) != ""
}
