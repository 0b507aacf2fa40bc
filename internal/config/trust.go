package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
)

func (t TLS) check() []error {
	switch {
	case (t.Cert == "") != (t.Key == ""):
		return []error{errors.New("QUEEN_TLS_CERT and QUEEN_TLS_KEY belong together: set both, or neither")}
	case t.Cert == "" && t.ClientCA != "":
		return []error{errors.New("QUEEN_TLS_CLIENT_CA needs QUEEN_TLS_CERT and QUEEN_TLS_KEY: certificates of clients come over TLS only")}
	}
	return nil
}

// Origins lists the origins whose pages may call the API, as browsers write them.
func (t Tenancy) Origins() []string {
	var origins []string
	for origin := range strings.SplitSeq(t.CORSOrigins, ",") {
		if origin = strings.TrimSpace(origin); origin != "" {
			origins = append(origins, origin)
		}
	}
	return origins
}

// LabelsMetrics reports whether the series of queues carry a label with their tenant.
func (t Tenancy) LabelsMetrics() bool { return t.Header && t.Labels }

func (t Tenancy) check() []error {
	var faults []error
	for _, origin := range t.Origins() {
		u, err := url.Parse(origin)
		if origin != "*" && (err != nil || u.Scheme == "" || u.Host == "" || u.Scheme+"://"+u.Host != origin) {
			faults = append(faults, fmt.Errorf("QUEEN_CORS_ORIGINS: %q is not an origin (expected https://host or https://host:port, without a path)", origin))
		}
	}
	return faults
}

// check refuses an address for profiles that others than this machine reach.
func (s Server) check() []error {
	if s.ProfileAddr == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(s.ProfileAddr)
	if err != nil || !net.ParseIP(host).IsLoopback() {
		return []error{fmt.Errorf("QUEEN_PPROF_ADDR: %q is not a loopback address with a port (expected 127.0.0.1:6060 or [::1]:6060): profiles are served without authentication", s.ProfileAddr)}
	}
	return nil
}
