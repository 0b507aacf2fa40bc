package api

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// FuzzManagementBodies gives every body that is not on the data path to every decoder: each is accepted or refused with a 4xx, never a
// fault of the broker's own.
func FuzzManagementBodies(f *testing.F) {
	for _, body := range []string{
		`{"queue":"q","namespace":"n","task":"t","mode":"replace","strict":true,"options":{"leaseTime":30,"maxSize":null}}`,
		`{"toEnd":true}`, `{"timestamp":"2026-01-01T00:00:00Z","dryRun":true}`, `{"offset":-1}`, `{"offset":1e3}`,
		`{"kind":"redrive","filter":{"queue":"q","from":"2026-01-01"},"destination":{"queue":"x"},"rate":10}`, `{"queue":"a\u0000b","partition":null}`,
		`{"query_id":"0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731","partition_id":"0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731","worker":"w","consumer_group":"g","push_items":[{"queue":"q","payload":1}],"ack":{"ok":true,"count":1},"state_ops":[{"op":"put","key":"k","value":{}}],"release_lease":true}`,
		``, `null`, `[]`, `{"queue":"q","queue":"r"}`, `{"a":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`, "{\"queue\":\"\xff\"}",
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for name, decode := range map[string]func([]byte) error{
			"configure":      func(b []byte) error { _, err := decodeConfigure(b); return err },
			"seek":           func(b []byte) error { _, _, err := decodeSeek(b, false); return err },
			"seek partition": func(b []byte) error { _, _, err := decodeSeek(b, true); return err },
			"task":           func(b []byte) error { _, _, err := decodeTask(b); return err },
			"destination":    func(b []byte) error { _, err := decodeDestination(b); return err },
			"cycle": func(b []byte) error {
				members, err := requiredObject(b)
				if err == nil {
					_, err = decodeCycle(members)
				}
				return err
			},
		} {
			if err := decode(body); err != nil {
				if status := classify(err, "").row().status; status < 400 || status >= 500 {
					t.Fatalf("%s: a body is refused with %d: %v", name, status, err)
				}
			}
		}
	})
}

// FuzzRouter looks up whatever a client may ask for: it never fails, and what a path names is what the handler is told.
func FuzzRouter(f *testing.F) {
	f.Add("GET", "/api/v1/pop/queue/a%2Fb/partition/%00")
	f.Add("DELETE", "/api/v1/consumer-groups/g/queues/..")
	f.Add("HEAD", "/a//b")
	f.Add("PUT", "/%zz")
	f.Add("POST", "/api/v1/push?x=1")
	r := newRouter(routes)
	f.Fuzz(func(t *testing.T, method, target string) {
		if !strings.HasPrefix(target, "/") {
			return
		}
		address, err := url.ParseRequestURI(target)
		if err != nil {
			return // refused by net/http
		}
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		request.Method, request.URL = method, address
		path := address.EscapedPath()
		if pathFault(path) != "" {
			return
		}
		found, allow := r.find(request, path)
		if found == nil {
			return
		}
		if allow != nil {
			t.Fatalf("%s is found and not allowed", path)
		}
		segments := strings.Split(path[1:], "/")
		for i, name := range found.names {
			if found.segments[i] != "" {
				continue
			}
			want, err := url.PathUnescape(segments[i])
			if err != nil || request.PathValue(name) != want {
				t.Fatalf("%s of %s is %q, want %q (%v)", name, path, request.PathValue(name), want, err)
			}
		}
	})
}

// FuzzManagementQuery: what cannot be read counts as absent, and whatever is read is within its bounds.
func FuzzManagementQuery(f *testing.F) {
	f.Add("limit=10&offset=5&partition=0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731&abandoned=yes")
	f.Add("limit=-99999999999999999999&offset=%zz&limit=1")
	f.Add("limit=+5+&offset=1e3;x")
	f.Fuzz(func(t *testing.T, query string) {
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		request.URL.RawQuery = query
		q := lenient(request)
		if limit, offset := q.page(100); limit < 1 || limit > maxPageLimit || offset < 0 || offset > maxPageOffset {
			t.Fatalf("limit %d, offset %d", limit, offset)
		}
		if n := q.optionalInteger("offset"); n != nil && *n < 0 {
			t.Fatalf("offset %d", *n)
		}
		if id, err := q.uuidParameter("partition"); err == nil && id.Valid && !strings.EqualFold(id.UUID.String(), q.text("partition")) {
			t.Fatalf("%q was read as %s", q.text("partition"), id.UUID)
		}
	})
}
