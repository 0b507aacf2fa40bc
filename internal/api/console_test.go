package api

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// A library with one page at / and one file.
func pagesOf(path string) (PageFile, bool) {
	switch path {
	case "/", "/queues":
		return PageFile{Type: "text/html; charset=utf-8", Policy: "default-src 'none'", Body: []byte("<p>page"), ETag: `"a"`}, true
	case "/assets/app.js":
		return PageFile{Type: "text/javascript", Policy: "default-src 'none'", Body: []byte("plain"), Compressed: []byte("small"), ETag: `"b"`}, true
	}
	return PageFile{}, false
}

func ask(t *testing.T, s *Server, method, path string, headers ...string) *http.Response {
	t.Helper()
	request := httptest.NewRequest(method, path, nil)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	recorder := httptest.NewRecorder()
	s.ServeHTTP(recorder, request)
	return recorder.Result()
}

func TestConsole(t *testing.T) {
	t.Parallel()
	f := &world{}
	deps := f.deps()
	deps.Page, deps.Verifier = pagesOf, doorkeeper{}
	s := New(Config{}, deps)

	t.Run("PagesAreServedWithoutAToken", func(t *testing.T) {
		t.Parallel()
		answer := ask(t, s, "GET", "/queues")
		require.Equal(t, 200, answer.StatusCode)
		require.Equal(t, "text/html; charset=utf-8", answer.Header.Get("Content-Type"))
		require.Equal(t, "default-src 'none'", answer.Header.Get("Content-Security-Policy"))
		require.Equal(t, "no-cache", answer.Header.Get("Cache-Control"))
		require.Equal(t, "nosniff", answer.Header.Get("X-Content-Type-Options"))
		require.Equal(t, "same-origin", answer.Header.Get("Cross-Origin-Opener-Policy"))
	})
	t.Run("UnchangedFilesAreNotSentAgain", func(t *testing.T) {
		t.Parallel()
		for _, known := range []string{`"a"`, `W/"a"`, `"x", "a"`, "*"} {
			answer := ask(t, s, "GET", "/", "If-None-Match", known)
			require.Equal(t, 304, answer.StatusCode, known)
			require.Equal(t, `"a"`, answer.Header.Get("ETag"))
		}
		require.Equal(t, 200, ask(t, s, "GET", "/", "If-None-Match", `"b"`).StatusCode)
	})
	t.Run("ThoseWhoTakeGzipGetIt", func(t *testing.T) {
		t.Parallel()
		for accept, coding := range map[string]string{
			"": "", "br": "", "gzip": "gzip", "br, gzip;q=0.5": "gzip", "gzip; q=0": "", "GZIP": "gzip", "gzip;q=x": "",
		} {
			answer := ask(t, s, "GET", "/assets/app.js", "Accept-Encoding", accept)
			require.Equal(t, coding, answer.Header.Get("Content-Encoding"), accept)
			require.Equal(t, "Accept-Encoding", answer.Header.Get("Vary"))
			want := `"b"`
			if coding != "" {
				want = `"b-gzip"`
			}
			require.Equal(t, want, answer.Header.Get("ETag"), "each representation has its own tag")
		}
	})
	t.Run("PagesHideNothingOfTheAPI", func(t *testing.T) {
		t.Parallel()
		open := f.deps()
		open.Page = func(string) (PageFile, bool) { return pagesOf("/") }
		s := New(Config{}, open)
		for _, path := range []string{"/api", "/api/v1/nope", "/auth/nope"} {
			answer := ask(t, s, "GET", path)
			require.Equal(t, 404, answer.StatusCode, path)
			require.Equal(t, "application/json", answer.Header.Get("Content-Type"), path)
		}
		require.Equal(t, 404, ask(t, s, "POST", "/queues").StatusCode)
		require.Equal(t, "application/json", ask(t, s, "GET", "/health").Header.Get("Content-Type"))
	})
	t.Run("HeadHasNoBody", func(t *testing.T) {
		t.Parallel()
		answer := ask(t, s, "HEAD", "/")
		require.Equal(t, 200, answer.StatusCode)
		require.Equal(t, "7", answer.Header.Get("Content-Length"))
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.Empty(t, body)
	})
	t.Run("OtherPathsAskForATokenAsBefore", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, 401, ask(t, s, "GET", "/nope").StatusCode)
	})
}
