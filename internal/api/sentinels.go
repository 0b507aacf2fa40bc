package api

import (
	"errors"

	"queenmq/internal/auth"
	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/browse"
	"queenmq/internal/engine/pop"
	"queenmq/internal/engine/push"
	"queenmq/internal/engine/replay"
	"queenmq/internal/engine/segment"
	"queenmq/internal/engine/spool"
	"queenmq/internal/engine/stream"
	"queenmq/internal/engine/tail"
	"queenmq/internal/pg"
	"queenmq/internal/tenant"
)

// A sentinel is an error value of a room below and the code it is answered with.
type sentinel struct {
	name string
	err  error
	code code
}

// sentinels maps the errors of the rooms below to their rows; the first match counts. A test walks the sources of these rooms
// and fails when an exported error is missing here or in typedErrors.
var sentinels = []sentinel{
	{"pg.ErrUnavailable", pg.ErrUnavailable, codeDatabaseUnavailable},
	{"pg.ErrPoolTimeout", pg.ErrPoolTimeout, codePoolExhausted},
	{"pg.ErrTimeout", pg.ErrTimeout, codeTimeout},
	{"pg.ErrLockTimeout", pg.ErrLockTimeout, codeTimeout},
	{"pg.ErrSerialization", pg.ErrSerialization, codeConflict},
	{"pg.ErrBadData", pg.ErrBadData, codeBadData},
	{"pg.ErrVanished", pg.ErrVanished, codeVanished},
	{"pg.ErrServerTooOld", pg.ErrServerTooOld, codeDatabaseUnavailable},
	{"pg.ErrNotUTF8", pg.ErrNotUTF8, codeDatabaseUnavailable},
	{"pg.ErrNewerSchema", pg.ErrNewerSchema, codeDatabaseUnavailable},
	{"pg.ErrUnannouncedPooler", pg.ErrUnannouncedPooler, codeDatabaseUnavailable},
	{"pg.ErrMalformedAnswer", pg.ErrMalformedAnswer, codeInternal},
	{"pg.ErrLeadershipLost", pg.ErrLeadershipLost, codeDatabaseUnavailable}, // of background work; no request meets it
	{"push.ErrStopped", push.ErrStopped, codeStopping},
	{"push.ErrQueueFull", push.ErrQueueFull, codeQueueFull},
	{"push.ErrEncryptionRequired", push.ErrEncryptionRequired, codeEncryptionRequired},
	{"push.ErrInternal", push.ErrInternal, codeInternal},
	{"spool.ErrFull", spool.ErrFull, codeBufferFull},
	{"spool.ErrWrite", spool.ErrWrite, codeBufferUnwritable},
	{"spool.ErrInvalid", spool.ErrInvalid, codeBadData},
	{"spool.ErrInUse", spool.ErrInUse, codeInternal},                 // of the start; no request meets it
	{"spool.ErrOtherDatabase", spool.ErrOtherDatabase, codeInternal}, // as above
	{"segment.ErrTooLarge", segment.ErrTooLarge, codeMessageTooLarge},
	{"segment.ErrMalformed", segment.ErrMalformed, codeInternal},
	{"segment.ErrEmpty", segment.ErrEmpty, codeInternal},
	{"ack.ErrNotOwned", ack.ErrNotOwned, codeTransactionFailed},
	{"tail.ErrTooMany", tail.ErrTooMany, codeTooManyWatchers},
	{"tail.ErrCrowdedOut", tail.ErrCrowdedOut, codeTooManyWatchers},
	{"tail.ErrStopped", tail.ErrStopped, codeStopping},
	{"replay.ErrNoPayload", replay.ErrNoPayload, codeConflict},
	{"browse.ErrCondition", browse.ErrCondition, codeInvalidParameter},
	{"pg.ErrInvalidCursor", pg.ErrInvalidCursor, codeInvalidCursor},
	{"pop.ErrKeyMissing", pop.ErrKeyMissing, codeEncryptionRequired},
	{"stream.ErrUndecryptable", stream.ErrUndecryptable, codeStateUndecryptable},
	{"pg.ErrRootCertificates", pg.ErrRootCertificates, codeInternal},
	{"auth.ErrRequired", auth.ErrRequired, codeAuthRequired},
	{"auth.ErrForbidden", auth.ErrForbidden, codeForbidden},
	{"auth.ErrKeysUnavailable", auth.ErrKeysUnavailable, codeAuthKeysUnavailable},
	{"tenant.ErrInvalid", tenant.ErrInvalid, codeInvalidTenant},
	{"pop.ErrNoRoom", pop.ErrNoRoom, codeOverloaded},
	{"pop.ErrUndecodable", pop.ErrUndecodable, codeInternal},
}

// typedErrors are the exported error types that classifyTyped answers, and pop.SuspendedError, which is never answered: popped takes it.
var typedErrors = []string{"pg.OptionError", "pg.TransactionError", "push.QueueFullError", "auth.TokenError", "pop.SuspendedError"}

// classifyTyped answers for errors that carry their own text for the client.
func classifyTyped(err error) (code, string) {
	if option, ok := errors.AsType[*pg.OptionError](err); ok {
		return codeInvalidOption, option.Text
	}
	if token, ok := errors.AsType[*auth.TokenError](err); ok {
		return codeInvalidToken, token.Text
	}
	if full, ok := errors.AsType[*push.QueueFullError](err); ok {
		return codeQueueFull, full.Error()
	}
	if rolledBack, ok := errors.AsType[*pg.TransactionError](err); ok {
		if rolledBack.QueueFull {
			return codeQueueFull, rolledBack.Reason
		}
		return codeTransactionFailed, rolledBack.Reason
	}
	return codeInternal, ""
}
