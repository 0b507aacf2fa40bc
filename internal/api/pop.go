package api

import (
	"context"
	"errors"
	"net/http"

	"queenmq/internal/engine/pop"
	"queenmq/internal/pg"
)

// popResult is what a claim is used for here; *pop.Result is one.
type popResult interface {
	AppendJSON(dst []byte) []byte
	Messages() int
	Release()
	Sending(giveUp func()) (sent func())
	Done()
	Abandon(ctx context.Context)
}

func (s *Server) popQueue(w http.ResponseWriter, r *http.Request) error {
	return s.pop(w, r, pop.Request{Kind: pop.Queue, Queue: r.PathValue("queue")})
}

func (s *Server) popPartition(w http.ResponseWriter, r *http.Request) error {
	return s.pop(w, r, pop.Request{Kind: pop.Partition, Queue: r.PathValue("queue"), Partition: r.PathValue("partition")})
}

func (s *Server) popDiscovery(w http.ResponseWriter, r *http.Request) error {
	return s.pop(w, r, pop.Request{Kind: pop.Discovery})
}

// pop claims messages and sends them. Nothing to deliver is a 204 without a body.
func (s *Server) pop(w http.ResponseWriter, r *http.Request, request pop.Request) error {
	s.metrics.popRequests.Add(1)
	request.Tenant = tenantOf(r)
	request.Group = pg.QueueModeGroup
	request.Batch = defaultPopBatch
	request.MaxPartitions = 1
	request.Timeout = s.cfg.PopTimeout
	if err := popParameters(r.URL.RawQuery, &request); err != nil {
		return err
	}
	if request.Group == "" {
		request.Group = pg.QueueModeGroup
	}
	if request.Kind == pop.Discovery && request.Namespace == "" && request.Task == "" {
		refused := newError(codeFilterRequired, errorRows[codeFilterRequired].text)
		refused.body = []byte(`{"success":false,"error":"namespace or task is required","code":"filter_required","messages":[]}`)
		return refused
	}
	if r.Method == http.MethodHead {
		// HEAD answers without a body: a claim would hide its messages until the lease ends, or lose them under autoAck.
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	if request.Wait {
		if !s.meter.Park(request.Tenant) {
			return newError(codeTooManyParked, errorRows[codeTooManyParked].text)
		}
	}
	answer, ok := w.(*response)
	request.Suspends = ok && request.Wait && answer.suspender() != nil
	return s.popped(w, r, request.Wait, func() (popResult, error) { return s.claim(r.Context(), request) })
}

// popped sends what claim returns, unless that is yet to be waited for. parks says that the pop counts among those that may park.
func (s *Server) popped(w http.ResponseWriter, r *http.Request, parks bool, claim func() (popResult, error)) error {
	suspended := false
	defer func() {
		if parks && !suspended {
			s.meter.Unpark(tenantOf(r))
		}
	}()
	result, err := claim()
	var later *pop.SuspendedError
	later, suspended = errors.AsType[*pop.SuspendedError](err)
	switch {
	case suspended:
		w.(*response).waits = continuation{ //nolint:forcetypeassert // nothing is suspended otherwise
			wait: func() { later.Wait(r.Context()) },
			resume: func() error {
				return s.popped(w, r, parks, func() (popResult, error) { return claimed(later.Resume(r.Context())) })
			},
		}
		return nil
	case err != nil:
		return err
	case result == nil:
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	s.metrics.popMessages.Add(int64(result.Messages()))
	return s.deliver(w, r, result)
}

// claimed is a result with the interface for it. A nil pointer must not become a non-nil interface.
func claimed(result *pop.Result, err error) (popResult, error) {
	if result == nil {
		return nil, err
	}
	return result, err
}

// deliver sends a claimed batch. When it cannot be sent the batch goes back, so that others get it now and not after the
// lease: an answer that was cut short is of no use to its reader.
func (s *Server) deliver(w http.ResponseWriter, r *http.Request, result popResult) error {
	defer result.Done()
	if gone := r.Context().Err(); gone != nil {
		result.Abandon(r.Context())
		return gone
	}
	out := getBuffer()
	defer putBuffer(out)
	*out = result.AppendJSON((*out)[:0])
	result.Release() // a slow reader holds one copy of its messages, not two
	err := sendBatch(w, result, *out)
	if err == nil {
		// Small answers are still buffered. Send them now, while there is somebody to give the batch back.
		err = http.NewResponseController(w).Flush()
	}
	if err != nil {
		s.metrics.clientsGone.Inc()
		result.Abandon(r.Context())
	}
	return nil
}

// sendBatch sends the rendered batch. While others wait for the memory that it takes it must be read faster than otherwise.
func sendBatch(w http.ResponseWriter, result popResult, body []byte) error {
	if answer, ok := w.(*response); ok && len(body) > maxUnwatched {
		defer result.Sending(answer.giveUp)()
	}
	return writeJSON(w, http.StatusOK, body)
}
