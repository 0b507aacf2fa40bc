// Package dashboard is the console in the browser: a single page built from src into dist, which is committed, so that building the
// program needs no Node. The files never change while the program runs.
//
// # Concurrency
//
// Everything here is safe for concurrent use.
package dashboard

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"io/fs"
	"mime"
	"path"
	"slices"
	"strings"
	"sync"
)

//go:embed dist
var dist embed.FS

// Pages are the paths of the single page: whatever the browser shows there, the file is the same. They have one segment each, so that
// relative links to files work behind a proxy that adds a prefix. Names of queues and the like stand in the query: a browser cannot send
// a segment that is only dots.
var Pages = []string{
	"/", "/queues", "/queue", "/messages", "/compare", "/dead-letters", "/groups", "/group", "/streams", "/traces", "/tasks", "/analytics", "/system",
	"/help",
}

// ContentSecurityPolicy goes with every file: scripts and styles from this origin only, no inline ones, no string that becomes code or
// markup, no request to another origin. The one policy of trusted types is that of the compiled templates.
const ContentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types svelte-trusted-html"

// A File is one file of the built page.
type File struct {
	// Type is the content type.
	Type string
	// Body is the file, and Compressed the same under gzip, nil when that is not smaller.
	Body, Compressed []byte
	// ETag is a strong entity tag made of the content.
	ETag string
}

// Find returns the file for an escaped path of a request; false when the console has nothing there.
func Find(escaped string) (*File, bool) {
	if slices.Contains(Pages, escaped) {
		escaped = "/index.html"
	}
	file, found := files()[escaped]
	return file, found
}

// files reads and compresses everything once, at the first request.
var files = sync.OnceValue(func() map[string]*File {
	all := map[string]*File{}
	err := fs.WalkDir(dist, "dist", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		body, err := dist.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(body)
		all[strings.TrimPrefix(name, "dist")] = &File{
			Type: typeOf(name), Body: body, Compressed: compressed(body), ETag: `"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`,
		}
		return nil
	})
	if err != nil {
		panic("dashboard: " + err.Error()) // the files are part of the program
	}
	return all
})

// typeOf does not depend on what the machine knows of types.
func typeOf(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	return mime.TypeByExtension(path.Ext(name))
}

func compressed(body []byte) []byte {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		panic("dashboard: " + err.Error()) // the level is a constant
	}
	_, _ = w.Write(body) // a buffer takes everything
	_ = w.Close()
	if out.Len() >= len(body) {
		return nil
	}
	return out.Bytes()
}
