package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
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

// maxServerID is how many characters the name of a broker may have: as many as other names.
const maxServerID = 255

// check refuses an address for profiles that others than this machine reach, and a name that cannot be told to others.
func (s Server) check() (faults []error) {
	if utf8.RuneCountInString(s.ServerID) > maxServerID || !utf8.ValidString(s.ServerID) || strings.ContainsFunc(s.ServerID, unicode.IsControl) {
		faults = append(faults, fmt.Errorf("QUEEN_SERVER_ID: %.50q is no name for a broker (expected at most %d characters, none of them a control character)", s.ServerID, maxServerID))
	}
	if s.ProfileAddr == "" {
		return faults
	}
	host, _, err := net.SplitHostPort(s.ProfileAddr)
	if err != nil || !net.ParseIP(host).IsLoopback() {
		faults = append(faults, fmt.Errorf("QUEEN_PPROF_ADDR: %q is not a loopback address with a port (expected 127.0.0.1:6060 or [::1]:6060): profiles are served without authentication", s.ProfileAddr))
	}
	return faults
}
