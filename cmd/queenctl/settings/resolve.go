package settings

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"runtime"
	"strings"
)

// DefaultServer is where a broker listens that was started on this machine without settings.
const DefaultServer = "http://localhost:6632"

// ErrToken is the error of a token that cannot be read or must not be sent.
var ErrToken = errors.New("token")

// Flags are the settings of one command line; empty is not given.
type Flags struct {
	Context, Server, Tenant, TokenFile string
	PlainHTTP                          bool
}

// A Target is where requests go.
type Target struct {
	Name    string // of the context, empty for none
	Servers []string
	Tenant  string
	// Token is empty when no token is configured. TokenSource says where it came from, for people.
	Token, TokenSource        string
	CAFile, CertFile, KeyFile string
}

// Resolve decides by flags, then environment (QUEEN_CONTEXT, QUEEN_SERVER, QUEEN_TENANT, QUEEN_TOKEN_FILE, QUEEN_TOKEN), then
// the context. A token that is configured and cannot be used is an error (ErrToken), never a request without it.
func Resolve(file File, flags Flags, lookup func(string) string) (Target, error) {
	name := first(flags.Context, lookup("QUEEN_CONTEXT"), file.Current)
	var chosen Context
	if name != "" {
		var ok bool
		if chosen, ok = file.Contexts[name]; !ok {
			return Target{}, fmt.Errorf("there is no context %q: queenctl ctx list shows them", name)
		}
	}
	target := Target{
		Name: name, Tenant: first(flags.Tenant, lookup("QUEEN_TENANT"), chosen.Tenant),
		CAFile: chosen.CAFile, CertFile: chosen.CertFile, KeyFile: chosen.KeyFile,
	}
	server := first(flags.Server, lookup("QUEEN_SERVER"), chosen.Server, DefaultServer)
	plain := flags.PlainHTTP || chosen.PlainHTTP
	for address := range strings.SplitSeq(server, ",") {
		address, err := normalised(strings.TrimSpace(address))
		if err != nil {
			return Target{}, err
		}
		target.Servers = append(target.Servers, address)
	}
	if err := target.readToken(chosen, flags, lookup); err != nil {
		return Target{}, err
	}
	if target.Token != "" && !plain {
		for _, address := range target.Servers {
			if exposed(address) {
				return Target{}, fmt.Errorf("%w: it would go to %s in clear text; use https, or say --allow-plain-http (ctx add has the same flag)", ErrToken, address)
			}
		}
	}
	return target, nil
}

// readToken takes the first place that is named.
func (t *Target) readToken(chosen Context, flags Flags, lookup func(string) string) error {
	path := first(flags.TokenFile, lookup("QUEEN_TOKEN_FILE"))
	if path == "" {
		if token := lookup("QUEEN_TOKEN"); token != "" {
			t.Token, t.TokenSource = strings.TrimSpace(token), "environment QUEEN_TOKEN"
			return nil
		}
		path = chosen.TokenFile
	}
	switch {
	case path != "":
		token, err := ReadToken(path)
		if err != nil {
			return err
		}
		t.Token, t.TokenSource = token, "file "+path
	case chosen.TokenEnv != "":
		token := strings.TrimSpace(lookup(chosen.TokenEnv))
		if token == "" {
			return fmt.Errorf("%w: context %s takes it from the environment variable %s, which is empty", ErrToken, t.Name, chosen.TokenEnv)
		}
		t.Token, t.TokenSource = token, "environment "+chosen.TokenEnv
	}
	return nil
}

// ReadToken reads a file with a token. Files that others may read or change are refused.
func ReadToken(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrToken, err)
	}
	if mode := info.Mode().Perm(); runtime.GOOS != "windows" && mode&0o077 != 0 {
		return "", fmt.Errorf("%w: others may read %s (mode %04o): chmod 600 it", ErrToken, path, mode)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrToken, err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" || strings.ContainsAny(token, "\r\n") {
		return "", fmt.Errorf("%w: %s does not hold exactly one line", ErrToken, path)
	}
	return token, nil
}

// normalised checks an address and completes it: a bare host gets http:// and, without a port, 6632.
func normalised(address string) (string, error) {
	if !strings.Contains(address, "://") {
		address = "http://" + address
		if u, err := url.Parse(address); err == nil && u.Port() == "" {
			u.Host += ":6632"
			address = u.String()
		}
	}
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return "", fmt.Errorf("server %q: %w", address, err)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.User != nil, u.RawQuery != "", u.Fragment != "":
		return "", fmt.Errorf("server %q: give http(s)://host:port, credentials go into a token file", u.Redacted())
	}
	return strings.TrimSuffix(u.String(), "/"), nil
}

// exposed reports whether requests to an address can be read on a network.
func exposed(address string) bool {
	u, err := url.Parse(address)
	if err != nil || u.Scheme == "https" {
		return false
	}
	if u.Hostname() == "localhost" {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return err != nil || !ip.IsLoopback()
}

func first(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}
