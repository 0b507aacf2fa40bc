package api

import (
	"context"
	"encoding/json"
	"encoding/json/jsontext"
	jsonv2 "encoding/json/v2"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/stream"
	"queenmq/internal/pg"
)

// A Streamer commits the cycles of streaming queries and reads their state; *stream.Server is one.
type Streamer interface {
	State(ctx context.Context, tenant, query, partition uuid.UUID, f stream.Filter) (json.RawMessage, error)
	Run(ctx context.Context, tenant uuid.UUID, producerSub string, c stream.Cycle) (json.RawMessage, error)
	Progress(ctx context.Context, tenant uuid.UUID, queries []uuid.UUID) (map[uuid.UUID]stream.Progress, error)
}

// either returns the first of two names of a member that is there. The contract uses snake case, some clients camel case.
func either(members map[string]jsontext.Value, snake, camel string) string {
	if _, ok := present(members, snake); ok {
		return snake
	}
	return camel
}

// listStreams lists the streaming queries, and how far each has come.
func (s *Server) listStreams(w http.ResponseWriter, r *http.Request) error {
	q := lenient(r)
	sort, err := q.order(streamOrders)
	if err != nil {
		return err
	}
	filter := pg.StreamFilter{Contains: q.text("contains"), Sort: sort, Cursor: q.text("cursor")}
	filter.Limit, _ = q.page(100)
	answer, err := s.deps.Store.ListStreams(r.Context(), tenantOf(r), filter)
	if err != nil {
		return err
	}
	answer, err = s.withProgress(r.Context(), tenantOf(r), answer)
	return relay(w)(answer, err)
}

// withProgress adds to each streaming query of a page how far it has come; null is not known.
func (s *Server) withProgress(ctx context.Context, tenant uuid.UUID, answer json.RawMessage) (json.RawMessage, error) {
	var page struct {
		Streams    []map[string]json.RawMessage `json:"streams"`
		Total      int64                        `json:"total"`
		NextCursor *string                      `json:"nextCursor"`
	}
	if err := json.Unmarshal(answer, &page); err != nil || len(page.Streams) == 0 {
		return answer, err
	}
	ids := make([]uuid.UUID, len(page.Streams))
	for i, one := range page.Streams {
		if err := json.Unmarshal(one["id"], &ids[i]); err != nil {
			return nil, err
		}
	}
	progress, err := s.deps.Streamer.Progress(ctx, tenant, ids)
	if err != nil {
		return nil, err
	}
	for i, one := range page.Streams {
		p := progress[ids[i]]
		for name, value := range map[string]any{
			"watermark": isoMillis(p.Slowest), "newestWatermark": isoMillis(p.Newest), "watermarkPartitions": p.Partitions, "watermarkExact": p.Exact, "lateRecords": p.Late,
		} {
			if one[name], err = json.Marshal(value); err != nil {
				return nil, err
			}
		}
	}
	return json.Marshal(page)
}

// isoMillis writes a time as the procedures do; nil stays nil.
func isoMillis(t *time.Time) *string {
	if t == nil {
		return nil
	}
	return new(t.Format("2006-01-02T15:04:05.000Z"))
}

// registerStream registers a streaming query under its name.
func (s *Server) registerStream(w http.ResponseWriter, r *http.Request) error {
	members, err := s.readObject(w, r)
	if err != nil {
		return err
	}
	var request struct {
		Name   string `json:"name"`
		Source string `json:"source_queue"`
		Sink   string `json:"sink_queue"`
		Hash   string `json:"config_hash"`
		Reset  bool   `json:"reset"`
	}
	for _, member := range []struct {
		snake, camel string
		into         *string
		required     bool
	}{
		{"name", "name", &request.Name, true},
		{"source_queue", "sourceQueue", &request.Source, true},
		{"sink_queue", "sinkQueue", &request.Sink, false},
		{"config_hash", "configHash", &request.Hash, true},
	} {
		if *member.into, err = stringMember(members, either(members, member.snake, member.camel)); err != nil {
			return err
		}
		if member.required && *member.into == "" {
			return newError(codeBadBody, member.snake+" is required")
		}
		if fault := nameFault(*member.into); fault != "" {
			return newError(codeInvalidName, member.snake+" "+fault)
		}
	}
	if request.Reset, _, err = boolMember(members, "reset"); err != nil {
		return err
	}
	element, err := json.Marshal(request)
	if err != nil {
		return err
	}
	answer, err := s.deps.Store.RegisterStreamQuery(r.Context(), tenantOf(r), element)
	if err != nil {
		return err
	}
	return writeStreamAnswer(w, answer)
}

// writeStreamAnswer sends a registry answer: another hash under a registered name is a 409, which clients know.
func writeStreamAnswer(w http.ResponseWriter, answer json.RawMessage) error {
	var failed struct {
		Error string `json:"error"`
	}
	if err := json.Unmarshal(answer, &failed); err != nil {
		return err
	}
	if strings.Contains(failed.Error, "config_hash mismatch") {
		_ = writeJSON(w, http.StatusConflict, withMember(answer, "code", []byte(`"`+codeConfigMismatch+`"`)))
		return nil
	}
	return writeProcedure(w, http.StatusOK, answer)
}

// streamState reads the state rows of one (query, source partition).
func (s *Server) streamState(w http.ResponseWriter, r *http.Request) error {
	body, err := s.readBody(w, r, nil)
	if err != nil {
		return err
	}
	members, err := decodeObject(body)
	if err != nil {
		return newError(codeBadBody, "request body must be a JSON object")
	}
	var ids [2]uuid.UUID
	for i, name := range [...]string{"query_id", "partition_id"} {
		text, err := stringMember(members, name)
		if err != nil {
			return err
		}
		if text == "" {
			refused := newError(codeBadBody, "query_id and partition_id are required")
			refused.body = []byte(`{"success":false,"error":"query_id and partition_id are required","code":"bad_body","rows":[]}`)
			return refused
		}
		var ok bool
		if ids[i], ok = parseUUID(text); !ok {
			return newError(codeBadBody, "bad body: "+name+" must be a UUID")
		}
	}
	var filter stream.Filter
	if raw, ok := present(members, "keys"); ok {
		if err := jsonv2.Unmarshal(raw, &filter.Keys); err != nil {
			return newError(codeBadBody, "bad body: keys must be an array of strings")
		}
	}
	if filter.Prefix, err = stringMember(members, "key_prefix"); err != nil {
		return err
	}
	if raw, ok := present(members, "ripe_at_or_before"); ok {
		var n float64
		if err := jsonv2.Unmarshal(raw, &n); err != nil {
			return newError(codeBadBody, "bad body: ripe_at_or_before must be a number of milliseconds")
		}
		filter.RipeAtOrBefore = raw
	}
	return relay(w)(s.deps.Streamer.State(r.Context(), tenantOf(r), ids[0], ids[1], filter))
}

// streamRipe lists idle partitions whose windows have ended, for runners that close them.
func (s *Server) streamRipe(w http.ResponseWriter, r *http.Request) error {
	body, err := s.readBody(w, r, nil)
	if err != nil {
		return err
	}
	members, err := requiredObject(body)
	if err != nil {
		return err
	}
	var request struct {
		Query uuid.UUID `json:"query_id"`
		Group string    `json:"consumer_group"`
		Grace float64   `json:"grace_ms"`
		Idle  float64   `json:"idle_ms"`
		Limit int64     `json:"limit"`
	}
	if request.Query, err = uuidMember(members, "query_id"); err != nil {
		return err
	}
	if request.Group, err = stringMember(members, "consumer_group"); err != nil {
		return err
	}
	if fault := nameFault(request.Group); fault != "" {
		return newError(codeInvalidName, "consumer_group "+fault)
	}
	for _, span := range []struct {
		name string
		into *float64
	}{{"grace_ms", &request.Grace}, {"idle_ms", &request.Idle}} {
		if raw, ok := present(members, span.name); ok {
			if err := jsonv2.Unmarshal(raw, span.into); err != nil || *span.into < 0 || *span.into > maxRipeSpanMs {
				return newError(codeBadBody, fmt.Sprintf("bad body: %s must be a number of milliseconds from 0 to %d", span.name, int64(maxRipeSpanMs)))
			}
		}
	}
	limit, err := integerMember(members, "limit")
	if err != nil {
		return err
	}
	request.Limit = 100
	if limit != nil {
		request.Limit = *limit
	}
	if request.Limit < 1 || request.Limit > 1000 {
		return newError(codeBadBody, "bad body: limit must be from 1 to 1000")
	}
	element, err := json.Marshal(request)
	if err != nil {
		return err
	}
	return relay(w)(s.deps.Store.StreamRipe(r.Context(), tenantOf(r), element))
}

// maxRipeSpanMs is ten years: more is a mistake, and far more would overflow the database's intervals.
const maxRipeSpanMs = 10 * 366 * 24 * 3600 * 1000

// uuidMember reads a required UUID.
func uuidMember(members map[string]jsontext.Value, name string) (uuid.UUID, error) {
	text, err := stringMember(members, name)
	if err != nil {
		return uuid.Nil, err
	}
	if text == "" {
		return uuid.Nil, newError(codeBadBody, name+" is required")
	}
	id, ok := parseUUID(text)
	if !ok {
		return uuid.Nil, newError(codeBadBody, "bad body: "+name+" must be a UUID")
	}
	return id, nil
}
