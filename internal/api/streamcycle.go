package api

import (
	"encoding/json/jsontext"
	jsonv2 "encoding/json/v2"
	"fmt"
	"net/http"

	"github.com/google/uuid"

	"queenmq/internal/engine/push"
	"queenmq/internal/engine/segment"
	"queenmq/internal/engine/stream"
	"queenmq/internal/pg"
)

// streamCycle commits one cycle. A cycle that was rolled back is answered 200 with success:false, which runners read.
func (s *Server) streamCycle(w http.ResponseWriter, r *http.Request) error {
	members, err := s.readObject(w, r)
	if err != nil {
		return err
	}
	cycle, err := decodeCycle(members)
	if err != nil {
		return err
	}
	answer, err := s.deps.Streamer.Run(r.Context(), tenantOf(r), subjectOf(r), cycle)
	if err != nil {
		return err
	}
	_ = writeJSON(w, http.StatusOK, answer) // committed whether the client reads it or not
	return nil
}

// maxCycleItems is the most messages and the most state operations of one cycle. All of them hold their locks until the one commit.
const maxCycleItems = 10_000

func decodeCycle(members map[string]jsontext.Value) (stream.Cycle, error) {
	var cycle stream.Cycle
	for _, id := range []struct {
		name string
		into *uuid.UUID
	}{{"query_id", &cycle.QueryID}, {"partition_id", &cycle.PartitionID}} {
		var err error
		if *id.into, err = uuidMember(members, id.name); err != nil {
			return cycle, err
		}
	}
	var err error
	if cycle.Group, err = stringMember(members, "consumer_group"); err != nil {
		return cycle, err
	}
	if fault := nameFault(cycle.Group); fault != "" {
		return cycle, newError(codeInvalidName, "consumer_group "+fault)
	}
	operations, err := arrayMember(members, "state_ops")
	if err != nil {
		return cycle, err
	}
	if len(operations) > 0 {
		cycle.StateOps = members["state_ops"]
	}
	expected, err := arrayMember(members, "if_state")
	if err != nil {
		return cycle, err
	}
	for i, element := range expected {
		inner, err := decodeObject(element)
		if err == nil {
			_, err = stringMember(inner, "key")
		}
		if err != nil {
			return cycle, newError(codeBadBody, fmt.Sprintf("bad body: if_state element %d must be an object with a key", i))
		}
	}
	if len(expected) > 0 {
		cycle.IfState = members["if_state"]
	}
	elements, err := arrayMember(members, "push_items")
	if err != nil {
		return cycle, err
	}
	for i, element := range elements {
		item, skip, err := decodeSinkItem(element, i)
		if err != nil {
			return cycle, err
		}
		if !skip {
			cycle.Items = append(cycle.Items, item)
		}
	}
	release, given, err := boolMember(members, "release_lease")
	if err != nil {
		return cycle, err
	}
	cycle.KeepLease = given && !release
	return cycle, decodeCycleAck(members, &cycle)
}

// arrayMember returns the elements of an array; absent and null are empty.
func arrayMember(members map[string]jsontext.Value, name string) ([]jsontext.Value, error) {
	raw, ok := present(members, name)
	if !ok {
		return nil, nil
	}
	var elements []jsontext.Value
	if err := jsonv2.Unmarshal(raw, &elements, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return nil, newError(codeBadBody, fmt.Sprintf("bad body: %s must be an array", name))
	}
	if len(elements) > maxCycleItems {
		return nil, newError(codeBatchTooLarge, fmt.Sprintf("more than %d elements in %s; commit smaller cycles", maxCycleItems, name))
	}
	return elements, nil
}

// decodeSinkItem reads one message for a sink; one without a queue is skipped. A message id that the caller gives stands in
// for a missing transaction id; the stored message id is made here, because ids must grow along a partition.
func decodeSinkItem(element jsontext.Value, index int) (item push.Item, skip bool, err error) {
	members, err := decodeObject(element)
	if err != nil {
		return item, false, newError(codeBadBody, fmt.Sprintf("bad body: push_items element %d must be an object", index))
	}
	messageID := ""
	for _, member := range []struct {
		name string
		into *string
	}{{"queue", &item.Queue}, {"partition", &item.Partition}, {"transactionId", &item.TransactionID}, {"messageId", &messageID}} {
		if *member.into, err = stringMember(members, member.name); err != nil {
			return item, false, err
		}
		if hasControl(*member.into) {
			return item, false, newError(codeBadBody, "bad body: "+controlCharactersText)
		}
	}
	if item.Queue == "" {
		return item, true, nil
	}
	if item.Partition == "" {
		item.Partition = defaultPartition
	}
	if fault := queueFault(item.Queue); fault != "" {
		return item, false, newError(codeInvalidName, fmt.Sprintf("queue of push_items element %d %s", index, fault))
	}
	if fault := partitionFault(item.Partition); fault != "" {
		return item, false, newError(codeInvalidName, fmt.Sprintf("partition of push_items element %d %s", index, fault))
	}
	if id, ok := parseUUID(messageID); ok && item.TransactionID == "" {
		item.TransactionID = id.String()
	}
	if len(item.TransactionID) > maxTransactionIDBytes {
		return item, false, newError(codeBadBody, fmt.Sprintf("bad body: transactionId of push_items element %d exceeds the %d-byte limit", index, maxTransactionIDBytes))
	}
	var trace string
	if raw, ok := present(members, "traceId"); ok && jsonv2.Unmarshal(raw, &trace) == nil {
		if id, ok := parseUUID(trace); ok {
			item.TraceID = uuid.NullUUID{UUID: id, Valid: true}
		}
	}
	if raw, ok := present(members, "traceparent"); ok && jsonv2.Unmarshal(raw, &trace) == nil {
		item.Context = segment.ParseTraceparent([]byte(trace))
	}
	item.Payload = []byte("{}")
	for _, name := range [...]string{"data", "payload"} { // payload wins
		if raw, ok := members[name]; ok {
			item.Payload = raw
		}
	}
	return item, false, nil
}

// decodeCycleAck reads the ack of the source batch; none leaves the cursor alone.
func decodeCycleAck(members map[string]jsontext.Value, cycle *stream.Cycle) error {
	raw, ok := present(members, "ack")
	if !ok {
		return nil
	}
	inner, err := decodeObject(raw)
	if err != nil {
		return newError(codeBadBody, "bad body: ack must be an object")
	}
	if cycle.Worker, err = stringMember(inner, "leaseId"); err != nil {
		return err
	}
	status, err := stringMember(inner, "status")
	if err != nil {
		return err
	}
	count, err := integerMember(inner, "count")
	if err != nil {
		return err
	}
	cycle.Ack = &pg.StreamAck{}
	switch status {
	case "", "completed", "success", "acked", "ok":
		cycle.Ack.OK = true
	}
	if count != nil {
		cycle.Ack.Count = max(*count, 0)
	}
	return nil
}
