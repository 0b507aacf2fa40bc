package api

import (
	"encoding/json"
	"net/http"
	"time"

	"queenmq/internal/pg"
)

func queueFilter(q lenientQuery, limit int) pg.QueueFilter {
	f := pg.QueueFilter{Queue: q.text("queue"), Namespace: q.text("namespace"), Task: q.text("task")}
	f.Limit, f.Offset = q.page(limit)
	return f
}

// listQueues lists the queues, the newest first; with stats=cached as of the last statistics, for pages that poll. Without a
// limit it lists all: clients of the older line page by themselves. With sort it is a list page by page, as of the last statistics.
func (s *Server) listQueues(w http.ResponseWriter, r *http.Request) error {
	q := lenient(r)
	if q.text("sort") != "" {
		return s.queuePage(w, r)
	}
	if q.text("cursor") != "" {
		return newError(codeInvalidParameter, "cursor goes with sort: give the one that the page before had")
	}
	filter := queueFilter(q, 0)
	filter.Limit = q.integer("limit", 0, 1, 100*maxPageLimit)
	filter.Cached = q.text("stats") == "cached"
	return relay(w)(s.deps.Store.ListQueues(r.Context(), tenantOf(r), filter))
}

// queuePage lists the queues page by page, in the order that the caller wants.
func (s *Server) queuePage(w http.ResponseWriter, r *http.Request) error {
	q := lenient(r)
	sort, err := q.order(queueOrders)
	if err != nil {
		return err
	}
	filter := pg.QueuePageFilter{
		Namespace: q.text("namespace"), Task: q.text("task"), Contains: q.text("contains"), Pending: q.boolean("pending", false), Dead: q.boolean("dead", false),
		Bounded: q.boolean("bounded", false), Sort: sort, Cursor: q.text("cursor"),
	}
	filter.Limit, _ = q.page(100)
	return relay(w)(s.deps.Store.QueuePage(r.Context(), tenantOf(r), filter))
}

// getQueue describes one queue with its partitions, at most maxPageLimit of them.
func (s *Server) getQueue(w http.ResponseWriter, r *http.Request) error {
	return relay(w)(s.deps.Store.QueueSummary(r.Context(), tenantOf(r), r.PathValue("queue"), partitionPage(lenient(r))))
}

// partitionPage reads which partitions a detail of a queue shows. Clients of the older line name no page and see the first one,
// which holds every partition of all but the widest queues.
func partitionPage(q lenientQuery) pg.PartitionPage {
	page := pg.PartitionPage{Cursor: q.text("cursor")}
	page.Limit, _ = q.page(maxPageLimit)
	return page
}

// queueOptions shows the stored options of a queue, in the form that configure takes.
func (s *Server) queueOptions(w http.ResponseWriter, r *http.Request) error {
	answer, err := s.deps.Store.QueueOptionsOf(r.Context(), tenantOf(r), r.PathValue("queue"))
	if err == nil && answer == nil {
		err = newError(codeNotFound, "Queue not found")
	}
	return relay(w)(answer, err)
}

// queuePartitions lists the partitions of a queue page by page, in a stable order.
func (s *Server) queuePartitions(w http.ResponseWriter, r *http.Request) error {
	q := lenient(r)
	page := pg.PartitionPage{Prefix: q.text("prefix"), Group: q.text("group"), Sort: q.text("sort"), Cursor: q.text("cursor"), Leases: q.boolean("leases", false)}
	page.Limit, _ = q.page(100)
	switch page.Sort {
	case "":
		page.Sort = "name"
	case "name", "depth", "age":
	default:
		return newError(codeInvalidParameter, "sort must be name, depth or age, not "+quoteShort(page.Sort))
	}
	return relay(w)(s.deps.Store.ListPartitions(r.Context(), tenantOf(r), r.PathValue("queue"), page))
}

// queueDepth counts the messages that a group has not consumed, partition by partition.
func (s *Server) queueDepth(w http.ResponseWriter, r *http.Request) error {
	return relay(w)(s.deps.Store.QueueDepth(r.Context(), tenantOf(r), r.PathValue("queue"), lenient(r).text("group")))
}

// queueCapacity lists the queues with a maxSize and what room they have.
func (s *Server) queueCapacity(w http.ResponseWriter, r *http.Request) error {
	return relay(w)(s.deps.Store.QueueCapacity(r.Context(), tenantOf(r), queueFilter(lenient(r), maxPageLimit)))
}

// deleteQueue deletes a queue with all its partitions, messages, cursors and dead letters. A queue that is not there is no
// error: the answer says so.
func (s *Server) deleteQueue(w http.ResponseWriter, r *http.Request) error {
	tenant, queue := tenantOf(r), r.PathValue("queue")
	answer, err := s.deps.Store.DeleteQueue(r.Context(), tenant, queue)
	if err != nil {
		return err
	}
	s.deps.QueueChanged(tenant, queue)
	return writeProcedure(w, http.StatusOK, answer)
}

// How much one step of a purge deletes, and for how long one request goes on. Each step commits, so that a purge never holds
// locks for long; a request that reaches the bound says done:false and is sent again.
const (
	purgeStep = 1000
	purgeTime = 20 * time.Second
)

// purgeAnswer is one step, and the sum of the steps, of a purge.
type purgeAnswer struct {
	Queue      string `json:"queue"`
	DryRun     bool   `json:"dryRun"`
	Partitions int64  `json:"partitions"`
	Messages   int64  `json:"messages"`
	Unread     int64  `json:"unread"`
	Done       bool   `json:"done"`
}

// purgeQueue deletes the messages of a queue and keeps the queue, its partitions and its groups.
func (s *Server) purgeQueue(w http.ResponseWriter, r *http.Request) error {
	body, err := s.readBody(w, r, nil)
	if err != nil {
		return err
	}
	options, partition, err := decodePurge(body)
	if err != nil {
		return err
	}
	tenant, queue := tenantOf(r), r.PathValue("queue")
	total := purgeAnswer{Queue: queue, DryRun: options.DryRun}
	for began := time.Now(); ; {
		answer, err := s.deps.Store.PurgeQueue(r.Context(), tenant, queue, partition, options)
		if err != nil {
			return err
		}
		if procedureStatus(answer) != http.StatusOK {
			return writeProcedure(w, http.StatusOK, answer)
		}
		var step purgeAnswer
		if err := json.Unmarshal(answer, &step); err != nil {
			return err
		}
		total.Partitions = max(total.Partitions, step.Partitions)
		total.Messages += step.Messages
		total.Unread += step.Unread
		total.Done = step.Done
		// A step that found nothing to delete and is not done waits for somebody: so can the caller.
		if step.Done || options.DryRun || step.Messages == 0 || time.Since(began) > purgeTime {
			break
		}
	}
	if !options.DryRun {
		s.deps.QueueChanged(tenant, queue)
		s.deps.GroupChanged(tenant, queue, "")
	}
	return writeValue(w, http.StatusOK, total)
}

// decodePurge reads {"partition": text, "mode": "consumed" or "all", "dryRun": bool}; all members are optional.
func decodePurge(body []byte) (pg.PurgeOptions, string, error) {
	options := pg.PurgeOptions{Mode: "consumed", Limit: purgeStep}
	members, err := optionalObject(body)
	if err != nil {
		return options, "", err
	}
	partition, err := stringMember(members, "partition")
	if err != nil {
		return options, "", err
	}
	mode, err := stringMember(members, "mode")
	if err != nil {
		return options, "", err
	}
	switch mode {
	case "":
	case "consumed", "all":
		options.Mode = mode
	default:
		return options, "", newError(codeBadBody, `bad body: mode must be "consumed" or "all", not `+quoteShort(mode))
	}
	options.DryRun, _, err = boolMember(members, "dryRun")
	return options, partition, err
}

// overview sums up what the broker holds and does.
func (s *Server) overview(w http.ResponseWriter, r *http.Request) error {
	return relay(w)(s.deps.Store.SystemOverview(r.Context(), tenantOf(r), s.cfg.Tenancy))
}

func (s *Server) namespaces(w http.ResponseWriter, r *http.Request) error {
	return relay(w)(s.deps.Store.Namespaces(r.Context(), tenantOf(r)))
}

func (s *Server) tasks(w http.ResponseWriter, r *http.Request) error {
	return relay(w)(s.deps.Store.Tasks(r.Context(), tenantOf(r)))
}
