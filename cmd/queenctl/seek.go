package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"queenmq/queen"
)

// A seek is where a cursor is to go.
type seek struct {
	group     string
	toEnd     bool
	at        moment
	offset    int64
	hasOffset bool
}

func (a *app) newSeek() *seek { return &seek{at: moment{now: a.now}} }

// bind adds the flags of a target.
func (s *seek) bind(command *cobra.Command) {
	f := command.Flags()
	f.BoolVar(&s.toEnd, "to-end", false, "behind the last message")
	f.Var(&s.at, "to", "to the first message stored at or after this time")
	f.Int64Var(&s.offset, "offset", 0, "so that this offset is delivered next")
	before := command.PreRunE
	command.PreRunE = func(command *cobra.Command, given []string) error {
		s.hasOffset = command.Flags().Changed("offset")
		if before != nil {
			return before(command, given)
		}
		return nil
	}
}

// body is the target as the broker reads it.
func (s *seek) body() (map[string]any, string, error) {
	given := 0
	for _, b := range []bool{s.toEnd, !s.at.at.IsZero(), s.hasOffset} {
		if b {
			given++
		}
	}
	switch {
	case given != 1:
		return nil, "", usage("give exactly one of --to-end, --to and --offset")
	case s.toEnd:
		return map[string]any{"toEnd": true}, "the end", nil
	case s.hasOffset:
		if s.offset < 0 {
			return nil, "", usage("--offset must not be negative")
		}
		return map[string]any{"offset": s.offset}, fmt.Sprintf("offset %d", s.offset), nil
	}
	return map[string]any{"timestamp": s.at.String()}, s.at.at.UTC().Format(time.RFC3339), nil
}

// A seekPreview is what a seek would do, counted by the broker.
type seekPreview struct {
	Partitions      int64 `json:"partitionsUpdated"`
	PartitionsMoved int64 `json:"partitionsMoved"`
	Again           int64 `json:"again"`
	Skipped         int64 `json:"skipped"`
	Pending         int64 `json:"pending"`
	Leases          int64 `json:"leases"`
}

func seekPath(group, queue string, partition *string) string {
	if partition == nil {
		return queen.Path("api", "v1", "consumer-groups", group, "queues", queue, "seek")
	}
	return queen.Path("api", "v1", "consumer-groups", group, "queues", queue, "partitions", *partition, "seek")
}

// seek moves a group in a queue, or in some of its partitions, after the broker counted what that means.
func (a *app) seek(ctx context.Context, s *seek, queue string, partitions []string) error {
	body, where, err := s.body()
	if err != nil {
		return err
	}
	paths := []string{seekPath(s.group, queue, nil)}
	if len(partitions) > 0 {
		paths = nil
		for _, name := range partitions {
			paths = append(paths, seekPath(s.group, queue, &name))
		}
	}
	var total seekPreview
	if !a.flags.explain {
		if total, err = a.previewSeek(ctx, paths, body); err != nil {
			return err
		}
	}
	if a.flags.preview && !a.printer.Format.Table() {
		text, err := json.Marshal(total)
		if err != nil {
			return err
		}
		return a.printer.Item(text)
	}
	yes, err := a.confirm("move group %s in %s to %s: it receives %s again, skips %d unread and has %d pending then; %s end, %d of %s move",
		s.group, queue, where, many(total.Again, "message"), total.Skipped, total.Pending, many(total.Leases, "lease"), total.PartitionsMoved, many(total.Partitions, "partition"))
	if !yes || err != nil {
		return err
	}
	for _, path := range paths {
		if err := a.item(ctx, http.MethodPost, path, nil, body); err != nil {
			return err
		}
	}
	return nil
}

// previewSeek asks the broker what a seek would do. A broker that does not know the question would seek at once, so it is asked what
// it knows first.
func (a *app) previewSeek(ctx context.Context, paths []string, body map[string]any) (seekPreview, error) {
	var total seekPreview
	known, err := a.knowsSeekPreview(ctx)
	if err != nil {
		return total, err
	}
	if !known {
		if a.flags.preview {
			return total, errors.New("this broker cannot preview a seek: its seek route has no dryRun; nothing was done")
		}
		a.remark("note: this broker cannot count beforehand what a seek does")
		return total, nil
	}
	asked := maps.Clone(body)
	asked["dryRun"] = true
	for _, path := range paths {
		answer, err := a.exchange(ctx, http.MethodPost, path, nil, asked, false)
		if err != nil {
			return total, err
		}
		one, err := decode[seekPreview](answer.Body)
		if err != nil {
			return total, err
		}
		total.Partitions += one.Partitions
		total.PartitionsMoved += one.PartitionsMoved
		total.Again += one.Again
		total.Skipped += one.Skipped
		total.Pending += one.Pending
		total.Leases += one.Leases
	}
	return total, nil
}

// knowsSeekPreview looks into the broker's own description of its routes.
func (a *app) knowsSeekPreview(ctx context.Context) (bool, error) {
	answer, err := a.exchange(ctx, http.MethodGet, "/openapi.json", nil, nil, false)
	if isMissingRoute(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	described, err := decode[struct {
		Paths map[string]struct {
			Post struct {
				RequestBody json.RawMessage `json:"requestBody"`
			} `json:"post"`
		} `json:"paths"`
	}](answer.Body)
	if err != nil {
		return false, err
	}
	route := described.Paths["/api/v1/consumer-groups/{group}/queues/{queue}/seek"]
	return bytes.Contains(route.Post.RequestBody, []byte(`"dryRun"`)), nil
}
