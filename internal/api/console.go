package api

import (
	"net/http"
	"strconv"
	"strings"
)

// A PageFile is one file of the console.
type PageFile struct {
	// Type is the content type, and Policy the content security policy.
	Type, Policy string
	// Body is the file, and Compressed the same under gzip; nil is none.
	Body, Compressed []byte
	// ETag is a strong entity tag of Body.
	ETag string
}

// pageHeaders go with the files of the console, in the place of those for data.
var pageHeaders = [...][2]string{
	{"Cache-Control", "no-cache"}, // kept by browsers, and asked for every time: the answer is then a 304
	{"Cross-Origin-Opener-Policy", "same-origin"},
	{"Cross-Origin-Resource-Policy", "same-origin"},
	{"Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"},
}

// findPage returns the file of the console for a request that no route takes. Paths of the API never have one.
func (s *Server) findPage(r *http.Request, path string) (PageFile, bool) {
	if s.deps.Page == nil || isAPIPath(path) || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return PageFile{}, false
	}
	return s.deps.Page(path)
}

// writePage sends a file, compressed for those who take it, or says that it has not changed.
func writePage(w http.ResponseWriter, r *http.Request, file PageFile) {
	header := w.Header()
	for _, one := range pageHeaders {
		header.Set(one[0], one[1])
	}
	header.Set("Content-Security-Policy", file.Policy)
	header.Set("Vary", "Accept-Encoding")
	tag, body := file.ETag, file.Body
	if file.Compressed != nil && takesGzip(r.Header.Get("Accept-Encoding")) {
		// Another representation of the same file needs another tag.
		tag, body = strings.TrimSuffix(tag, `"`)+`-gzip"`, file.Compressed
		header.Set("Content-Encoding", "gzip")
	}
	header.Set("ETag", tag)
	if hasTag(r.Header.Get("If-None-Match"), tag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	header.Set("Content-Type", file.Type)
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodGet {
		_, _ = w.Write(body) // the client is gone; nothing is left to tell it
	}
}

// takesGzip reads an Accept-Encoding header: gzip is named and not refused with q=0.
func takesGzip(accept string) bool {
	for one := range strings.SplitSeq(accept, ",") {
		coding, weight, _ := strings.Cut(one, ";")
		if !strings.EqualFold(strings.TrimSpace(coding), "gzip") {
			continue
		}
		text, weighted := strings.CutPrefix(strings.ReplaceAll(strings.ToLower(weight), " ", ""), "q=")
		q, err := strconv.ParseFloat(text, 64)
		return !weighted || err == nil && q > 0
	}
	return false
}

// hasTag reports whether an If-None-Match header names a tag; "*" is any.
func hasTag(given, tag string) bool {
	for one := range strings.SplitSeq(given, ",") {
		if one = strings.TrimPrefix(strings.TrimSpace(one), "W/"); one == tag || one == "*" {
			return true
		}
	}
	return false
}
