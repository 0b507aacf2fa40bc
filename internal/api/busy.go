package api

import (
	"net/http"
	"strings"
)

// A prefix is the fixed beginning of the path of a busy route; whole is a path without parameters.
type prefix struct {
	method, path string
	whole        bool
}

var busyPrefixes = func() (all []prefix) {
	for i := range routes {
		if routes[i].busy {
			fixed, _, more := strings.Cut(routes[i].path, "{")
			all = append(all, prefix{routes[i].method, fixed, !more})
		}
	}
	return all
}()

// Busy reports whether a GET or POST to an escaped path asks for one of the routes that are called for every message or batch. They are worth a
// server of their own; [Server] answers them like all others. A path that only begins like one may be taken for it.
func Busy(method, path string) bool {
	if method != http.MethodGet && method != http.MethodPost {
		return false
	}
	for i := range busyPrefixes {
		p := &busyPrefixes[i]
		if p.method == method && strings.HasPrefix(path, p.path) && (!p.whole || len(path) == len(p.path)) {
			return true
		}
	}
	return false
}
