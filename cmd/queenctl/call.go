package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"queenmq/cmd/queenctl/output"
	"queenmq/cmd/queenctl/settings"
	"queenmq/queen"
)

// pageSize is how many items one request of a list asks for, the most that brokers give.
const pageSize = 1000

// resolve decides which broker is meant.
func (a *app) resolve() error {
	if len(a.target.Servers) > 0 {
		return nil
	}
	path, err := settings.Path(a.getenv)
	file := settings.File{}
	if err == nil {
		if file, err = settings.Load(path); err != nil {
			return usage("%w", err)
		}
	} else if a.flags.Context != "" {
		return usage("%w", err)
	}
	a.target, err = settings.Resolve(file, a.flags.Flags, a.getenv)
	if err != nil && !errors.Is(err, settings.ErrToken) {
		return usage("%w", err)
	}
	return err
}

// connect makes the client.
func (a *app) connect() error {
	if a.client != nil {
		return nil
	}
	if err := a.resolve(); err != nil {
		return err
	}
	options := []queen.Option{queen.WithRequestTimeout(a.flags.timeout), queen.WithRetryBudget(min(a.flags.timeout, queen.DefaultRetryBudget))}
	if a.target.Token != "" {
		options = append(options, queen.WithToken(a.target.Token))
	}
	if a.target.Tenant != "" {
		options = append(options, queen.WithTenant(a.target.Tenant))
	}
	if a.target.CAFile != "" || a.target.CertFile != "" {
		client, err := secured(a.target)
		if err != nil {
			return usage("%w", err)
		}
		options = append(options, queen.WithHTTPClient(client))
	}
	client, err := queen.Connect(strings.Join(a.target.Servers, ","), options...)
	if err != nil {
		return usage("%w", err)
	}
	a.client = client
	return nil
}

// secured makes the HTTP client of a context with certificates of its own.
func secured(target settings.Target) (*http.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if target.CAFile != "" {
		text, err := os.ReadFile(target.CAFile)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s holds no certificate in PEM", target.CAFile)
		}
	}
	if target.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(target.CertFile, target.KeyFile)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, MaxIdleConnsPerHost: 64, DisableCompression: true}}, nil
}

// call sends a request, or shows it and ends the command with --explain. body is marshalled, or sent as it is when it is JSON
// already; nil sends none.
func (a *app) call(ctx context.Context, method, path string, query url.Values, body any) (json.RawMessage, error) {
	answer, err := a.exchange(ctx, method, path, query, body, a.flags.explain)
	if err != nil {
		return nil, err
	}
	return answer.Body, nil
}

// look is call for reads that a command needs before it can say what it does; they are sent with --explain too.
func (a *app) look(ctx context.Context, path string, query url.Values) (json.RawMessage, error) {
	answer, err := a.exchange(ctx, http.MethodGet, path, query, nil, false)
	if err != nil {
		return nil, err
	}
	return answer.Body, nil
}

func (a *app) exchange(ctx context.Context, method, path string, query url.Values, body any, explainOnly bool) (*queen.Response, error) {
	text, err := bodyText(body)
	if err != nil {
		return nil, err
	}
	if err := a.connect(); err != nil {
		return nil, err
	}
	if a.flags.explain {
		fmt.Fprintln(a.stdout, a.curl(method, path, query, text))
		if explainOnly {
			return nil, errExplained
		}
	}
	answer, err := a.client.Do(ctx, method, path, query, text)
	if errors.Is(err, queen.ErrRouteMissing) {
		return nil, &missingRoute{method, path}
	}
	return answer, err
}

func bodyText(body any) ([]byte, error) {
	switch b := body.(type) {
	case nil:
		return nil, nil
	case []byte:
		return b, nil
	case json.RawMessage:
		return b, nil
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(body); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(text.Bytes(), []byte{'\n'}), nil
}

// curl is a request as a command for a shell. Tokens are named, not shown.
func (a *app) curl(method, path string, query url.Values, body []byte) string {
	var b strings.Builder
	b.WriteString("curl -sS")
	if method != http.MethodGet && (method != http.MethodPost || len(body) == 0) {
		b.WriteString(" -X " + method)
	}
	switch {
	case strings.HasPrefix(a.target.TokenSource, "file "):
		b.WriteString(` -H "Authorization: Bearer $(cat ` + quoted(strings.TrimPrefix(a.target.TokenSource, "file ")) + `)"`)
	case a.target.TokenSource != "":
		b.WriteString(` -H "Authorization: Bearer $` + strings.TrimPrefix(a.target.TokenSource, "environment ") + `"`)
	}
	if a.target.Tenant != "" {
		b.WriteString(" -H " + quoted("x-queen-tenant: "+a.target.Tenant))
	}
	if len(body) > 0 {
		b.WriteString(" -d " + quoted(string(body)))
	}
	address := a.target.Servers[0] + path
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	b.WriteString(" " + quoted(address))
	return b.String()
}

// quoted is a text as one word for a POSIX shell.
func quoted(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// pages reads a list to its end, or to limit items (0 is all), and reports whether there is more. The items stand below key, or the
// answer is the array itself. byOffset is for lists without a cursor.
func (a *app) pages(ctx context.Context, path string, query url.Values, key string, limit int, byOffset bool) (items []json.RawMessage, more bool, err error) {
	if query == nil {
		query = url.Values{}
	}
	for {
		size := pageSize
		if limit > 0 {
			size = min(size, limit-len(items))
		}
		query.Set("limit", strconv.Itoa(size))
		if byOffset && len(items) > 0 {
			query.Set("offset", strconv.Itoa(len(items)))
		}
		answer, err := a.call(ctx, http.MethodGet, path, query, nil)
		if err != nil {
			return nil, false, err
		}
		page, cursor, err := listOf(answer, key)
		if err != nil {
			return nil, false, err
		}
		items = append(items, page...)
		more = cursor != "" || byOffset && len(page) == size
		if !more || len(page) == 0 || limit > 0 && len(items) >= limit {
			return items, more && len(page) > 0, nil
		}
		query.Set("cursor", cursor)
		if cursor == "" {
			query.Del("cursor")
		}
	}
}

// listOf returns the items of an answer and the cursor of the next page.
func listOf(answer json.RawMessage, key string) ([]json.RawMessage, string, error) {
	var items []json.RawMessage
	if key == "" {
		err := json.Unmarshal(answer, &items)
		return items, "", badAnswer(err)
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(answer, &object); err != nil {
		return nil, "", badAnswer(err)
	}
	var cursor *string
	if next, ok := object["nextCursor"]; ok {
		if err := json.Unmarshal(next, &cursor); err != nil {
			return nil, "", badAnswer(err)
		}
	}
	if err := json.Unmarshal(object[key], &items); err != nil {
		return nil, "", badAnswer(err)
	}
	if cursor == nil {
		return items, "", nil
	}
	return items, *cursor, nil
}

func badAnswer(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the broker's answer is not what was expected: %w", err)
}

// decode reads an answer.
func decode[T any](answer json.RawMessage) (T, error) {
	var value T
	if err := json.Unmarshal(answer, &value); err != nil {
		return value, badAnswer(err)
	}
	return value, nil
}

// list reads a list and shows it; none is exit code 4.
func (a *app) list(ctx context.Context, path string, query url.Values, key string, limit int, byOffset bool, what string, columns []output.Column) error {
	items, more, err := a.pages(ctx, path, query, key, limit, byOffset)
	if err != nil {
		return err
	}
	if err := a.show(key, items, columns); err != nil {
		return err
	}
	if more {
		a.remark("there are more; --limit 0 shows all")
	}
	if len(items) == 0 {
		return empty("no %s", what)
	}
	return nil
}

// show prints the items of a list; an empty one has no table.
func (a *app) show(key string, items []json.RawMessage, columns []output.Column) error {
	if len(items) == 0 && a.printer.Format.Table() {
		return nil
	}
	return a.printer.List(key, items, columns)
}

// item sends a request and shows the answer.
func (a *app) item(ctx context.Context, method, path string, query url.Values, body any) error {
	answer, err := a.call(ctx, method, path, query, body)
	if err != nil {
		return err
	}
	return a.printer.Item(answer)
}

// values makes a query of pairs; empty values are left out.
func values(pairs ...string) url.Values {
	query := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			query.Set(pairs[i], pairs[i+1])
		}
	}
	return query
}
