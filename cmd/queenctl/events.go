package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/output"
)

// An event is something that happened at the broker, with the time by its database's clock.
type event struct {
	At   time.Time `json:"at"`
	Kind string    `json:"kind"`
	// Subject is the queue, group, broker or task that it is about; ID tells events of one kind apart.
	Subject string `json:"subject"`
	ID      string `json:"id"`
	Text    string `json:"text"`
}

// eventSources read what happened since a time. Brokers keep no log of events of their own: each source is a list that has a time.
var eventSources = []struct {
	kind string
	read func(*app, context.Context, time.Time) ([]event, error)
}{
	{"dead-letter", (*app).deadLetterEvents},
	{"lease-abandoned", (*app).abandonedEvents},
	{"task", (*app).taskEvents},
	{"broker", (*app).brokerEvents},
	{"queue-created", (*app).queueEvents},
	{"deleted", (*app).retentionEvents},
}

func eventKinds() []string {
	var kinds []string
	for _, source := range eventSources {
		kinds = append(kinds, source.kind)
	}
	return kinds
}

func (a *app) eventsCommand() *cobra.Command {
	var follow bool
	var kinds []string
	var interval time.Duration
	since := moment{now: a.now}
	command := &cobra.Command{
		Use: "events", Short: "List what happened: dead letters, abandoned leases, tasks, brokers, new queues, deletions", Args: args(cobra.NoArgs),
		Long: `List what happened, in the order of time, put together from the lists of the broker that carry times: dead letters, leases that ran
out, tasks, brokers that came or died, queues that were made, and messages that retention deleted (by the minute or coarser).
Kinds: ` + strings.Join(eventKinds(), ", ") + ".",
		RunE: func(command *cobra.Command, _ []string) error {
			for _, kind := range kinds {
				if !slices.Contains(eventKinds(), kind) {
					return usage("there is no kind %q; there are %s", kind, strings.Join(eventKinds(), ", "))
				}
			}
			if since.at.IsZero() {
				since.at = a.now().Add(-time.Hour)
			}
			if interval < 100*time.Millisecond {
				return usage("--interval must be at least 100ms")
			}
			return a.showEvents(command.Context(), since.at, kinds, follow, interval)
		},
	}
	f := command.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "go on until Ctrl-C")
	f.StringSliceVar(&kinds, "kind", nil, "only these kinds")
	f.Var(&since, "since", "since this time (default: an hour ago)")
	f.DurationVar(&interval, "interval", 2*time.Second, "with --follow: how often to look")
	must(command.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(eventKinds(), cobra.ShellCompDirectiveNoFileComp)))
	return command
}

var eventListColumns = []output.Column{
	output.Col("TIME", "at"), output.Col("KIND", "kind"), output.Col("SUBJECT", "subject"), output.Col("WHAT", "text"), output.Col("ID", "id").InWide(),
}

func (a *app) showEvents(ctx context.Context, since time.Time, kinds []string, follow bool, interval time.Duration) error {
	seen := map[string]bool{}
	for {
		items, err := a.newEvents(ctx, since, kinds, seen)
		switch {
		case follow && interrupted(ctx, err):
			return nil
		case err != nil:
			return err
		case !follow:
			if err := a.show("events", items, eventListColumns); err != nil {
				return err
			}
			if len(items) == 0 {
				return empty("nothing happened since %s", since.UTC().Format(time.RFC3339))
			}
			return nil
		}
		if err := a.each(items, eventListColumns); err != nil {
			return err
		}
		if err := sleep(ctx, interval); err != nil {
			return nil //nolint:nilerr // Ctrl-C is how following ends
		}
	}
}

// newEvents returns the events that were not seen before. Lists are read from the same start each time: what commits late has an
// earlier time than what was seen already.
func (a *app) newEvents(ctx context.Context, since time.Time, kinds []string, seen map[string]bool) ([]json.RawMessage, error) {
	var all []event
	for _, source := range eventSources {
		if len(kinds) > 0 && !slices.Contains(kinds, source.kind) {
			continue
		}
		events, err := source.read(a, ctx, since)
		if isMissingRoute(err) || err != nil && exitCode(err) == exitAuth && len(kinds) == 0 {
			if !seen["note "+source.kind] {
				a.remark("note: no events of the kind %s: %v", source.kind, err)
			}
			seen["note "+source.kind] = true
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, events...)
	}
	slices.SortStableFunc(all, func(x, y event) int { return cmp.Or(x.At.Compare(y.At), cmp.Compare(x.ID, y.ID)) })
	var items []json.RawMessage
	for _, e := range all {
		key := e.Kind + " " + e.ID
		if seen[key] || e.At.Before(since) {
			continue
		}
		seen[key] = true
		text, err := bodyText(e)
		if err != nil {
			return nil, err
		}
		items = append(items, text)
	}
	return items, nil
}

// eventPages reads a whole list of structs.
func eventPages[T any](ctx context.Context, a *app, path, key string, query url.Values, byOffset bool) ([]T, error) {
	items, _, err := a.pages(ctx, path, query, key, 0, byOffset)
	if err != nil {
		return nil, err
	}
	all := make([]T, len(items))
	for i, item := range items {
		if all[i], err = decode[T](item); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (a *app) deadLetterEvents(ctx context.Context, since time.Time) ([]event, error) {
	type letter struct {
		ID, Queue, Partition, ConsumerGroup, TransactionID string
		ErrorMessage                                       *string
		RetryCount                                         int
		FailedAt                                           time.Time
	}
	letters, err := eventPages[letter](ctx, a, "/api/v1/dlq", "messages", values("from", since.UTC().Format(time.RFC3339Nano)), false)
	var events []event
	for _, l := range letters {
		events = append(events, event{
			l.FailedAt, "dead-letter", l.Queue + "/" + l.Partition, l.ID,
			fmt.Sprintf("message %s failed for group %s after %d retries: %s", l.TransactionID, l.ConsumerGroup, l.RetryCount, orEmpty(l.ErrorMessage)),
		})
	}
	return events, err
}

func (a *app) abandonedEvents(ctx context.Context, _ time.Time) ([]event, error) {
	type lease struct {
		Queue, Partition, PartitionID, ConsumerGroup, LeaseID string
		LeaseExpiresAt                                        time.Time
		MessageCount                                          int
	}
	leases, err := eventPages[lease](ctx, a, "/api/v1/leases", "leases", values("abandoned", "true"), true)
	var events []event
	for _, l := range leases {
		events = append(events, event{
			l.LeaseExpiresAt, "lease-abandoned", l.Queue + "/" + l.Partition, l.PartitionID + " " + l.ConsumerGroup + " " + l.LeaseID,
			fmt.Sprintf("a worker of group %s let its lease on %d messages run out", l.ConsumerGroup, l.MessageCount),
		})
	}
	return events, err
}

func (a *app) taskEvents(ctx context.Context, _ time.Time) ([]event, error) {
	type timed struct {
		task
		CreatedAt  time.Time
		FinishedAt *time.Time
	}
	tasks, err := eventPages[timed](ctx, a, "/api/v1/dlq/tasks", "tasks", nil, false)
	var events []event
	for _, t := range tasks {
		events = append(events, event{t.CreatedAt, "task", t.Kind, t.ID + " started", fmt.Sprintf("a %s of %d dead letters was started", t.Kind, t.Total)})
		if t.FinishedAt != nil {
			events = append(events, event{*t.FinishedAt, "task", t.Kind, t.ID + " ended", fmt.Sprintf("the %s ended %s: %d of %d", t.Kind, t.State, t.done(), t.Total)})
		}
	}
	return events, err
}

func (a *app) brokerEvents(ctx context.Context, _ time.Time) ([]event, error) {
	answer, err := a.call(ctx, http.MethodGet, "/api/v1/system/brokers", nil, nil)
	if err != nil {
		return nil, err
	}
	list, err := decode[struct {
		Brokers []struct {
			ID, Instance, Version, Address string
			StartedAt, LastSeen            time.Time
			Alive                          bool
		}
	}](answer)
	var events []event
	for _, b := range list.Brokers {
		events = append(events, event{b.StartedAt, "broker", b.ID, b.Instance + " started", fmt.Sprintf("version %s started at %s", b.Version, b.Address)})
		if !b.Alive {
			events = append(events, event{b.LastSeen, "broker", b.ID, b.Instance + " gone", "was seen for the last time"})
		}
	}
	return events, err
}

func (a *app) queueEvents(ctx context.Context, _ time.Time) ([]event, error) {
	type queue struct {
		ID, Name  string
		CreatedAt time.Time
	}
	queues, err := eventPages[queue](ctx, a, "/api/v1/resources/queues", "queues", values("stats", "cached"), true)
	var events []event
	for _, q := range queues {
		events = append(events, event{q.CreatedAt, "queue-created", q.Name, q.ID, "the queue was created"})
	}
	return events, err
}

func (a *app) retentionEvents(ctx context.Context, since time.Time) ([]event, error) {
	answer, err := a.call(ctx, http.MethodGet, "/api/v1/analytics/retention", values("from", since.UTC().Format(time.RFC3339Nano)), nil)
	if err != nil {
		return nil, err
	}
	list, err := decode[struct {
		Series []struct {
			Bucket                                                          time.Time
			RetentionMsgs, CompletedRetentionMsgs, EvictionMsgs, EventCount int64
		}
	}](answer)
	var events []event
	for _, b := range list.Series {
		for _, part := range []struct {
			n    int64
			text string
		}{{b.RetentionMsgs, "by age, read or not"}, {b.CompletedRetentionMsgs, "consumed ones by age"}, {b.EvictionMsgs, "unread ones that waited too long"}} {
			if part.n > 0 {
				events = append(events, event{b.Bucket, "deleted", "retention", fmt.Sprintf("%s %s %d", b.Bucket.Format(time.RFC3339), part.text, part.n), fmt.Sprintf("retention deleted %d messages, %s", part.n, part.text)})
			}
		}
	}
	return events, err
}
