package http1

import (
	"bytes"
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
)

// A verdict says what the bytes read so far are.
type verdict int

const (
	incomplete verdict = iota // the beginning of a header, as far as one can tell
	understood                // a whole header
	foreign                   // anything else: for the others
)

// The marks of a byte in classes.
const (
	inToken   = 1 << iota // of a field name
	inValue               // of a field value
	inPath                // of a path whose escaped form is itself
	inHost                // of a host
	inDecimal             // a digit
)

var classes = func() (table [256]byte) {
	for c := 0x20; c < 0x7f; c++ {
		table[c] |= inValue
	}
	for _, c := range []byte("!#$%&'*+-.^_`|~") {
		table[c] |= inToken
	}
	for _, c := range []byte("/-._~:") {
		table[c] |= inPath
	}
	for _, c := range []byte("-._:[]") {
		table[c] |= inHost
	}
	for _, of := range []struct {
		first, last byte
		marks       byte
	}{{'0', '9', inToken | inPath | inHost | inDecimal}, {'a', 'z', inToken | inPath | inHost}, {'A', 'Z', inToken | inPath | inHost}} {
		for c := of.first; c <= of.last; c++ {
			table[c] |= of.marks
		}
	}
	return table
}()

// all tells whether every byte of text has a mark.
func all[T string | []byte](text T, mark byte) bool {
	for i := range len(text) {
		if classes[text[i]]&mark == 0 {
			return false
		}
	}
	return true
}

// maxFields is the most header fields of a request served here.
const maxFields = 32

// A field is where name and value of a header field stand.
type field struct{ name, nameEnd, value, valueEnd uint16 }

const (
	protocol    = " HTTP/1.1\r\n"
	longestVerb = len("POST ")
)

// parse reads a header from what has come. The exchange is nil unless it is understood.
func (c *conn) parse() (*exchange, verdict) {
	text := c.in
	method := ""
	switch {
	case bytes.HasPrefix(text, []byte("GET /")):
		method = http.MethodGet
	case bytes.HasPrefix(text, []byte("POST /")):
		method = http.MethodPost
	case len(text) <= longestVerb && (strings.HasPrefix("GET /", string(text)) || strings.HasPrefix("POST /", string(text))):
		return nil, incomplete
	default:
		return nil, foreign
	}
	target := len(method) + 1
	targetEnd := target
	for targetEnd < len(text) && classes[text[targetEnd]]&inValue != 0 && text[targetEnd] != ' ' {
		targetEnd++
	}
	at := targetEnd + len(protocol)
	if at > len(text) {
		if strings.HasPrefix(protocol, string(text[targetEnd:])) {
			return nil, incomplete
		}
		return nil, foreign
	}
	if string(text[targetEnd:at]) != protocol {
		return nil, foreign
	}
	var fields [maxFields]field
	for n := 0; ; n++ {
		rest := text[at:]
		line := bytes.IndexByte(rest, '\n')
		if line < 0 {
			if end := len(rest) - 1; end >= 0 && rest[end] == '\r' {
				rest = rest[:end]
			}
			if !all(rest, inValue) {
				return nil, foreign
			}
			return nil, incomplete
		}
		if line == 0 || rest[line-1] != '\r' {
			return nil, foreign
		}
		if line == 1 {
			return c.exchangeOf(method, text[:at+2], target, targetEnd, fields[:n])
		}
		if n == maxFields || !fields[n].read(rest[:line-1], at) {
			return nil, foreign
		}
		at += line + 1
	}
}

// read takes a line of the header apart; at is where it begins.
func (f *field) read(line []byte, at int) bool {
	colon := bytes.IndexByte(line, ':')
	if colon <= 0 || !all(line[:colon], inToken) || !all(line[colon+1:], inValue) {
		return false
	}
	begin, end := colon+1, len(line)
	for begin < end && line[begin] == ' ' {
		begin++
	}
	for begin < end && line[end-1] == ' ' {
		end--
	}
	*f = field{name: uint16(at), nameEnd: uint16(at + colon), value: uint16(at + begin), valueEnd: uint16(at + end)} //nolint:gosec // within the buffer
	return true
}

// exchangeOf makes the request that a header describes, and takes the header out of what has come.
func (c *conn) exchangeOf(method string, head []byte, target, targetEnd int, fields []field) (*exchange, verdict) {
	text := string(head) // the strings of the request are parts of it
	path, _, _ := strings.Cut(text[target:targetEnd], "?")
	if !c.server.cfg.Takes(method, path) {
		return nil, foreign
	}
	x := exchanges.Get().(*exchange) //nolint:forcetypeassert // the pool holds nothing else
	x.conn = c
	request := &x.request
	request.Method, request.RequestURI = method, text[target:targetEnd]
	if !x.setURL() || !x.setHeader(text, fields) {
		x.recycle()
		return nil, foreign
	}
	c.in = c.in[len(head):]
	request.Body = http.NoBody
	if x.body.left = request.ContentLength; x.body.left > 0 {
		request.Body = &x.body
	}
	if len(c.in) == 0 {
		c.releaseBuffer()
	}
	return x, understood
}

// setURL reads the target: without work for plain paths, with that of net/http for all others.
func (x *exchange) setURL() bool {
	path, query, found := strings.Cut(x.request.RequestURI, "?")
	if all(path, inPath) && !strings.HasPrefix(path, "//") {
		x.url = url.URL{Path: path, RawQuery: query, ForceQuery: found && query == ""}
		return true
	}
	parsed, err := url.ParseRequestURI(x.request.RequestURI)
	if err != nil {
		return false
	}
	x.url = *parsed
	return true
}

// setHeader reads the fields, and refuses those that change how a request is to be read.
func (x *exchange) setHeader(text string, fields []field) bool {
	request := &x.request
	length, hosts := int64(-1), 0
	request.Close = false
	for i := range fields {
		f := &fields[i]
		name, value := canonical(text[f.name:f.nameEnd]), text[f.value:f.valueEnd]
		switch name {
		case "Host":
			if hosts++; hosts > 1 || value == "" || !all(value, inHost) {
				return false
			}
			request.Host = value
			continue
		case "Content-Length":
			if length >= 0 || len(value) == 0 || len(value) > 18 || !all(value, inDecimal) {
				return false
			}
			length, _ = strconv.ParseInt(value, 10, 64) // 18 digits fit
		case "Connection":
			switch {
			case request.Header["Connection"] != nil:
				return false
			case strings.EqualFold(value, "close"):
				request.Close = true
			case !strings.EqualFold(value, "keep-alive"):
				return false
			}
		case "Transfer-Encoding", "Expect", "Upgrade", "Trailer", "Te", "Http2-Settings", "Pragma":
			return false
		}
		request.Header[name] = append(request.Header[name], value)
	}
	if hosts != 1 || length >= 0 && request.Method == http.MethodGet {
		return false
	}
	request.ContentLength = max(length, 0)
	return true
}

// usual are names of fields that clients send, in the two forms that need no work.
var usual = func() map[string]string {
	names := map[string]string{}
	for _, name := range []string{
		"Accept", "Accept-Encoding", "Accept-Language", "Authorization", "Cache-Control", "Connection", "Content-Length", "Content-Type", "Host",
		"Origin", "User-Agent", "X-Queen-Tenant",
	} {
		names[name], names[strings.ToLower(name)] = name, name
	}
	return names
}()

func canonical(name string) string {
	if known, ok := usual[name]; ok {
		return known
	}
	return textproto.CanonicalMIMEHeaderKey(name)
}
