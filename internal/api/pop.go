package api

import (
	"context"
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
		defer s.meter.Unpark(request.Tenant)
	}
	result, err := s.claim(r.Context(), request)
	switch {
	case err != nil:
		return err
	case result == nil:
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	s.metrics.popMessages.Add(int64(result.Messages()))
	return s.deliver(w, r, result)
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
