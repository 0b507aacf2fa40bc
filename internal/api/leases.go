package api

import (
	"net/http"

	"queenmq/internal/pg"
)

// listLeases lists the live leases, or with abandoned=true the batches whose holder let the lease run out.
func (s *Server) listLeases(w http.ResponseWriter, r *http.Request) error {
	q := lenient(r)
	filter := pg.LeaseFilter{
		Queue: q.text("queue"), Partition: q.text("partition"), Group: q.text("consumerGroup"),
		ExpiringWithin: q.optionalInteger("expiringWithinSeconds"), HeldLonger: q.optionalInteger("heldLongerThanSeconds"),
		MinAttempts: q.optionalInteger("minAttempts"), Abandoned: q.boolean("abandoned", false),
	}
	filter.Limit, filter.Offset = q.page(100)
	return relay(w)(s.deps.Store.Leases(r.Context(), tenantOf(r), filter))
}

// leaseUtilization tells how many partitions of each queue are leased.
func (s *Server) leaseUtilization(w http.ResponseWriter, r *http.Request) error {
	q := lenient(r)
	return relay(w)(s.deps.Store.LeaseUtilization(r.Context(), tenantOf(r), q.text("queue"), q.text("consumerGroup")))
}

// releaseLease ends the lease of one (partition, group), so that its messages are delivered again at once. The holder's later
// acks are refused.
func (s *Server) releaseLease(w http.ResponseWriter, r *http.Request) error {
	members, err := s.readObject(w, r)
	if err != nil {
		return err
	}
	var partition, group, lease string
	for _, member := range []struct {
		name string
		into *string
	}{{"partitionId", &partition}, {"consumerGroup", &group}, {"leaseId", &lease}} {
		if *member.into, err = stringMember(members, member.name); err != nil {
			return err
		}
	}
	if partition == "" {
		return newError(codeBadBody, "partitionId is required")
	}
	if group == "" {
		group = pg.QueueModeGroup
	}
	id, ok := parseUUID(partition)
	if !ok {
		return newError(codeNotFound, "Partition not found")
	}
	tenant := tenantOf(r)
	answer, err := s.deps.Store.ReleaseLeaseOf(r.Context(), tenant, id, group, lease)
	if err != nil {
		return err
	}
	// The wake is a convenience: a parked poll looks again by itself.
	if queue, partition, ok, err := s.namesOf(r.Context(), tenant, id); ok && err == nil {
		s.deps.Wake(tenant, queue, partition)
	}
	return writeProcedure(w, http.StatusOK, answer)
}
