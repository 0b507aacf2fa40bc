package queen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// A Client talks to the brokers of one Queen database. Make it with [Connect]; it is safe for concurrent use.
type Client struct {
	servers  *servers
	http     *http.Client
	owned    *http.Transport // nil when the caller brought its own
	header   http.Header
	token    func(ctx context.Context) (string, error)
	budget   time.Duration
	timeout  time.Duration
	observer Observer                                         // nil: nobody looks
	pause    func(ctx context.Context, d time.Duration) error // tests replace it
}

// The defaults of [Connect].
const (
	// DefaultRetryBudget is how long a call is repeated in total.
	DefaultRetryBudget = 30 * time.Second
	// DefaultRequestTimeout bounds one attempt. It is longer than the broker's statement timeout of 30 seconds, so that the
	// broker, which knows what happened, answers first.
	DefaultRequestTimeout = 45 * time.Second
)

// An Option changes what [Connect] makes.
type Option func(*Client) error

// WithToken sends a bearer token with every request.
func WithToken(token string) Option {
	return WithTokenSource(func(context.Context) (string, error) { return token, nil })
}

// WithTokenSource asks source for the bearer token of every attempt, so that tokens can be renewed. It must be safe for
// concurrent use and should answer from memory. Its error ends the call.
func WithTokenSource(source func(ctx context.Context) (string, error)) Option {
	return func(c *Client) error { c.token = source; return nil }
}

// WithTenant sends the tenant (a UUID) with every request, for brokers behind a trusted proxy that use the tenancy header.
func WithTenant(tenant string) Option { return WithHeader("x-queen-tenant", tenant) }

// WithHeader sends a header with every request.
func WithHeader(name, value string) Option {
	return func(c *Client) error { c.header.Set(name, value); return nil }
}

// WithHTTPClient sends requests through client, for example with a TLS configuration of its own. Its Timeout should be zero:
// long polls take as long as they are asked to. Redirects are never followed.
func WithHTTPClient(client *http.Client) Option {
	return func(c *Client) error {
		own := *client
		c.http = &own
		return nil
	}
}

// WithRetryBudget bounds how long a call is repeated in total (default [DefaultRetryBudget]); 0 turns repeating off, apart
// from trying the other brokers once each.
func WithRetryBudget(budget time.Duration) Option {
	return func(c *Client) error {
		if budget < 0 {
			return errors.New("the retry budget must not be negative")
		}
		c.budget = budget
		return nil
	}
}

// WithRequestTimeout bounds one attempt (default [DefaultRequestTimeout]). A long poll adds its own time to it.
func WithRequestTimeout(timeout time.Duration) Option {
	return func(c *Client) error {
		if timeout <= 0 {
			return errors.New("the request timeout must be positive")
		}
		c.timeout = timeout
		return nil
	}
}

// WithBalance chooses how requests are spread over several brokers; the default is [Affinity].
func WithBalance(balance Balance) Option {
	return func(c *Client) error { c.servers.balance = balance; return nil }
}

// Connect returns a client of the brokers at urls: one URL, or several separated by commas, for example
// "http://queen-1:6632,http://queen-2:6632". All of them must share one database. It opens no connection: a broker that is
// away is the first call's concern. The error names the URL or option that makes no sense.
func Connect(urls string, options ...Option) (*Client, error) {
	c := &Client{header: http.Header{}, budget: DefaultRetryBudget, timeout: DefaultRequestTimeout, servers: &servers{}, pause: pause}
	for part := range strings.SplitSeq(urls, ",") {
		base, err := baseURL(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("connect to Queen: %w", err)
		}
		c.servers.add(base)
	}
	for _, option := range options {
		if err := option(c); err != nil {
			return nil, fmt.Errorf("connect to Queen: %w", err)
		}
	}
	if c.http == nil {
		c.owned = newTransport()
		c.http = &http.Client{Transport: c.owned}
	}
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c, nil
}

// Close ends the idle connections. Calls under way go on; to end them, end their contexts.
func (c *Client) Close() {
	if c.owned != nil {
		c.owned.CloseIdleConnections()
	}
}

// baseURL checks one broker's URL and returns it without a trailing slash.
func baseURL(text string) (string, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return "", errors.New("the broker's URL cannot be read; it should look like http://host:6632") // without the text: it may hold a password
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return "", fmt.Errorf("the broker's URL %q should look like http://host:6632", u.Redacted())
	case u.User != nil:
		return "", fmt.Errorf("the broker's URL %q must not hold credentials; use WithToken", u.Redacted())
	case u.RawQuery != "" || u.Fragment != "":
		return "", fmt.Errorf("the broker's URL %q must not have a query or fragment", u.Redacted())
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// newTransport keeps as many connections as there are concurrent calls: Go's default of two idle ones per host would open a
// new one for almost every call of a busy consumer.
func newTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConns: 1024, MaxIdleConnsPerHost: 256, IdleConnTimeout: 90 * time.Second, ForceAttemptHTTP2: false,
		DisableCompression: true, // answers are not compressed, and the default would ask for it every time
	}
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
