package api

import (
	"encoding/json/jsontext"
	"net/http"
	"slices"
	"strings"

	"github.com/google/uuid"

	"queenmq/internal/pg"
)

// taskAnswer is a task over dead letters as clients see it.
type taskAnswer struct {
	ID          uuid.UUID        `json:"id"`
	Kind        pg.TaskKind      `json:"kind"`
	State       string           `json:"state"`
	Filter      taskFilter       `json:"filter"`
	Destination *taskDestination `json:"destination"`
	Rate        int              `json:"rate"`
	Total       int64            `json:"total"`
	Moved       int64            `json:"moved"`
	Deleted     int64            `json:"deleted"`
	Duplicate   int64            `json:"duplicate"`
	Skipped     int64            `json:"skipped"`
	Remaining   int64            `json:"remaining"`
	Error       *string          `json:"lastError"`
	CreatedBy   *string          `json:"createdBy"`
	CreatedAt   *string          `json:"createdAt"`
	UpdatedAt   *string          `json:"updatedAt"`
	FinishedAt  *string          `json:"finishedAt"`
}

type taskFilter struct {
	Queue         string     `json:"queue,omitempty"`
	Partition     string     `json:"partition,omitempty"`
	Group         string     `json:"consumerGroup,omitempty"`
	From          string     `json:"from,omitempty"`
	To            string     `json:"to,omitempty"`
	Shape         string     `json:"shape,omitempty"`
	Error         string     `json:"error,omitempty"`
	TransactionID string     `json:"transactionId,omitempty"`
	PartitionID   *uuid.UUID `json:"partitionId,omitempty"`
}

type taskDestination struct {
	Queue     *string `json:"queue"`
	Partition *string `json:"partition"`
}

func taskOf(t *pg.Task) taskAnswer {
	f := t.Filter
	answer := taskAnswer{
		ID: t.ID, Kind: t.Kind, State: t.State, Rate: t.Rate, Total: t.Total, Moved: t.Moved, Deleted: t.Deleted, Duplicate: t.Duplicate, Skipped: t.Skipped,
		Filter:    taskFilter{f.Queue, f.Partition, f.Group, f.From, f.To, f.Shape, f.Error, f.TransactionID, uuidOrNull(f.PartitionID)},
		Remaining: max(0, t.Total-t.Moved-t.Deleted-t.Duplicate-t.Skipped), Error: textOrNull(t.Error), CreatedBy: textOrNull(t.CreatedBy),
		CreatedAt: millis(t.CreatedAt), UpdatedAt: millis(t.UpdatedAt), FinishedAt: millis(t.FinishedAt),
	}
	if t.Queue != nil || t.Partition != nil {
		answer.Destination = &taskDestination{t.Queue, t.Partition}
	}
	return answer
}

// maxTaskRate is the largest rate a task may name, in messages a second.
const maxTaskRate = 1_000_000

// startTask starts a redrive or a purge of all dead letters that a filter chooses, or with dryRun counts them.
func (s *Server) startTask(w http.ResponseWriter, r *http.Request) error {
	body, err := s.readBody(w, r, nil)
	if err != nil {
		return err
	}
	task, dryRun, err := decodeTask(body)
	if err != nil {
		return err
	}
	if dryRun {
		n, err := s.deps.Store.CountDeadLetters(r.Context(), tenantOf(r), task.Filter)
		if err != nil {
			return badRange(err, task.Filter.From, task.Filter.To)
		}
		return writeValue(w, http.StatusOK, struct {
			DryRun bool        `json:"dryRun"`
			Kind   pg.TaskKind `json:"kind"`
			Total  int64       `json:"total"`
		}{true, task.Kind, n})
	}
	started, err := s.deps.Store.CreateTask(r.Context(), tenantOf(r), task)
	if err != nil {
		return badRange(err, task.Filter.From, task.Filter.To)
	}
	return writeValue(w, http.StatusCreated, taskOf(&started))
}

// decodeTask reads {"kind", "filter", "destination", "rate", "dryRun"}.
func decodeTask(body []byte) (pg.NewTask, bool, error) {
	var task pg.NewTask
	members, err := requiredObject(body)
	if err != nil {
		return task, false, err
	}
	kind, err := stringMember(members, "kind")
	if err != nil {
		return task, false, err
	}
	switch task.Kind = pg.TaskKind(kind); task.Kind {
	case pg.TaskRedrive, pg.TaskPurge:
	default:
		return task, false, newError(codeBadBody, `bad body: kind must be "redrive" or "purge", not `+quoteShort(kind))
	}
	if task.Filter, err = decodeTaskFilter(members); err != nil {
		return task, false, err
	}
	if raw, ok := present(members, "destination"); ok {
		to, err := decodeDestination(raw)
		if err != nil {
			return task, false, err
		}
		task.Queue, task.Partition = to.Queue, to.Partition
	}
	if task.Kind == pg.TaskPurge && (task.Queue != nil || task.Partition != nil) {
		return task, false, newError(codeBadBody, "bad body: a purge has no destination")
	}
	rate, err := integerMember(members, "rate")
	if err != nil {
		return task, false, err
	}
	if rate != nil {
		if *rate < 0 || *rate > maxTaskRate {
			return task, false, newError(codeBadBody, "bad body: rate must be between 0 (unlimited) and 1000000 messages a second")
		}
		task.Rate = int(*rate)
	}
	dryRun, _, err := boolMember(members, "dryRun")
	return task, dryRun, err
}

// decodeTaskFilter reads the member "filter", which must be there: a forgotten filter must not mean everything. An empty one does.
func decodeTaskFilter(members map[string]jsontext.Value) (pg.DeadLetterFilter, error) {
	var filter pg.DeadLetterFilter
	raw, ok := present(members, "filter")
	if !ok {
		return filter, newError(codeBadBody, "bad body: filter is required; an empty object chooses all dead letters")
	}
	inner, err := decodeObject(raw)
	if err != nil {
		return filter, newError(codeBadBody, "bad body: filter must be an object")
	}
	partitionID := ""
	for _, member := range []struct {
		name string
		into *string
	}{
		{"queue", &filter.Queue},
		{"partition", &filter.Partition},
		{"consumerGroup", &filter.Group},
		{"from", &filter.From},
		{"to", &filter.To},
		{"shape", &filter.Shape},
		{"error", &filter.Error},
		{"transactionId", &filter.TransactionID},
		{"partitionId", &partitionID},
	} {
		if *member.into, err = stringMember(inner, member.name); err != nil {
			return filter, err
		}
		delete(inner, member.name)
	}
	for name := range inner {
		// Unknown members are ignored elsewhere. Here a misspelt one would widen what is moved or deleted.
		return filter, newError(codeBadBody, "bad body: filter has no member "+quoteShort(name))
	}
	if partitionID != "" {
		id, ok := parseUUID(partitionID)
		if !ok {
			return filter, newError(codeInvalidParameter, "partitionId must be a UUID")
		}
		filter.PartitionID = uuid.NullUUID{UUID: id, Valid: true}
	}
	return filter, nil
}

// taskStates are those that a list can be narrowed to.
var taskStates = []string{"active", "pending", "running", "done", "cancelled"}

// taskListFilter reads the query of the list of tasks. What is misspelt is refused: it would show other tasks than those that were asked for.
func taskListFilter(q lenientQuery) (pg.TaskFilter, error) {
	filter := pg.TaskFilter{Kind: pg.TaskKind(q.text("kind")), State: q.text("state"), Queue: q.text("queue"), Cursor: q.text("cursor")}
	filter.Limit, _ = q.page(50)
	switch filter.Kind {
	case "", pg.TaskRedrive, pg.TaskPurge:
	default:
		return filter, newError(codeInvalidParameter, "kind must be redrive or purge, not "+quoteShort(string(filter.Kind)))
	}
	if filter.State != "" && !slices.Contains(taskStates, filter.State) {
		return filter, newError(codeInvalidParameter, "state must be one of "+strings.Join(taskStates, ", ")+", not "+quoteShort(filter.State))
	}
	return filter, nil
}

// listTasks lists the tasks page by page, the newest first.
func (s *Server) listTasks(w http.ResponseWriter, r *http.Request) error {
	filter, err := taskListFilter(lenient(r))
	if err != nil {
		return err
	}
	tasks, next, err := s.deps.Store.ListTasks(r.Context(), tenantOf(r), filter)
	if err != nil {
		return err
	}
	answers := make([]taskAnswer, len(tasks))
	for i := range tasks {
		answers[i] = taskOf(&tasks[i])
	}
	return writeValue(w, http.StatusOK, struct {
		Tasks []taskAnswer `json:"tasks"`
		Next  *string      `json:"nextCursor"`
	}{answers, textOrNull(next)})
}

var errTaskNotFound = newError(codeNotFound, "Task not found")

// getTask shows one task with its progress.
func (s *Server) getTask(w http.ResponseWriter, r *http.Request) error {
	id, ok := parseUUID(r.PathValue("id"))
	if !ok {
		return errTaskNotFound
	}
	task, found, err := s.deps.Store.Task(r.Context(), tenantOf(r), id)
	if err != nil {
		return err
	}
	if !found {
		return errTaskNotFound
	}
	return writeValue(w, http.StatusOK, taskOf(&task))
}

// cancelTask stops a task after the step it is in. What it has done stays done; a finished task stays as it is.
func (s *Server) cancelTask(w http.ResponseWriter, r *http.Request) error {
	id, ok := parseUUID(r.PathValue("id"))
	if !ok {
		return errTaskNotFound
	}
	task, found, err := s.deps.Store.CancelTask(r.Context(), tenantOf(r), id)
	if err != nil {
		return err
	}
	if !found {
		return errTaskNotFound
	}
	return writeValue(w, http.StatusOK, taskOf(&task))
}
