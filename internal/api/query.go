package api

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"queenmq/internal/engine/pop"
)

// Defaults and bounds of the pop parameters. Values beyond the upper bounds are cut to them, as a batch is only ever a cap
// and a client asks again after an empty answer.
const (
	defaultPopBatch = 200
	maxPopTimeout   = time.Hour
)

// popParameters reads the query of a pop into request. Parameters are typed: an integer that is none, or does not fit 32
// bits (timeout: 64), a boolean other than true and false, or a parameter given twice is a 400 that names it. Unknown
// parameters are ignored: newer clients send some.
func popParameters(query string, request *pop.Request) error {
	var seen [len(popParameterNames)]bool
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		rawName, rawValue, _ := strings.Cut(pair, "=")
		name, err := unescapeQuery(rawName)
		if err != nil {
			continue // a name that cannot be read is not one of ours
		}
		index := popParameter(name)
		if index < 0 {
			continue
		}
		if seen[index] {
			return newError(codeInvalidParameter, name+" is given twice")
		}
		seen[index] = true
		value, err := unescapeQuery(rawValue)
		if err != nil {
			return newError(codeInvalidParameter, name+" is not correctly percent-encoded")
		}
		if err := popParameterValue(name, value, request); err != nil {
			return err
		}
	}
	return nil
}

// popParameterNames are the parameters of the pop routes.
var popParameterNames = [...]string{
	"batch", "partitions", "autoAck", "wait", "timeout", "leaseSeconds", "consumerGroup", "subscriptionMode", "subscriptionFrom",
	"namespace", "task",
}

func popParameter(name string) int {
	for i, known := range popParameterNames {
		if name == known {
			return i
		}
	}
	return -1
}

func popParameterValue(name, value string, request *pop.Request) error {
	var err error
	switch name {
	case "batch":
		request.Batch, err = integerParameter(name, value)
		request.Batch = min(max(request.Batch, 1), pop.MaxBatch)
	case "partitions":
		request.MaxPartitions, err = integerParameter(name, value)
	case "autoAck":
		request.AutoAck, err = booleanParameter(name, value)
	case "wait":
		request.Wait, err = booleanParameter(name, value)
	case "timeout":
		request.Timeout, err = timeoutParameter(name, value)
	case "leaseSeconds":
		request.LeaseSeconds, err = integerParameter(name, value)
		request.LeaseSeconds = min(max(request.LeaseSeconds, 0), pop.MaxLeaseSeconds)
	case "consumerGroup":
		request.Group, err = nameParameter(name, value)
	case "namespace":
		request.Namespace, err = nameParameter(name, value)
	case "task":
		request.Task, err = nameParameter(name, value)
	case "subscriptionMode":
		request.SubMode = value
	case "subscriptionFrom":
		request.SubFrom = zoneSign(value)
	}
	return err
}

func integerParameter(name, value string) (int, error) {
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil {
		return 0, newError(codeInvalidParameter, fmt.Sprintf("%s must be an integer of 32 bits, not %s", name, quoteShort(value)))
	}
	return int(n), nil
}

func timeoutParameter(name, value string) (time.Duration, error) {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return 0, newError(codeInvalidParameter, fmt.Sprintf("%s must be an integer number of milliseconds, not %s", name, quoteShort(value)))
	}
	n = min(max(n, 0), maxPopTimeout.Milliseconds())
	return time.Duration(n) * time.Millisecond, nil
}

func booleanParameter(name, value string) (bool, error) {
	switch value {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, newError(codeInvalidParameter, fmt.Sprintf("%s must be true or false, not %s", name, quoteShort(value)))
}

func nameParameter(name, value string) (string, error) {
	if fault := nameFault(value); fault != "" {
		return "", newError(codeInvalidName, name+" "+fault)
	}
	return value, nil
}

// unescapeQuery is url.QueryUnescape without work for the usual case.
func unescapeQuery(text string) (string, error) {
	if !strings.ContainsAny(text, "%+") {
		return text, nil
	}
	return url.QueryUnescape(text)
}

// zoneSign gives a time back the plus of its zone. Clients that put a time into an address as it is send "…T08:00:00+02:00", and a plus in
// a query is a space.
func zoneSign(text string) string {
	const date = len("2006-01-02") // the space behind it, if any, stands for the T
	at := strings.LastIndexByte(text, ' ')
	if at <= date || at+1 == len(text) || text[at+1] < '0' || text[at+1] > '9' {
		return text
	}
	return text[:at] + "+" + text[at+1:]
}

// quoteShort quotes what a client sent, cut to a length that fits an error text.
func quoteShort(value string) string {
	const limit = 40
	if len(value) > limit {
		value = value[:limit] + "…"
	}
	return strconv.Quote(value)
}
