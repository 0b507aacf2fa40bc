package mesh

import (
	"encoding/json"
	"encoding/json/jsontext"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
)

const (
	// protocol is the version of the payloads. Others are ignored.
	protocol = 1
	// maxPayload is how long a payload may be; the server refuses 8,000 bytes.
	maxPayload = 7900
	// maxName is how many characters the names of queues, partitions and groups have at most.
	maxName = 255
)

// kind is what a payload tells.
type kind string

const (
	kindMessages kind = "m" // messages became available in partitions, or somewhere in queues
	kindReleased kind = "r" // leases of groups on partitions ended before their time
	kindQueue    kind = "q" // queues were configured or deleted
	kindGroup    kind = "g" // groups were moved or deleted
	kindFlags    kind = "f" // a maintenance switch was turned
	kindAlive    kind = "h" // heartbeat
)

// payload is one notification. Its keys are short because a payload is.
type payload struct {
	Version  int       `json:"v"`
	Server   string    `json:"s"`
	Instance uuid.UUID `json:"b"`
	Kind     kind      `json:"t"`
	Items    []item    `json:"i,omitempty"`

	// Of heartbeats.
	Build   string `json:"build,omitempty"`
	Address string `json:"at,omitempty"`
	Started int64  `json:"up,omitempty"` // milliseconds since the start of the broker
}

// item names a queue, and what of it is meant.
type item struct {
	Tenant *uuid.UUID `json:"t,omitempty"` // nil is the default tenant
	Queue  string     `json:"q"`           // "" is every queue of the tenant, for groups
	Group  string     `json:"g,omitempty"` // "" is every group
	// Partitions are those that have messages, or whose lease ended. None: somewhere in the queue.
	Partitions []string `json:"p,omitempty"`
}

var errMalformed = errors.New("not a hint of a broker")

// decode reads a payload and checks every name in it: it may come from anybody. Unknown versions and kinds are errors too.
func decode(text string) (payload, error) {
	var p payload
	if len(text) > maxPayload || json.Unmarshal([]byte(text), &p) != nil || p.Version != protocol {
		return payload{}, errMalformed
	}
	if !isName(p.Server) || !isName(p.Build) || !isName(p.Address) || p.Started < 0 {
		return payload{}, errMalformed
	}
	switch p.Kind {
	case kindMessages, kindReleased, kindQueue, kindGroup, kindFlags, kindAlive:
	default:
		return payload{}, errMalformed
	}
	for _, it := range p.Items {
		if !isName(it.Queue) || !isName(it.Group) || it.Queue == "" && p.Kind != kindGroup {
			return payload{}, errMalformed
		}
		for _, name := range it.Partitions {
			if !isName(name) {
				return payload{}, errMalformed
			}
		}
	}
	return p, nil
}

// isName says whether a name has a length and characters that a queue's may have.
func isName(name string) bool {
	if len(name) > maxName && utf8.RuneCountInString(name) > maxName {
		return false
	}
	for i := range len(name) {
		if name[i] < 0x20 {
			return false
		}
	}
	return true
}

// signature is a server's name as others accept it: a longer one would leave no room in a payload for anything else.
func signature(server string) string {
	server = strings.Map(func(r rune) rune {
		if r < 0x20 {
			return utf8.RuneError
		}
		return r
	}, server)
	if len(server) > maxName {
		if runes := []rune(server); len(runes) > maxName {
			server = string(runes[:maxName])
		}
	}
	return server
}

// weight is how much of its sender's allowance a payload uses up.
func (p *payload) weight() int {
	n := 1
	for _, it := range p.Items {
		n += max(len(it.Partitions), 1)
	}
	return n
}

// sender is how a broker signs.
type sender struct {
	server        string
	instance      uuid.UUID
	defaultTenant uuid.UUID
}

// begin opens a payload.
func (s sender) begin(k kind) []byte {
	dst := append([]byte(`{"v":`), strconv.Itoa(protocol)...)
	dst = append(dst, `,"s":`...)
	dst = appendText(dst, s.server)
	dst = append(dst, `,"b":"`...)
	dst = append(dst, s.instance.String()...)
	dst = append(dst, `","t":"`...)
	dst = append(dst, k...)
	return append(dst, '"')
}

// bare is a payload of a kind without items.
func (s sender) bare(k kind) string { return string(append(s.begin(k), '}')) }

// heartbeat tells who this broker is.
func (s sender) heartbeat(build, address string, uptimeMillis int64) string {
	dst := append(s.begin(kindAlive), `,"build":`...)
	dst = appendText(dst, build)
	dst = append(dst, `,"at":`...)
	dst = appendText(dst, address)
	dst = append(dst, `,"up":`...)
	dst = strconv.AppendInt(dst, uptimeMillis, 10)
	return string(append(dst, '}'))
}

func appendText(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s) // its only error says that bytes were replaced
	return dst
}
