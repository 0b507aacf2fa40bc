package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/pg"
)

// controlKey is the key of the row in which runners note, for each source partition, how far they are. Its value is
// {"version","watermark"?: epoch milliseconds,"late": count}. Runners of other makes may have none.
const controlKey = "control"

// mostPartitions is how many partitions of a query Progress looks at.
const mostPartitions = 200

// mostMillis is the end of the year 9999: what lies behind it is no time that anybody means.
const mostMillis = 253402300799999

// A Progress is how far a query has come, as its runners noted.
type Progress struct {
	// Partitions is how many partitions have a watermark, of those that were looked at; Exact says that these are all with state.
	Partitions int
	Exact      bool
	// Slowest and Newest are the lowest and the highest watermark: the latest event time that was seen in a partition. Nil is not known.
	Slowest, Newest *time.Time
	// Late is how many records came too late for their window. Nil is not known.
	Late *int64
}

// Progress reads how far queries have come, of at most 200 partitions each. What cannot be decrypted here is not known. Queries of another
// tenant are left out.
func (s *Server) Progress(ctx context.Context, tenant uuid.UUID, queries []uuid.UUID) (map[uuid.UUID]Progress, error) {
	if len(queries) == 0 {
		return nil, nil
	}
	found, err := s.db.StreamPartitions(ctx, tenant, queries, mostPartitions)
	if err != nil {
		return nil, err
	}
	progress := make(map[uuid.UUID]Progress, len(found))
	var wanted []pg.StreamRow
	for _, q := range found {
		progress[q.Query] = Progress{Exact: !q.More}
		for _, partition := range q.Partitions {
			names := []string{controlKey}
			if q.Sealed && s.cfg.Ring != nil {
				names = append(names, s.cfg.Ring.Names(scope(q.Query, partition), controlKey)...)
			}
			for _, name := range names {
				wanted = append(wanted, pg.StreamRow{Query: q.Query, Partition: partition, Key: name})
			}
		}
	}
	if len(wanted) == 0 {
		return progress, nil
	}
	rows, err := s.db.StreamRows(ctx, tenant, wanted)
	if err != nil {
		return nil, err
	}
	for i := range rows {
		value, err := s.plain(&rows[i])
		if err != nil {
			continue // what is not known is left out
		}
		p := progress[rows[i].Query]
		p.add(value)
		progress[rows[i].Query] = p
	}
	return progress, nil
}

// plain returns the value of a row.
func (s *Server) plain(r *pg.StreamRow) (json.RawMessage, error) {
	if r.Sealed == nil {
		return r.Value, nil
	}
	if s.cfg.Ring == nil {
		return nil, fmt.Errorf("%w: no key", ErrUndecryptable)
	}
	inside, err := open(s.cfg.Ring, r.Query, r.Partition, r.Key, *r.Sealed)
	return inside.Value, err
}

// add takes what a runner noted of one partition.
func (p *Progress) add(value json.RawMessage) {
	var control struct {
		Watermark *int64 `json:"watermark"`
		Late      *int64 `json:"late"`
	}
	if json.Unmarshal(value, &control) != nil {
		return // a row of the same name that is something else
	}
	if control.Late != nil {
		if p.Late == nil {
			p.Late = new(int64)
		}
		*p.Late += *control.Late
	}
	if control.Watermark == nil || *control.Watermark < 0 || *control.Watermark > mostMillis {
		return
	}
	at := time.UnixMilli(*control.Watermark).UTC()
	p.Partitions++
	if p.Slowest == nil || at.Before(*p.Slowest) {
		p.Slowest = &at
	}
	if p.Newest == nil || at.After(*p.Newest) {
		p.Newest = &at
	}
}
