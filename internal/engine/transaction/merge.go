package transaction

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// A mergedAck is all acks of one (partition, group). The database takes one element per pair: of two, the second would find the
// lease released by the first.
type mergedAck struct {
	pg.HashAck
	// operations are the indexes of the operations, parallel to Hashes.
	operations []int
}

// mergeAcks puts the acks of each (partition, group) together, in order of first appearance, and takes over the lease they name.
func mergeAcks(operations []Operation) ([]*mergedAck, error) {
	type address struct {
		partition uuid.UUID
		group     string
	}
	var merged []*mergedAck
	byAddress := make(map[address]*mergedAck)
	for i := range operations {
		one := operations[i].Ack
		if one == nil {
			continue
		}
		partition, err := uuid.Parse(one.PartitionID)
		if err != nil || len(one.PartitionID) != 36 {
			return nil, &pg.TransactionError{Reason: fmt.Sprintf("QTXN ack references partition %s not owned by this tenant", one.PartitionID)}
		}
		at := address{partition, one.Group}
		if at.group == "" {
			at.group = pg.QueueModeGroup
		}
		m, ok := byAddress[at]
		if !ok {
			m = &mergedAck{HashAck: pg.HashAck{PartitionID: partition, Group: at.group}}
			byAddress[at] = m
			merged = append(merged, m)
		}
		if m.Worker != "" && one.LeaseID != "" && m.Worker != one.LeaseID {
			return nil, &pg.TransactionError{Reason: fmt.Sprintf(
				"QTXN ack failed for partition %s group %q: acks name different leases; transaction rolled back", partition, at.group)}
		}
		if one.LeaseID != "" {
			m.Worker = one.LeaseID
		}
		hash := segment.Hash(one.TransactionID)
		m.Hashes = append(m.Hashes, hash[:])
		m.Statuses = append(m.Statuses, ack.Status(one.Status))
		delay, valid := one.RedeliveryDelay()
		if !valid {
			return nil, &pg.TransactionError{Reason: fmt.Sprintf(
				"QTXN ack failed for partition %s group %q: %s; transaction rolled back", partition, at.group, ack.TextDelay)}
		}
		m.DelaysMs = ack.AppendDelay(m.DelaysMs, len(m.Statuses), delay)
		m.operations = append(m.operations, i)
	}
	return merged, nil
}

// nacks are the failure reports among the acks.
func (m *mergedAck) nacks(operations []Operation) []ack.Nack {
	var nacks []ack.Nack
	for k, i := range m.operations {
		if m.Statuses[k] != ack.Completed {
			one := operations[i].Ack
			nacks = append(nacks, ack.Nack{Index: i, TransactionID: one.TransactionID, Status: m.Statuses[k], Error: one.Error})
		}
	}
	return nacks
}

// chooseLeases decides under which lease each ack acts that names none itself. The leases that the request names anywhere are the
// hints:
//
//  1. no hints: none, the lease is not checked;
//  2. the current holder of the partition, when it is one of the hints;
//  3. else a hint. It is not the holder, so that the database refuses: whoever named leases wants them checked, and a consumer
//     whose lease was lost must not acknowledge under the next holder's.
func (s *Server) chooseLeases(ctx context.Context, merged []*mergedAck, operations []Operation, requiredLeases []string) error {
	hints := slices.Clone(requiredLeases)
	for i := range operations {
		if one := operations[i].Ack; one != nil {
			hints = append(hints, one.LeaseID)
		}
	}
	slices.Sort(hints)
	hints = slices.Compact(hints)
	hints = slices.DeleteFunc(hints, func(hint string) bool { return hint == "" })
	if len(hints) == 0 {
		return nil
	}
	for _, m := range merged {
		switch {
		case m.Worker != "":
			continue
		case len(hints) == 1: // the holder or not, there is nothing else to offer
			m.Worker = hints[0]
			continue
		}
		holder, _, err := s.db.PartitionLeaseHolder(ctx, m.PartitionID, m.Group)
		if err != nil {
			return fmt.Errorf("transaction: find the lease holder: %w", err)
		}
		m.Worker = hints[0]
		if slices.Contains(hints, holder) {
			m.Worker = holder
		}
	}
	return nil
}
