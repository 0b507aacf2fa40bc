package telemetry

import (
	"net"
	"net/http"
	"net/http/pprof"
	"runtime"
)

// mutexProfileFraction reports one in so many contentions, and blockProfileRate one blocking event for so many nanoseconds blocked:
// both cost less than a thousandth of a processor.
const (
	mutexProfileFraction = 100
	blockProfileRate     = 1_000_000
)

// NewProfileHandler serves the profiles of the process below /debug/pprof/, as net/http/pprof does, and turns on the profiles of mutexes
// and of blocking, which are those of the whole process. Profiles name functions and command-line arguments and hold no messages; whoever
// reads them can slow the process down, so that the handler belongs on a listener of its own, on the loopback interface. A request whose
// Host is no loopback address is refused: a page in a browser on this machine must not reach it under a name of its own.
func NewProfileHandler() http.Handler {
	runtime.SetMutexProfileFraction(mutexProfileFraction)
	runtime.SetBlockProfileRate(blockProfileRate)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLoopback(r.Host) {
			http.Error(w, "profiles are served under a loopback address only", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// isLoopback tells whether the host of host or host:port is this machine, by address or as localhost.
func isLoopback(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	return name == "localhost" || net.ParseIP(name).IsLoopback()
}
