package api

import (
	"context"
	"encoding/json"
	"encoding/json/jsontext"
	jsonv2 "encoding/json/v2"
	"fmt"
	"net/http"

	"github.com/google/uuid"

	"queenmq/internal/pg"
)

// Traces are what clients record about messages; browse.Traces is one that encrypts what encrypted queues demand.
type Traces interface {
	RecordTrace(ctx context.Context, tenant uuid.UUID, record pg.TraceRecord) (json.RawMessage, error)
	MessageTraces(ctx context.Context, tenant, partition uuid.UUID, transactionID string) (json.RawMessage, error)
	TracesByName(ctx context.Context, tenant uuid.UUID, name string, page pg.TracePage) (json.RawMessage, error)
}

// maxTraceTransactionID is what the column of recorded traces holds, in characters.
const maxTraceTransactionID = 255

// recordTrace notes an event about a message. The message need not be there any more.
func (s *Server) recordTrace(w http.ResponseWriter, r *http.Request) error {
	body, err := s.readBody(w, r, nil)
	if err != nil {
		return err
	}
	record, err := decodeTrace(body)
	if err != nil {
		return err
	}
	tenant := tenantOf(r)
	_, _, ok, err := s.namesOf(r.Context(), tenant, record.PartitionID)
	if err != nil {
		return err
	}
	if !ok {
		refused := newError(codeNotFound, "Message not found")
		refused.body = []byte(`{"success":false,"error":"Message not found","code":"not_found"}`)
		return refused
	}
	answer, err := s.deps.Traces.RecordTrace(r.Context(), tenant, record)
	if err != nil {
		return err
	}
	return writeProcedure(w, http.StatusCreated, answer)
}

// namesOf returns the names of a partition of the tenant; false for an unknown one and for another tenant's.
func (s *Server) namesOf(ctx context.Context, tenant, partition uuid.UUID) (queue, name string, ok bool, err error) {
	owner, queue, name, found, err := s.deps.Store.PartitionOwner(ctx, partition)
	if err != nil || !found || owner != tenant {
		return "", "", false, err
	}
	return queue, name, true, nil
}

func decodeTrace(body []byte) (pg.TraceRecord, error) {
	record := pg.TraceRecord{Group: pg.QueueModeGroup, EventType: "info"}
	members, err := requiredObject(body)
	if err != nil {
		return record, err
	}
	partition, group, event := "", "", ""
	for _, member := range []struct {
		name string
		into *string
	}{{"transactionId", &record.TransactionID}, {"partitionId", &partition}, {"consumerGroup", &group}, {"eventType", &event}} {
		if *member.into, err = stringMember(members, member.name); err != nil {
			return record, err
		}
	}
	if group != "" {
		record.Group = group
	}
	if event != "" {
		record.EventType = event
	}
	data, ok := present(members, "data")
	switch {
	case record.TransactionID == "" || partition == "":
		return record, newError(codeBadBody, "transactionId and partitionId are required")
	case !ok:
		return record, newError(codeBadBody, "data is required")
	}
	for _, bound := range [...]struct {
		name, value string
		most        int
	}{{"transactionId", record.TransactionID, maxTraceTransactionID}, {"consumerGroup", record.Group, maxNameCharacters}, {"eventType", record.EventType, 100}} {
		if len([]rune(bound.value)) > bound.most {
			return record, newError(codeBadBody, fmt.Sprintf("bad body: %s is longer than %d characters, which traces cannot hold", bound.name, bound.most))
		}
	}
	record.PartitionID, ok = parseUUID(partition)
	if !ok {
		record.PartitionID = uuid.Nil // an id that no partition has
	}
	record.Data = []byte(data)
	record.Names = traceNames(members)
	return record, nil
}

// traceNames reads a list of names or a single one; whatever else stands there is no name.
func traceNames(members map[string]jsontext.Value) []string {
	raw, ok := present(members, "traceNames")
	if !ok {
		return nil
	}
	var one string
	if jsonv2.Unmarshal(raw, &one) == nil {
		if one == "" {
			return nil
		}
		return []string{one}
	}
	var many []jsontext.Value
	if jsonv2.Unmarshal(raw, &many) != nil {
		return nil
	}
	var names []string
	for _, element := range many {
		if jsonv2.Unmarshal(element, &one) == nil && one != "" {
			names = append(names, one)
		}
	}
	return names
}

// messageTraces lists what was recorded about one message, oldest first.
func (s *Server) messageTraces(w http.ResponseWriter, r *http.Request) error {
	partition, ok := parseUUID(r.PathValue("partitionId"))
	if !ok {
		return writeJSON(w, http.StatusOK, []byte(`{"traces":[]}`))
	}
	return relay(w)(s.deps.Traces.MessageTraces(r.Context(), tenantOf(r), partition, r.PathValue("transactionId")))
}

// tracesByName lists what was recorded under a name, oldest first.
func (s *Server) tracesByName(w http.ResponseWriter, r *http.Request) error {
	return relay(w)(s.deps.Traces.TracesByName(r.Context(), tenantOf(r), r.PathValue("traceName"), tracePage(r, 100)))
}

// listTraceNames lists the names under which something was recorded, the most recent first.
func (s *Server) listTraceNames(w http.ResponseWriter, r *http.Request) error {
	return relay(w)(s.deps.Store.TraceNames(r.Context(), tenantOf(r), tracePage(r, 50)))
}

// tracePage reads which page a list of traces shows.
func tracePage(r *http.Request, limit int) pg.TracePage {
	q := lenient(r)
	page := pg.TracePage{Contains: q.text("contains"), Cursor: q.text("cursor")}
	page.Limit, page.Offset = q.page(limit)
	return page
}
