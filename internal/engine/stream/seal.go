package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"queenmq/internal/engine/push"
	"queenmq/internal/pg"
)

// ErrUndecryptable says that stored state cannot be opened although no key is missing: it was changed, or moved to where it does not belong.
var ErrUndecryptable = errors.New("stored state of a streaming query cannot be decrypted")

// A Ring encrypts the state of queries over encrypted queues; *secret.Ring is one.
type Ring interface {
	// Names are what a row may be called, by the active key first.
	Names(scope []byte, name string) []string
	IDs() []string
	Seal(payload []byte) []byte
	Open(envelope []byte) ([]byte, error)
}

// A row is what an envelope holds.
type row struct {
	// Query and Partition are where the row belongs.
	Query     uuid.UUID       `json:"query"`
	Partition uuid.UUID       `json:"partition"`
	Key       string          `json:"key"`
	Value     json.RawMessage `json:"value"`
}

// scope is what names are made in: the rows of one query and one partition.
func scope(query, partition uuid.UUID) []byte { return append(query[:], partition[:]...) }

// open returns the row of an envelope that is stored as name. An envelope that was taken from another row is not opened.
func open(ring Ring, query, partition uuid.UUID, name, sealed string) (row, error) {
	var r row
	plain, err := ring.Open([]byte(sealed))
	if err != nil {
		return r, fmt.Errorf("%w: %w", ErrUndecryptable, err)
	}
	err = json.Unmarshal(plain, &r)
	if err != nil || r.Query != query || r.Partition != partition || !slices.Contains(ring.Names(scope(query, partition), r.Key), name) {
		return r, fmt.Errorf("%w: it was written for another place", ErrUndecryptable)
	}
	return r, nil
}

// NameOf returns the name that the active key gives to an encrypted row, which is stored under another key's name. Errors: [ErrUndecryptable].
func NameOf(ring Ring, query, partition, name uuid.UUID, sealed []byte) (uuid.UUID, error) {
	r, err := open(ring, query, partition, name.String(), string(sealed))
	if err != nil {
		return uuid.Nil, err
	}
	return uuid.Parse(ring.Names(scope(query, partition), r.Key)[0])
}

// outside is the part of a value that the database compares: when its window ends.
func outside(value json.RawMessage) json.RawMessage {
	var w struct {
		End json.RawMessage `json:"windowEnd"`
	}
	if json.Unmarshal(value, &w) == nil && len(w.End) > 0 && (w.End[0] == '-' || w.End[0] >= '0' && w.End[0] <= '9') {
		return json.RawMessage(`{"windowEnd":` + string(w.End) + `}`)
	}
	return json.RawMessage(`{}`)
}

// A sealedOp is a state operation whose row is encrypted.
type sealedOp struct {
	Type    string          `json:"type"`
	Key     string          `json:"key"`
	Value   json.RawMessage `json:"value,omitempty"`
	Sealed  string          `json:"sealed,omitempty"`
	Aliases []string        `json:"aliases"`
}

// sealOps encrypts the rows of state operations. What is no operation is left to the database, which refuses it.
func sealOps(ring Ring, query, partition uuid.UUID, ops json.RawMessage) (json.RawMessage, error) {
	if len(ops) == 0 {
		return nil, nil
	}
	if !utf8.Valid(ops) {
		return nil, fmt.Errorf("state_ops: %w", pg.ErrBadData)
	}
	var all []json.RawMessage
	if err := json.Unmarshal(ops, &all); err != nil {
		return nil, fmt.Errorf("state_ops: %w", pg.ErrBadData)
	}
	for i, raw := range all {
		var op struct {
			Type  *string         `json:"type"`
			Key   *string         `json:"key"`
			Value json.RawMessage `json:"value"`
		}
		if json.Unmarshal(raw, &op) != nil || op.Type == nil || op.Key == nil || *op.Type != "upsert" && *op.Type != "delete" {
			all[i] = json.RawMessage(`{"type":` + typeOf(op.Type) + `}`)
			continue
		}
		names := ring.Names(scope(query, partition), *op.Key)
		sealed := sealedOp{Type: *op.Type, Key: names[0], Aliases: append(names[1:], *op.Key)}
		if sealed.Type == "upsert" {
			if op.Value == nil {
				op.Value = json.RawMessage(`{}`)
			}
			plain, err := json.Marshal(row{query, partition, *op.Key, op.Value})
			if err != nil {
				return nil, fmt.Errorf("state_ops: %w", pg.ErrBadData)
			}
			sealed.Value, sealed.Sealed = outside(op.Value), string(ring.Seal(plain))
		}
		text, err := json.Marshal(sealed)
		if err != nil {
			return nil, err
		}
		all[i] = text
	}
	return json.Marshal(all)
}

// typeOf is the type of an operation that will be refused, without what else it has.
func typeOf(name *string) string {
	if name == nil {
		return "null"
	}
	text, _ := json.Marshal(*name) // a string always encodes
	return string(text)
}

// An expectation is what a row must be like for the cycle to be committed, in the words of log_streams_expect_v1.
type expectation struct {
	Shown  string          `json:"shown"`
	Key    *string         `json:"key,omitempty"`
	Sealed *string         `json:"sealed,omitempty"`
	Value  json.RawMessage `json:"value,omitempty"`
	Names  []string        `json:"names"`
}

// never is an envelope that no row has.
const never = "-"

// sealExpected reads the rows that a cycle expects something of and compares them here, because the database cannot. What it is told to
// compare is that the rows are still those that were read. differs says that some are not as expected, so that the cycle will be refused.
func (s *Server) sealExpected(ctx context.Context, tenant uuid.UUID, c Cycle) (expected json.RawMessage, differs bool, err error) {
	if len(c.IfState) == 0 {
		return nil, false, nil
	}
	var wanted []struct {
		Key   string          `json:"key"`
		Value json.RawMessage `json:"value"`
	}
	if err := json.Unmarshal(c.IfState, &wanted); err != nil {
		return nil, false, fmt.Errorf("if_state: %w", pg.ErrBadData)
	}
	scope := scope(c.QueryID, c.PartitionID)
	keys := make([]string, len(wanted))
	for i := range wanted {
		keys[i] = wanted[i].Key
	}
	stored, err := s.read(ctx, tenant, c.QueryID, c.PartitionID, map[string]any{"keys": keys})
	if err != nil {
		return nil, false, err
	}
	rows := make(map[string]storedRow, len(stored.Rows))
	for _, r := range stored.Rows {
		if r.Sealed != "" {
			inside, err := open(s.cfg.Ring, c.QueryID, c.PartitionID, r.Key, r.Sealed)
			if err != nil {
				return nil, false, err
			}
			r.inside = inside
			rows[inside.Key] = r
		} else if _, known := rows[r.Key]; !known {
			rows[r.Key] = r
		}
	}
	all := make([]expectation, len(wanted))
	for i, w := range wanted {
		e := expectation{Shown: w.Key, Names: append(s.cfg.Ring.Names(scope, w.Key), w.Key)}
		r, found := rows[w.Key]
		value := r.Value
		if r.Sealed != "" {
			value = r.inside.Value
		}
		absent := len(w.Value) == 0 || string(w.Value) == "null"
		switch {
		case !found && absent:
		case found && !absent && equal(value, w.Value):
			e.Key, e.Value = &r.Key, r.Value
			if r.Sealed != "" {
				e.Sealed, e.Value = &r.Sealed, nil
			}
		default:
			differs = true
			refused := never
			e.Sealed = &refused
		}
		all[i] = e
	}
	expected, err = json.Marshal(all)
	return expected, differs, err
}

// A storedRow is a row of streams_state_get_v1.
type storedRow struct {
	Key       string          `json:"key"`
	Value     json.RawMessage `json:"value"`
	UpdatedAt string          `json:"updated_at"`
	Sealed    string          `json:"sealed,omitempty"`
	inside    row
}

type stateAnswer struct {
	Success    bool        `json:"success"`
	Sealed     bool        `json:"sealed,omitempty"`
	KeyMissing bool        `json:"key_missing,omitempty"`
	Rows       []storedRow `json:"rows"`
	raw        json.RawMessage
}

// read asks the database for state. Keys are looked for under each name that they may have. Rows are not opened yet.
func (s *Server) read(ctx context.Context, tenant, query, partition uuid.UUID, filter map[string]any) (stateAnswer, error) {
	var answer stateAnswer
	filter["query_id"], filter["partition_id"] = query, partition
	if s.cfg.Ring != nil {
		filter["ring"] = s.cfg.Ring.IDs()
		if keys, ok := filter["keys"].([]string); ok && len(keys) > 0 {
			names := slices.Clone(keys)
			for _, key := range keys {
				names = append(names, s.cfg.Ring.Names(scope(query, partition), key)...)
			}
			filter["keys"] = names
		}
	}
	request, err := json.Marshal(filter)
	if err != nil {
		return answer, err
	}
	if answer.raw, err = s.db.StreamState(ctx, tenant, request); err != nil {
		return answer, err
	}
	if err := json.Unmarshal(answer.raw, &answer); err != nil {
		return answer, fmt.Errorf("read streaming state: %w: %w", pg.ErrMalformedAnswer, err)
	}
	if answer.KeyMissing || answer.Sealed && s.cfg.Ring == nil {
		return answer, fmt.Errorf("state of query %s: %w", query, push.ErrEncryptionRequired)
	}
	return answer, nil
}

// A Filter chooses rows of state. What is empty chooses all.
type Filter struct {
	Keys   []string
	Prefix string
	// RipeAtOrBefore is a JSON number of epoch milliseconds: rows whose value has such a windowEnd or an earlier one.
	RipeAtOrBefore json.RawMessage
}

// State returns rows of a query's state for one partition, in the shape of the wire and in the order of their keys, decrypted. A query of
// another tenant has none.
//
// Errors: push.ErrEncryptionRequired without a key that is needed, [ErrUndecryptable], those of the database.
func (s *Server) State(ctx context.Context, tenant, query, partition uuid.UUID, f Filter) (json.RawMessage, error) {
	filter := map[string]any{}
	if len(f.Keys) > 0 {
		filter["keys"] = f.Keys
	}
	if f.Prefix != "" {
		filter["key_prefix"] = f.Prefix
	}
	if f.RipeAtOrBefore != nil {
		filter["ripe_at_or_before"] = f.RipeAtOrBefore
	}
	answer, err := s.read(ctx, tenant, query, partition, filter)
	if err != nil || !answer.Sealed {
		return answer.raw, err
	}
	rows := make([]storedRow, 0, len(answer.Rows))
	for _, r := range answer.Rows {
		if r.Sealed != "" {
			inside, err := open(s.cfg.Ring, query, partition, r.Key, r.Sealed)
			if err != nil {
				return nil, err
			}
			r.Key, r.Value, r.Sealed = inside.Key, inside.Value, ""
			if !strings.HasPrefix(r.Key, f.Prefix) {
				continue
			}
		}
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b storedRow) int { return strings.Compare(a.Key, b.Key) })
	return json.Marshal(stateAnswer{Success: true, Rows: rows})
}
