package api

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/ack"
	"queenmq/internal/pg"
)

// What PostgreSQL says may quote values and statements: it is for the log, once for a batch, and not for clients.
func TestFailedAckHasTheWordsOfTheErrorTable(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		cause  error
		code   code
		logged int
	}{
		{fmt.Errorf("ack: %w: secret", pg.ErrPoolTimeout), codePoolExhausted, 1},
		{fmt.Errorf("ack: %w: secret", pg.ErrUnavailable), codeDatabaseUnavailable, 1},
		{fmt.Errorf("ack: %w: secret", pg.ErrTimeout), codeTimeout, 1},
		{fmt.Errorf("ack: %w: secret", pg.ErrBadData), codeBadData, 0},
		{errors.New("ERROR: secret (SQLSTATE XX000)"), codeInternal, 1},
	} {
		t.Run(string(tc.code), func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			server := (&world{log: slog.New(slog.NewTextHandler(&log, nil)), ack: func(_ string, items []ack.Item) []ack.Result {
				results := make([]ack.Result, len(items))
				for i := range results {
					results[i] = ack.Result{TransactionID: items[i].TransactionID, Error: "words of the engine", Cause: tc.cause}
				}
				return results
			}}).server()
			body := `{"acknowledgments":[{"transactionId":"a","partitionId":"p"},{"transactionId":"b","partitionId":"p"}]}`
			answer := httptest.NewRecorder()
			server.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1/ack/batch", strings.NewReader(body)))
			require.Equal(t, http.StatusOK, answer.Code)
			require.Equal(t, 2, strings.Count(answer.Body.String(), fmt.Sprintf(`"success":false,"error":%q`, errorRows[tc.code].text)), answer.Body)
			require.NotContains(t, answer.Body.String(), "secret")
			require.Equal(t, tc.logged, strings.Count(log.String(), "secret"), log.String())
		})
	}
}
