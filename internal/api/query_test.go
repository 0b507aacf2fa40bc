package api

import (
	"math"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/pop"
)

func TestPopParameters(t *testing.T) {
	t.Parallel()
	base := pop.Request{Batch: 200, MaxPartitions: 1, Timeout: time.Second}
	with := func(change func(*pop.Request)) pop.Request {
		r := base
		change(&r)
		return r
	}
	for _, tc := range []struct {
		name, query string
		want        pop.Request
	}{
		{"Nothing", "", base},
		{"Unknown", "autopilot=true&conflation=%zz&%zz=1&&=&includePartitions", base},
		{
			"All", "batch=5&partitions=3&autoAck=true&wait=true&timeout=1500&leaseSeconds=9&consumerGroup=g%20h&subscriptionMode=new&subscriptionFrom=now&namespace=n&task=t",
			pop.Request{
				Batch: 5, MaxPartitions: 3, AutoAck: true, Wait: true, Timeout: 1500 * time.Millisecond, LeaseSeconds: 9,
				Group: "g h", SubMode: "new", SubFrom: "now", Namespace: "n", Task: "t",
			},
		},
		{"BatchFloor", "batch=-3", with(func(r *pop.Request) { r.Batch = 1 })},
		{"BatchCeiling", "batch=2147483647", with(func(r *pop.Request) { r.Batch = pop.MaxBatch })},
		{"NoPartitionCap", "partitions=-1", with(func(r *pop.Request) { r.MaxPartitions = -1 })},
		{"Signs", "batch=%2B7&timeout=-1&leaseSeconds=-5", with(func(r *pop.Request) { r.Batch, r.Timeout, r.LeaseSeconds = 7, 0, 0 })},
		{"TimeoutCeiling", "timeout=9223372036854775807", with(func(r *pop.Request) { r.Timeout = time.Hour })},
		{"LeaseCeiling", "leaseSeconds=2147483647", with(func(r *pop.Request) { r.LeaseSeconds = pop.MaxLeaseSeconds })},
		{"PlusOfAZone", "subscriptionFrom=2026-09-14T08:00:00+02:00", with(func(r *pop.Request) { r.SubFrom = "2026-09-14T08:00:00+02:00" })},
		{"EncodedPlusOfAZone", "subscriptionFrom=2026-09-14%2008:00:00%2B0200", with(func(r *pop.Request) { r.SubFrom = "2026-09-14 08:00:00+0200" })},
		{"PlusBehindASpace", "subscriptionFrom=2026-09-14+08:00:00+02", with(func(r *pop.Request) { r.SubFrom = "2026-09-14 08:00:00+02" })},
		{"NoPlus", "subscriptionFrom=2026-09-14+08:00:00", with(func(r *pop.Request) { r.SubFrom = "2026-09-14 08:00:00" })},
		{"NoTime", "subscriptionFrom=Mon+Sep+14+2026+x+", with(func(r *pop.Request) { r.SubFrom = "Mon Sep 14 2026 x " })},
		{"EncodedName", "b%61tch=4", with(func(r *pop.Request) { r.Batch = 4 })},
		{"Emoji", "consumerGroup=%F0%9F%98%80%2F%25", with(func(r *pop.Request) { r.Group = "😀/%" })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := base
			require.NoError(t, popParameters(tc.query, &got))
			require.Equal(t, tc.want, got)
		})
	}
	for _, tc := range []struct{ query, want string }{
		{"batch=", `batch must be an integer of 32 bits, not ""`},
		{"batch=1.5", "batch must be an integer"},
		{"batch=0x10", "batch must be an integer"},
		{"batch=2147483648", "batch must be an integer of 32 bits"},
		{"partitions=99999999999999999999", "partitions must be an integer"},
		{"leaseSeconds=9223372036854775808", "leaseSeconds must be an integer"},
		{"timeout=9223372036854775808", "timeout must be an integer number of milliseconds"},
		{"timeout=" + strings.Repeat("9", 100), "…"},
		{"autoAck=1", `autoAck must be true or false, not "1"`},
		{"wait=TRUE", "wait must be true or false"},
		{"batch=1&batch=1", "batch is given twice"},
		{"consumerGroup=%zz", "consumerGroup is not correctly percent-encoded"},
		{"consumerGroup=%00", "consumerGroup must not contain control characters"},
		{"namespace=%ff", "namespace must be valid UTF-8"},
		{"task=" + strings.Repeat("t", 256), "task is longer than 255 characters"},
	} {
		got := base
		require.ErrorContains(t, popParameters(tc.query, &got), tc.want, tc.query)
	}
}

// FuzzPopParameters compares with net/url: what it accepts has the values that url.ParseQuery finds, and stays in bounds.
func FuzzPopParameters(f *testing.F) {
	f.Add("batch=5&wait=true&timeout=100&consumerGroup=g")
	f.Add("autoAck=false&partitions=-1&leaseSeconds=30&subscriptionFrom=2026-01-01T00%3A00%3A00Z")
	f.Add("namespace=a+b&task=%F0%9F%98%80&batch=99999999999")
	f.Add("&&batch=;batch=1&%")
	f.Fuzz(func(t *testing.T, query string) {
		got := pop.Request{Batch: 200, MaxPartitions: 1}
		err := popParameters(query, &got)
		if err != nil {
			if c := classify(err, "").code; c != codeInvalidParameter && c != codeInvalidName {
				t.Fatalf("a bad query must be a 400: %v", err)
			}
			return
		}
		if got.Batch < 1 || got.Batch > pop.MaxBatch || got.Timeout < 0 || got.Timeout > maxPopTimeout || got.LeaseSeconds < 0 ||
			got.LeaseSeconds > pop.MaxLeaseSeconds || got.MaxPartitions > math.MaxInt32 {
			t.Fatalf("out of bounds: %+v", got)
		}
		for _, name := range []string{got.Group, got.Namespace, got.Task} {
			if !utf8.ValidString(name) || hasControl(name) || utf8.RuneCountInString(name) > maxNameCharacters {
				t.Fatalf("accepted the name %q", name)
			}
		}
		if strings.Contains(query, ";") {
			return // net/url refuses what has a semicolon; here it is a character
		}
		values, err := url.ParseQuery(query)
		if err != nil {
			return // a broken parameter that is none of ours is ignored here
		}
		for name, value := range map[string]string{
			"consumerGroup": got.Group, "namespace": got.Namespace, "task": got.Task, "subscriptionMode": got.SubMode,
		} {
			if values.Get(name) != value {
				t.Fatalf("%s is %q, net/url says %q", name, value, values.Get(name))
			}
		}
		if got.SubFrom != zoneSign(values.Get("subscriptionFrom")) {
			t.Fatalf("subscriptionFrom is %q, net/url says %q", got.SubFrom, values.Get("subscriptionFrom"))
		}
		if got.AutoAck != (values.Get("autoAck") == "true") || got.Wait != (values.Get("wait") == "true") {
			t.Fatalf("booleans differ from net/url: %+v", got)
		}
	})
}
