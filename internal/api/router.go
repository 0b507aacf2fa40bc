package api

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// maxSegments is the most segments a route's path may have.
const maxSegments = 9

// A router finds the route of a request by the segments of its escaped path, which are decoded once and one by one: a name
// may hold anything, also slashes. The mux of net/http is not used because it answers unclean paths with redirects, and takes
// a segment that decodes to a single slash for a trailing one, so that a queue of that name could not be reached.
type router struct {
	// bySegments holds the routes by the number of their segments, those with more fixed text first.
	bySegments [maxSegments + 1][]*entry
}

// An entry is a route with its path taken apart.
type entry struct {
	route *route
	// segments are fixed texts; a parameter is an empty text with its name in names.
	segments, names []string
	pattern         string
}

func newRouter(table []route) *router {
	r := &router{}
	for i := range table {
		e := &entry{route: &table[i], pattern: table[i].method + " " + table[i].path}
		for segment := range strings.SplitSeq(table[i].path[1:], "/") {
			name, isName := strings.CutPrefix(segment, "{")
			if isName {
				segment = ""
			}
			e.segments = append(e.segments, segment)
			e.names = append(e.names, strings.TrimSuffix(name, "}"))
		}
		r.bySegments[len(e.segments)] = append(r.bySegments[len(e.segments)], e)
	}
	for _, entries := range r.bySegments {
		slices.SortStableFunc(entries, func(a, b *entry) int { return a.parameters() - b.parameters() })
	}
	return r
}

func (e *entry) parameters() int {
	n := 0
	for _, segment := range e.segments {
		if segment == "" {
			n++
		}
	}
	return n
}

// find returns the route for a method and an escaped, clean path, or the methods that the path has, and the decoded
// parameters are set on the request. Both results are empty for a path without routes.
func (r *router) find(request *http.Request, path string) (found *entry, allow []string) {
	var segments [maxSegments]string
	n := 0
	for segment := range strings.SplitSeq(path[1:], "/") {
		if n == maxSegments {
			return nil, nil
		}
		segments[n] = segment
		n++
	}
	method := request.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	for _, e := range r.bySegments[n] {
		if !e.matches(segments[:n]) {
			continue
		}
		if e.route.method != method {
			allow = append(allow, e.route.method)
			if e.route.method == http.MethodGet {
				allow = append(allow, http.MethodHead)
			}
			continue
		}
		for i, fixed := range e.segments {
			if fixed != "" {
				continue
			}
			value, err := url.PathUnescape(segments[i])
			if err != nil {
				return nil, nil // net/http has already refused such a path
			}
			request.SetPathValue(e.names[i], value)
		}
		request.Pattern = e.pattern
		return e, nil
	}
	return nil, allow
}

func (e *entry) matches(segments []string) bool {
	// From the end: the first segments are the same for all routes of the API.
	for i := len(segments) - 1; i >= 0; i-- {
		if e.segments[i] != "" && e.segments[i] != segments[i] {
			return false
		}
	}
	return true
}
