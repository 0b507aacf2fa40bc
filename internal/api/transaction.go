package api

import (
	"net/http"
	"strconv"

	"github.com/google/uuid"

	"queenmq/internal/engine/segment"
	"queenmq/internal/engine/transaction"
)

// transaction runs pushes and acks that commit together. A transaction that a rule rolled back is a 200 that says so: the
// request was understood and its outcome is known.
func (s *Server) transaction(w http.ResponseWriter, r *http.Request) error {
	body, err := s.readBody(w, r, nil)
	if err != nil {
		return err
	}
	var request transactionScan
	if err := request.scan(body); err != nil {
		return transactionRefused(badBody(body, err))
	}
	outcome, err := s.deps.Transactor.Run(r.Context(), tenantOf(r), subjectOf(r), request.operations, request.leases)
	if err != nil {
		known := classify(err, "")
		if known.row().status == http.StatusOK {
			known.body = appendRolledBack(nil, segment.NewID(), known)
		}
		return known
	}
	out := getBuffer()
	defer putBuffer(out)
	*out = appendOutcome((*out)[:0], request.operations, outcome)
	_ = writeJSON(w, http.StatusOK, *out) // committed whether the client reads it or not
	return nil
}

// transactionRefused gives refusals of a transaction's shape the body that the contract fixes for them.
func transactionRefused(refused *requestError) error {
	if refused.code != codeInvalidTransaction {
		return refused
	}
	return &requestError{code: refused.code, text: refused.text, body: appendRolledBack(nil, segment.NewID(), refused)}
}

// appendRolledBack appends the answer of a transaction that changed nothing.
func appendRolledBack(dst []byte, id uuid.UUID, reason *requestError) []byte {
	dst = append(dst, `{"transactionId":`...)
	dst = appendUUID(dst, id)
	dst = append(dst, `,"success":false,"error":`...)
	dst = appendString(dst, reason.text)
	dst = append(dst, `,"code":`...)
	dst = appendString(dst, string(reason.code))
	return append(dst, `,"results":[]}`...)
}

// appendOutcome appends the answer of a committed transaction, one result per operation, push items one by one.
func appendOutcome(dst []byte, operations []transaction.Operation, outcome transaction.Outcome) []byte {
	dst = append(dst, `{"transactionId":`...)
	dst = appendUUID(dst, outcome.ID)
	dst = append(dst, `,"success":true,"results":[`...)
	for i := range operations {
		result := &outcome.Results[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"index":`...)
		dst = strconv.AppendInt(dst, int64(i), 10)
		if item := operations[i].Push; item != nil {
			dst = append(dst, `,"type":"push","success":true,"transactionId":`...)
			dst = appendString(dst, result.TransactionID)
			dst = append(dst, `,"messageId":`...)
			dst = appendUUID(dst, result.MessageID)
			dst = append(dst, `,"queueName":`...)
			dst = appendString(dst, item.Queue)
			if result.Duplicate {
				dst = append(dst, `,"duplicate":true`...)
			}
		} else {
			dst = append(dst, `,"type":"ack","success":true,"transactionId":`...)
			dst = appendString(dst, result.TransactionID)
			dst = append(dst, `,"error":null,"dlq":`...)
			dst = strconv.AppendBool(dst, result.DeadLetter)
			dst = append(dst, `,"noop":`...)
			dst = strconv.AppendBool(dst, result.Noop)
		}
		dst = append(dst, '}')
	}
	return append(dst, `]}`...)
}
