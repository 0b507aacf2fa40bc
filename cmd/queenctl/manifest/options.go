package manifest

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// A Kind is what an option's value must be.
type Kind string

// The kinds of values.
const (
	Int  Kind = "int"
	Bool Kind = "bool"
)

// An Option is one option of a queue. Its bounds are the broker's to check.
type Option struct {
	Name    string
	Kind    Kind
	Meaning string
}

// Options are the options of a queue by their names on the wire, in the order in which documents list them.
var Options = []Option{
	{"leaseTime", Int, "seconds that a popped message stays leased"},
	{"retryLimit", Int, "failed deliveries until a message becomes a dead letter"},
	{"retryDelay", Int, "milliseconds between retries"},
	{"redeliveryDelayMs", Int, "milliseconds that a failed message waits"},
	{"maxDeliveries", Int, "deliveries of any kind until a message becomes a dead letter; 0 is any number"},
	{"deadLetterQueue", Bool, "keep messages that failed too often"},
	{"dlqAfterMaxRetries", Bool, "make them dead letters after retry-limit"},
	{"dlqRetentionSeconds", Int, "seconds that dead letters are kept; 0 is for ever"},
	{"maxSize", Int, "most unconsumed messages; 0 is any number"},
	{"dedupWindowSeconds", Int, "seconds that a transaction id is remembered; 0 is not at all"},
	{"delayedProcessing", Int, "seconds until a message can be popped"},
	{"windowBuffer", Int, "seconds without a push until messages can be popped"},
	{"minPopWaitTime", Int, "milliseconds that a pop waits for more messages"},
	{"retentionEnabled", Bool, "delete messages by age"},
	{"retentionSeconds", Int, "age at which messages go, read or not; 0 is never"},
	{"completedRetentionSeconds", Int, "age at which consumed messages go; 0 is never"},
	{"maxWaitTimeSeconds", Int, "age at which unread messages go; 0 is never"},
	{"encryptionEnabled", Bool, "encrypt payloads at rest"},
	{"priority", Int, "priority among queues"},
	{"ttl", Int, "time to live in seconds"},
}

// Flag is the option's name as a flag: leaseTime is lease-time.
func (o Option) Flag() string {
	var b strings.Builder
	for _, r := range o.Name {
		if unicode.IsUpper(r) {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// Check reports a value of the wrong kind.
func (o Option) Check(value json.RawMessage) error {
	text := string(value)
	switch o.Kind {
	case Bool:
		if text != "true" && text != "false" {
			return fmt.Errorf("%s must be true or false, not %s", o.Name, text)
		}
	case Int:
		if _, err := strconv.ParseInt(text, 10, 64); err != nil || text[0] == '+' || text != "0" && strings.HasPrefix(text, "0") {
			return fmt.Errorf("%s must be a whole number, not %s", o.Name, text)
		}
	}
	return nil
}

func optionNamed(name string) (Option, bool) {
	for _, o := range Options {
		if o.Name == name {
			return o, true
		}
	}
	return Option{}, false
}
