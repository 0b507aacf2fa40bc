package api

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"

	"queenmq/internal/pg"
)

// listGroups lists every (group, queue) with its lag.
func (s *Server) listGroups(w http.ResponseWriter, r *http.Request) error {
	return relay(w)(s.deps.Store.ConsumerGroups(r.Context(), tenantOf(r)))
}

// The orders of the lists that can be paged through in any; a minus in front turns one around.
var (
	groupOrders          = []string{"name", "queue", "lag", "partitions", "age"}
	groupPartitionOrders = []string{"name", "lag", "age", "attempts", "consumed"}
	streamOrders         = []string{"name", "source", "sink", "created", "updated"}
	queueOrders          = []string{"name", "pending", "processing", "dead", "stored", "in", "partitions", "size", "namespace", "created"}
)

// order reads the parameter sort, which must be one of a list when it is there.
func (q lenientQuery) order(orders []string) (string, error) {
	sort := q.text("sort")
	if sort != "" && !slices.Contains(orders, strings.TrimPrefix(sort, "-")) {
		return "", newError(codeInvalidParameter, "sort must be one of "+strings.Join(orders, ", ")+", with - in front for the other direction, not "+quoteShort(sort))
	}
	return sort, nil
}

// groupPage lists the groups page by page, in the order that the caller wants.
func (s *Server) groupPage(w http.ResponseWriter, r *http.Request) error {
	q := lenient(r)
	sort, err := q.order(groupOrders)
	if err != nil {
		return err
	}
	filter := pg.GroupFilter{
		Queue: q.text("queue"), Group: q.text("group"), Contains: q.text("contains"), Behind: q.boolean("behind", false), NeverConsumed: q.boolean("neverConsumed", false),
		MinLagSeconds: q.integer("minLagSeconds", 0, 0, math.MaxInt32), Sort: sort, Cursor: q.text("cursor"),
	}
	filter.Limit, _ = q.page(100)
	return relay(w)(s.deps.Store.ListGroups(r.Context(), tenantOf(r), filter))
}

// groupPartitions lists the cursors of a group page by page, in the order that the caller wants.
func (s *Server) groupPartitions(w http.ResponseWriter, r *http.Request) error {
	q := lenient(r)
	sort, err := q.order(groupPartitionOrders)
	if err != nil {
		return err
	}
	filter := pg.GroupPartitionFilter{
		Queue: q.text("queue"), Contains: q.text("contains"), Behind: q.boolean("behind", false), Leased: q.boolean("leased", false), Abandoned: q.boolean("abandoned", false),
		Sort: sort, Cursor: q.text("cursor"),
	}
	filter.Limit, _ = q.page(100)
	return relay(w)(s.deps.Store.ListGroupPartitions(r.Context(), tenantOf(r), r.PathValue("group"), filter))
}

// defaultLagSeconds is the lag from which on a partition is listed as lagging, unless the caller says otherwise.
const defaultLagSeconds = 3600

// laggingPartitions lists (group, partition) pairs that are further behind than a number of seconds.
func (s *Server) laggingPartitions(w http.ResponseWriter, r *http.Request) error {
	least := lenient(r).integer("minLagSeconds", defaultLagSeconds, 0, math.MaxInt32)
	return relay(w)(s.deps.Store.LaggingPartitions(r.Context(), tenantOf(r), least))
}

// getGroup describes one group, queue by queue; an unknown group is an empty object.
func (s *Server) getGroup(w http.ResponseWriter, r *http.Request) error {
	return relay(w)(s.deps.Store.ConsumerGroupDetails(r.Context(), tenantOf(r), r.PathValue("group")))
}

// setSubscription moves the time from which on a group reads partitions that it has not touched yet.
func (s *Server) setSubscription(w http.ResponseWriter, r *http.Request) error {
	members, err := s.readObject(w, r)
	if err != nil {
		return err
	}
	timestamp, err := stringMember(members, "subscriptionTimestamp")
	if err != nil || timestamp == "" {
		return newError(codeBadBody, "subscriptionTimestamp is required")
	}
	tenant, group := tenantOf(r), r.PathValue("group")
	answer, err := s.deps.Store.SetGroupSubscription(r.Context(), tenant, group, timestamp)
	if err != nil {
		return badTime(err, "subscriptionTimestamp", timestamp)
	}
	s.deps.GroupChanged(tenant, "", group)
	return writeProcedure(w, http.StatusOK, answer)
}

// badTime explains the database's refusal of a time that the caller gave. Other errors stay as they are.
func badTime(err error, name, given string) error {
	if given == "" || !errors.Is(err, pg.ErrBadData) {
		return err
	}
	refused := newError(codeInvalidParameter, name+" "+quoteShort(given)+" is not a time; write ISO 8601, for example 2026-09-14T06:00:00Z")
	refused.cause = err
	return refused
}

// badRange is badTime for the time range of a query.
func badRange(err error, from, to string) error {
	if from != "" {
		return badTime(err, "from or to", from+" / "+to)
	}
	return badTime(err, "to", to)
}

// seekGroup moves the cursors of a group in all partitions of a queue.
func (s *Server) seekGroup(w http.ResponseWriter, r *http.Request) error {
	body, err := s.readBody(w, r, nil)
	if err != nil {
		return err
	}
	target, dryRun, err := decodeSeek(body, false)
	if err != nil {
		return err
	}
	tenant, group, queue := tenantOf(r), r.PathValue("group"), r.PathValue("queue")
	if dryRun {
		answer, err := s.deps.Store.SeekPreview(r.Context(), tenant, group, queue, nil, target)
		return previewed(w, target, answer, err)
	}
	answer, err := s.deps.Store.SeekGroup(r.Context(), tenant, group, queue, target)
	return s.sought(w, r, target, answer, err)
}

// seekPartition moves the cursor of a group in one partition.
func (s *Server) seekPartition(w http.ResponseWriter, r *http.Request) error {
	body, err := s.readBody(w, r, nil)
	if err != nil {
		return err
	}
	target, dryRun, err := decodeSeek(body, true)
	if err != nil {
		return err
	}
	tenant, group, queue := tenantOf(r), r.PathValue("group"), r.PathValue("queue")
	if dryRun {
		partition := r.PathValue("partition")
		answer, err := s.deps.Store.SeekPreview(r.Context(), tenant, group, queue, &partition, target)
		return previewed(w, target, answer, err)
	}
	answer, err := s.deps.Store.SeekPartition(r.Context(), tenant, group, queue, r.PathValue("partition"), target)
	return s.sought(w, r, target, answer, err)
}

// previewed ends both previews.
func previewed(w http.ResponseWriter, target pg.SeekTarget, answer json.RawMessage, err error) error {
	if err != nil {
		return badTime(err, "timestamp", target.Timestamp)
	}
	return writeProcedure(w, http.StatusOK, answer)
}

// sought ends both seeks: what this broker remembers of the group is dropped before the client is answered, the other brokers
// follow the marker that the seek left in the database.
func (s *Server) sought(w http.ResponseWriter, r *http.Request, target pg.SeekTarget, answer json.RawMessage, err error) error {
	if err != nil {
		return badTime(err, "timestamp", target.Timestamp)
	}
	s.deps.GroupChanged(tenantOf(r), r.PathValue("queue"), r.PathValue("group"))
	return writeProcedure(w, http.StatusOK, answer)
}

// decodeSeek reads {"toEnd": true}, {"timestamp": text}, {"offset": n} or {"group": another one}, and whether the seek is only to be tried out ("dryRun": true).
// With endWhenEmpty, no body and a body without a target mean to the end, as clients send them for one partition.
func decodeSeek(body []byte, endWhenEmpty bool) (target pg.SeekTarget, dryRun bool, err error) {
	badBody := newError(codeBadBody, "bad body")
	if endWhenEmpty && isEmpty(body) {
		return pg.SeekTarget{ToEnd: true}, false, nil
	}
	members, err := decodeObject(body)
	if err != nil {
		return target, false, badBody
	}
	var given [3]bool
	if target.ToEnd, given[0], err = boolMember(members, "toEnd"); err != nil {
		return target, false, badBody
	}
	if target.Timestamp, err = stringMember(members, "timestamp"); err != nil {
		return target, false, badBody
	}
	if target.Offset, err = integerMember(members, "offset"); err != nil {
		return target, false, badBody
	}
	if target.Group, err = stringMember(members, "group"); err != nil {
		return target, false, badBody
	}
	if dryRun, _, err = boolMember(members, "dryRun"); err != nil {
		return target, false, badBody
	}
	given[1], given[2] = target.Timestamp != "", target.Offset != nil
	switch {
	case target.ToEnd: // wins over a timestamp, as it always has
		return pg.SeekTarget{ToEnd: true}, dryRun, nil
	case target.Group != "" && (given[1] || given[2]):
		return target, false, newError(codeBadBody, "bad body: give a group, a timestamp or an offset, not several of them")
	case target.Group != "":
		return target, dryRun, nil
	case given[1] && given[2]:
		return target, false, newError(codeBadBody, "bad body: give a timestamp or an offset, not both")
	case given[2] && *target.Offset < 0:
		return target, false, newError(codeBadBody, "bad body: offset must not be negative")
	case given[1] || given[2]:
		return target, dryRun, nil
	case endWhenEmpty && !given[0]:
		return pg.SeekTarget{ToEnd: true}, dryRun, nil
	}
	return target, false, newError(codeBadBody, "Must specify toEnd=true or a timestamp")
}

// deleteGroup forgets a group in all queues: its next pop is a first contact again.
func (s *Server) deleteGroup(w http.ResponseWriter, r *http.Request) error {
	tenant, group := tenantOf(r), r.PathValue("group")
	answer, err := s.deps.Store.DeleteGroup(r.Context(), tenant, group, lenient(r).boolean("deleteMetadata", true))
	if err != nil {
		return err
	}
	s.deps.GroupChanged(tenant, "", group)
	return writeProcedure(w, http.StatusOK, answer)
}

// deleteGroupForQueue forgets a group in one queue.
func (s *Server) deleteGroupForQueue(w http.ResponseWriter, r *http.Request) error {
	tenant, group, queue := tenantOf(r), r.PathValue("group"), r.PathValue("queue")
	answer, err := s.deps.Store.DeleteGroupForQueue(r.Context(), tenant, group, queue, lenient(r).boolean("deleteMetadata", true))
	if err != nil {
		return err
	}
	s.deps.GroupChanged(tenant, queue, group)
	return writeProcedure(w, http.StatusOK, answer)
}
