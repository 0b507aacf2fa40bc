package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// A code names a kind of error for programs. It stands beside the text in every error answer.
type code string

// The codes of this API. QUEUE_FULL is spelled as clients know it.
const (
	codeBadBody             code = "bad_body"
	codeInvalidName         code = "invalid_name"
	codeInvalidPath         code = "invalid_path"
	codeInvalidParameter    code = "invalid_parameter"
	codeFilterRequired      code = "filter_required"
	codeQueueRequired       code = "queue_required"
	codeInvalidOption       code = "invalid_option"
	codeInvalidTransaction  code = "invalid_transaction"
	codeTransactionFailed   code = "transaction_failed"
	codeNotFound            code = "not_found"
	codeInvalidCursor       code = "invalid_cursor"
	codeConfigMismatch      code = "config_mismatch"
	codePushMaintenance     code = "push_maintenance"
	codeBufferFull          code = "buffer_full"
	codeBufferUnwritable    code = "buffer_unwritable"
	codeNoSuchRoute         code = "no_such_route"
	codeMethodNotAllowed    code = "method_not_allowed"
	codeBodyTooLarge        code = "body_too_large"
	codeBatchTooLarge       code = "batch_too_large"
	codeMessageTooLarge     code = "message_too_large"
	codeRequestTimeout      code = "request_timeout"
	codeBadData             code = "bad_data"
	codeQueueFull           code = "QUEUE_FULL"
	codeEncryptionRequired  code = "encryption_key_missing"
	codeStateUndecryptable  code = "state_undecryptable"
	codeInvalidTenant       code = "invalid_tenant"
	codeAuthRequired        code = "auth_required"
	codeInvalidToken        code = "invalid_token"
	codeForbidden           code = "insufficient_permissions"
	codeCrossOrigin         code = "cross_origin"
	codeAuthKeysUnavailable code = "auth_keys_unavailable"
	codeRateLimited         code = "rate_limited"
	codeTooManyParked       code = "too_many_parked_pops"
	codeTooManyWatchers     code = "too_many_watchers"
	codePoolExhausted       code = "pool_exhausted"
	codeDatabaseUnavailable code = "database_unavailable"
	codeTimeout             code = "timeout"
	codeConflict            code = "conflict"
	codeVanished            code = "vanished"
	codeStarting            code = "starting"
	codeStopping            code = "stopping"
	codeOverloaded          code = "overloaded"
	codeInternal            code = "internal_error"
)

// An errorRow says how one kind of error is answered.
type errorRow struct {
	code   code
	status int
	// text is what the client reads when the place that raised the error had nothing more exact to say.
	text string
	// retryable says that the same request may succeed later, unchanged. Answers to retryable errors carry Retry-After.
	retryable bool
	// remedy is the line of docs/errors.md.
	remedy string
}

// errorTable is the only list of error answers: handlers, tests and docs/errors.md are made from it.
var errorTable = []errorRow{
	{codeBadBody, http.StatusBadRequest, "bad body", false, "The body is not valid JSON in valid UTF-8, or a field is missing or of the wrong type. The text names the place; nothing was done."},
	{codeInvalidName, http.StatusBadRequest, "invalid name", false, "A queue, group, namespace, task or partition name is empty, too long, not UTF-8 or holds control characters. Rename it."},
	{codeInvalidPath, http.StatusBadRequest, "invalid path", false, "The path has empty, `.` or `..` segments. Escape names (`%2F` for a slash, `%2E` for a name that is a dot)."},
	{codeInvalidParameter, http.StatusBadRequest, "invalid query parameter", false, "A query parameter does not parse or is out of bounds; the text names it."},
	{codeFilterRequired, http.StatusBadRequest, "namespace or task is required", false, "A discovery pop needs `namespace`, `task` or both."},
	{codeQueueRequired, http.StatusBadRequest, "queue is required", false, "Send `queue` as a non-empty string."},
	{codeInvalidOption, http.StatusBadRequest, "invalid option", false, "A queue option has the wrong type or is out of bounds; the text names it and the bound. The queue was not changed."},
	{codeInvalidTransaction, http.StatusBadRequest, "transaction requires an operations array", false, "`operations` must be an array of `push` and `ack` operations."},
	{codeTransactionFailed, http.StatusOK, "transaction failed", false, "The transaction was rolled back as a whole; the text says by which rule. Nothing of it was stored."},
	{codeNotFound, http.StatusNotFound, "not found", false, "There is no such queue, partition, message, dead letter or task, or it belongs to another tenant."},
	{codeInvalidCursor, http.StatusBadRequest, "invalid cursor", false, "`cursor` is not a `nextCursor` of this route. Start again without it."},
	{codeConfigMismatch, http.StatusConflict, "config_hash mismatch", false, "A streaming query of this name is registered with another operator chain. Use another name, or `reset` its state."},
	{codePushMaintenance, http.StatusServiceUnavailable, "pushes are switched off for maintenance; retry with the same transaction ids", true, "An operator turned the push switch (`/api/v1/system/maintenance`) and this broker has no file buffer to keep messages in, or the request replays dead letters. Nothing was stored; repeat later."},
	{codeBufferFull, http.StatusServiceUnavailable, "the database is away or in maintenance, and the file buffer of this broker is full (FILE_BUFFER_MAX_BYTES)", true, "Nothing was kept of the item. Repeat later with the same transaction ids, or give the buffer more room."},
	{codeBufferUnwritable, http.StatusServiceUnavailable, "the database is away or in maintenance, and the file buffer of this broker cannot be written", true, "Nothing was kept of the item; the broker's log has the reason, a full disk most likely. Repeat later with the same transaction ids."},
	{codeNoSuchRoute, http.StatusNotFound, "Not Found", false, "No route has this path; see docs/http.md."},
	{codeMethodNotAllowed, http.StatusMethodNotAllowed, "method not allowed", false, "The path exists for other methods: the `Allow` header lists them."},
	{codeBodyTooLarge, http.StatusRequestEntityTooLarge, "body too large", false, "The body is larger than `QUEEN_MAX_BODY_BYTES`. Send several smaller requests or raise the limit."},
	{codeBatchTooLarge, http.StatusRequestEntityTooLarge, "too many items in one request", false, "Send several requests with fewer items. Nothing was done."},
	{codeMessageTooLarge, http.StatusRequestEntityTooLarge, "message too large", false, "The messages for one partition do not fit into one segment. Send fewer or smaller ones."},
	{codeRequestTimeout, http.StatusRequestTimeout, "the request body did not arrive in time", true, "No byte of the body came for 30 seconds, or it came slower than 16 KiB a second (and than all of it in a minute) while others waited for room. Send the request again."},
	{codeBadData, http.StatusBadRequest, "PostgreSQL refused a value of the request", false, "A value cannot be stored or compared, for example a NUL character in a text. Nothing of the request part was done."},
	{codeQueueFull, http.StatusOK, "queue is full", false, "The queue has reached its `maxSize`. Consume or raise the limit, then push again. In a push answer only the refused items carry it."},
	{codeEncryptionRequired, http.StatusServiceUnavailable, "the queue is encrypted and this broker has no key: set QUEEN_ENCRYPTION_KEY on every broker", true, "Configure the encryption key on every broker. Nothing was stored in plain text, nothing was delivered, nothing stays leased."},
	{codeStateUndecryptable, http.StatusConflict, "stored state of this streaming query cannot be decrypted: bring the key back that it was encrypted with, or register the query again with reset", false, "The stored state was changed, or its key is nowhere any more (`queen keys check` tells). Nothing was done."},
	{codeInvalidTenant, http.StatusBadRequest, "invalid x-queen-tenant header (must be a UUID)", false, "Send the header once, as a canonical UUID, or not at all for the default tenant."},
	{codeAuthRequired, http.StatusUnauthorized, "Authentication required", false, "Send `Authorization: Bearer <token>`."},
	{codeInvalidToken, http.StatusUnauthorized, "Invalid token", false, "The text says what is wrong with the token. Get a new one."},
	{codeForbidden, http.StatusForbidden, "Insufficient permissions", false, "The token is good and holds none of the roles of the route; docs/http.md lists them."},
	{codeAuthKeysUnavailable, http.StatusServiceUnavailable, "the keys that tokens are checked with could not be fetched yet", true, "`JWT_JWKS_URL` does not answer. Nothing was done."},
	{codeCrossOrigin, http.StatusForbidden, "a page of another origin may not do this; add its origin to QUEEN_CORS_ORIGINS if it should", false, "A browser sent it for a page of another origin. Programs are not concerned; `QUEEN_CORS_ORIGINS` lists origins that are trusted."},
	{codeRateLimited, http.StatusTooManyRequests, "too many requests for this tenant; repeat after the time in Retry-After", true, "Slow down, or raise `QUEEN_RATE_LIMIT`. Nothing was done."},
	{codeTooManyParked, http.StatusTooManyRequests, "too many waiting pops for this tenant; repeat later or without wait=true", true, "Use fewer waiting consumers, or raise `QUEEN_MAX_PARKED_POPS`. Nothing was claimed."},
	{codeTooManyWatchers, http.StatusTooManyRequests, "too many people watch queues through this broker; repeat later", true, "A broker lets 20 watchers of one tenant see messages come, in 16 queues at a time. Close a page that watches."},
	{codePoolExhausted, http.StatusInternalServerError, "pool", true, "No database connection was free in time. Repeat; if it persists enlarge the pool or lower the load."},
	{codeDatabaseUnavailable, http.StatusServiceUnavailable, "the database is unavailable; retry with the same transaction ids", true, "PostgreSQL cannot be reached or refuses writes. A repeated push with the same transaction ids is stored once."},
	{codeTimeout, http.StatusServiceUnavailable, "the database did not answer within the statement or lock timeout", true, "The statement was cancelled on the server. Repeat; acks and pushes with transaction ids are safe to repeat."},
	{codeConflict, http.StatusServiceUnavailable, "the database kept reporting a conflict with concurrent work", true, "Repeat the request."},
	{codeVanished, http.StatusServiceUnavailable, "the queue or partition was deleted while the request was running", true, "Repeat: a push creates the queue again."},
	{codeStarting, http.StatusServiceUnavailable, "the broker is starting: it waits for the database", true, "Repeat when `/readyz` answers 200. Nothing was done."},
	{codeStopping, http.StatusServiceUnavailable, "the broker is stopping", true, "Repeat on another broker, or when this one is back."},
	{codeOverloaded, http.StatusServiceUnavailable, "the broker holds as many request bodies as it may (QUEEN_MAX_INFLIGHT_BODY_BYTES); repeat after the time in Retry-After", true, "Send smaller or fewer requests at a time, or raise `QUEEN_MAX_INFLIGHT_BODY_BYTES`. Nothing was done."},
	{codeInternal, http.StatusInternalServerError, "internal error", true, "A fault of the broker; its log holds the cause. Repeat, and report it if it persists."},
}

var errorRows = func() map[code]*errorRow {
	rows := make(map[code]*errorRow, len(errorTable))
	for i := range errorTable {
		rows[errorTable[i].code] = &errorTable[i]
	}
	return rows
}()

// A requestError is an error with its answer: the code chooses the row, text is what the client reads.
type requestError struct {
	code code
	text string
	// body replaces the usual error object where the contract fixes another shape.
	body []byte
	// retryAfter replaces the second that retryable errors ask for.
	retryAfter time.Duration
	// cause goes to the log, never to the client.
	cause error
}

func newError(c code, text string) *requestError { return &requestError{code: c, text: text} }

func (e *requestError) Error() string {
	if e.cause != nil {
		return e.text + ": " + e.cause.Error()
	}
	return e.text
}

func (e *requestError) Unwrap() error { return e.cause }

func (e *requestError) row() *errorRow { return errorRows[e.code] }

// badBody turns what a scanner or decoder reported into the answer of the contract, with the place in the body.
func badBody(body []byte, err error) *requestError {
	if known, ok := errors.AsType[*requestError](err); ok {
		return known
	}
	if syntax, ok := errors.AsType[*syntaxError](err); ok {
		line, column := lineColumn(body, syntax.offset)
		return newError(codeBadBody, fmt.Sprintf("bad body: %s at line %d column %d", syntax.text, line, column))
	}
	return newError(codeBadBody, "bad body: "+err.Error())
}

// classify gives every error its answer. Errors that no row knows are internal: their text stays in the log. prefix is the
// contract's word for the act that failed ("configure failed"), "" when it has none.
func classify(err error, prefix string) *requestError {
	if known, ok := errors.AsType[*requestError](err); ok {
		return known
	}
	c, text := classifyTyped(err)
	if c == codeInternal {
		for i := range sentinels {
			if errors.Is(err, sentinels[i].err) {
				c = sentinels[i].code
				break
			}
		}
	}
	if c == codeInternal && errors.Is(err, context.DeadlineExceeded) {
		c = codeTimeout
	}
	if text == "" {
		text = errorRows[c].text
		if prefix != "" && c != codePoolExhausted && c != codeInvalidCursor { // the contract has these two bare
			text = strings.TrimSuffix(prefix, ": ") + ": " + text
		}
	}
	return &requestError{code: c, text: text, cause: err}
}
