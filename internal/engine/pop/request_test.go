package pop

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"queenmq/internal/pg"
)

func TestSubscriptionModeKnowsTwoModes(t *testing.T) {
	t.Parallel()
	for sent, want := range map[string]string{
		"new": "new", "new-only": "new", "new_only": "new", "newonly": "new", " NEW ": "new", "New-Only\n": "new",
		"all": "all", "": "all", "from_beginning": "all", "earliest": "all", "latest": "all", "newest": "all", "new only": "all",
	} {
		require.Equal(t, want, subscriptionMode(sent), "%q", sent)
	}
}

func TestSubscriptionFromIsNowOrATimeInUTC(t *testing.T) {
	t.Parallel()
	cases := []struct{ sent, want string }{
		{"", ""},
		{"  ", ""},
		{"now", "now"},
		{" NOW ", "now"},
		{"2026-09-14T06:21:08Z", "2026-09-14T06:21:08.000000Z"},
		{"2026-09-14T06:21:08.4173021Z", "2026-09-14T06:21:08.417302Z"},
		{"2026-09-14T06:21:08+05:30", "2026-09-14T00:51:08.000000Z"},
		{"2026-09-14T06:21:08.417302", "2026-09-14T06:21:08.417302Z"},
		{"2026-09-14 06:21:08+00:00", "2026-09-14T06:21:08.000000Z"},
		{"2026-09-14T06:21:08+0530", "2026-09-14T00:51:08.000000Z"},
		{"2026-09-14T06:21:08.25-0200", "2026-09-14T08:21:08.250000Z"},
		{"2026-09-14 06:21:08.4173+02", "2026-09-14T04:21:08.417300Z"},
		{"2026-09-14T06:21:08+02", "2026-09-14T04:21:08.000000Z"},
		{"2026-09-14 06:21:08+0000", "2026-09-14T06:21:08.000000Z"},
		{"2026-09-14T06:21Z", "2026-09-14T06:21:00.000000Z"},
		{"2026-09-14", "2026-09-14T00:00:00.000000Z"},
		{"1970-01-01T00:00:00.000Z", "1970-01-01T00:00:00.000000Z"},
		{"0000-01-01T00:00:00Z", "1970-01-01T00:00:00.000000Z"},
		{"9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59.000000Z"},
		// What PostgreSQL would understand and nobody should rely on.
		{"tomorrow", "nonsense"},
		{"infinity", "nonsense"},
		{"-infinity", "nonsense"},
		{"epoch", "nonsense"},
		{"yesterday 10:00", "nonsense"},
		{"Jan 8 1999", "nonsense"},
		{"20260914", "nonsense"},
		{"2026-13-01T00:00:00Z", "nonsense"},
		{"2026-09-14T06:21:08 Europe/Berlin", "nonsense"},
		{"'; DROP TABLE queen.queues; --", "nonsense"},
		{"\x00", "nonsense"},
	}
	for _, c := range cases {
		queue, partition := c.want, c.want
		if c.want == "nonsense" {
			queue, partition = "now", ""
		}
		require.Equal(t, queue, subscriptionFrom(Queue, c.sent), "queue pop, %q", c.sent)
		require.Equal(t, queue, subscriptionFrom(Discovery, c.sent), "discovery pop, %q", c.sent)
		require.Equal(t, partition, subscriptionFrom(Partition, c.sent), "partition pop, %q", c.sent)
	}
}

func TestSubscriptionFromNeverPassesAnythingElseOn(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(rapid.Int64Range(-62135596800, 253402300799).Draw(t, "unix"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanos"))
		zone := time.FixedZone("", rapid.IntRange(-1439, 1439).Draw(t, "minutes")*60)
		sent := rapid.OneOf(rapid.Just(at.In(zone).Format(time.RFC3339Nano)), rapid.String()).Draw(t, "sent")
		got := subscriptionFrom(Queue, sent)
		if got == "" || got == "now" {
			return
		}
		parsed, err := time.Parse(time.RFC3339Nano, got)
		if err != nil || parsed.Before(earliestTime) || parsed.After(latestTime) || parsed.Format("2006-01-02T15:04:05.000000Z") != got {
			t.Fatalf("%q became %q", sent, got)
		}
	})
}

func TestClaimNormalisesTheRequest(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name    string
		request Request
		want    pg.PopRequest
	}{
		{
			"zero values",
			Request{Tenant: tenant, Queue: "orders"},
			pg.PopRequest{Tenant: tenant, Queue: "orders", Group: pg.QueueModeGroup, Budget: 1, Worker: "w", SubMode: "new"},
		},
		{
			"bounds",
			Request{Tenant: tenant, Queue: "orders", Group: "g", Batch: math.MaxInt, MaxPartitions: math.MaxInt, SubMode: "ALL"},
			pg.PopRequest{Tenant: tenant, Queue: "orders", Group: "g", Budget: MaxBatch, Worker: "w", SubMode: "all"},
		},
		{
			"negative",
			Request{Tenant: tenant, Queue: "orders", Group: "g", Batch: -5, MaxPartitions: -1, SubFrom: "now"},
			pg.PopRequest{Tenant: tenant, Queue: "orders", Group: "g", Budget: 1, Worker: "w", SubMode: "new", SubFrom: "now"},
		},
		{
			"everything",
			Request{
				Tenant: tenant, Kind: Discovery, Namespace: "shop", Task: "mail", Group: "g", Batch: 7, MaxPartitions: 3,
				AutoAck: true, SubMode: "new-only", SubFrom: "2026-09-14T06:21:08Z",
			},
			pg.PopRequest{
				Tenant: tenant, Namespace: "shop", Task: "mail", Group: "g", Budget: 7, MaxPartitions: 3,
				AutoAck: true, SubMode: "new", SubFrom: "2026-09-14T06:21:08.000000Z", Worker: "w",
			},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			require.Empty(t, cmp.Diff(c.want, c.request.claim("w", "new")))
		})
	}
}

func TestLeaseTime(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name    string
		request Request
		want    int
		reads   []string
	}{
		{"of the queue", Request{Queue: "orders"}, 300, []string{"settings", "wildcard"}},
		{"of an unknown queue", Request{Queue: "new"}, 60, []string{"settings", "wildcard"}},
		{"asked for", Request{Queue: "orders", LeaseSeconds: 5}, 5, []string{"wildcard"}},
		{"asked for, not positive", Request{Queue: "orders", LeaseSeconds: -5}, 300, []string{"settings", "wildcard"}},
		{"asked for, too long", Request{Queue: "orders", LeaseSeconds: math.MaxInt}, MaxLeaseSeconds, []string{"wildcard"}},
		{"discovery leaves it to each queue", Request{Kind: Discovery, Namespace: "shop"}, 0, []string{"discover"}},
		{"discovery asked for", Request{Kind: Discovery, Namespace: "shop", LeaseSeconds: 9}, 9, []string{"discover"}},
		{"auto-ack has none", Request{Queue: "orders", AutoAck: true}, 0, []string{"wildcard"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server, db, _ := setup(t, Config{})
			_, err := server.Pop(t.Context(), c.request)
			require.NoError(t, err)
			require.Equal(t, c.reads, db.log())
			require.Equal(t, c.want, db.last().LeaseSeconds)
		})
	}
}

func TestLeaseTimeIsRememberedForAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, db, _ := setup(t, Config{})
		pop := func() []string {
			_, err := server.Pop(t.Context(), Request{Tenant: tenant, Queue: "orders", Kind: Partition, Partition: "eu"})
			require.NoError(t, err)
			return db.log()
		}
		require.Equal(t, []string{"settings", "specific"}, pop())
		require.Equal(t, []string{"specific"}, pop())
		time.Sleep(cacheTTL + time.Second)
		require.Equal(t, []string{"settings", "specific"}, pop())
		server.ForgetQueue(tenant, "other")
		require.Equal(t, []string{"specific"}, pop())
		server.ForgetQueue(tenant, "orders")
		require.Equal(t, []string{"settings", "specific"}, pop())
	})
}

func TestRegisteredGroupLooksReadOnlyFirst(t *testing.T) {
	t.Parallel()
	server, db, _ := setup(t, Config{})
	pop := func(group string) []string {
		_, err := server.Pop(t.Context(), Request{Tenant: tenant, Queue: "orders", Group: group, LeaseSeconds: 5})
		require.NoError(t, err)
		return db.log()
	}
	require.Equal(t, []string{"wildcard"}, pop("a"), "an unknown group must be registered")
	require.Equal(t, []string{"pending"}, pop("a"))
	require.Equal(t, []string{"wildcard"}, pop("b"))
	db.setPending(true)
	require.Equal(t, []string{"pending", "wildcard"}, pop("a"))

	server.ForgetGroup(tenant, "orders", "a")
	db.setPending(false)
	require.Equal(t, []string{"wildcard"}, pop("a"))
	require.Equal(t, []string{"pending"}, pop("b"))
	server.ForgetGroup(tenant, "", "b")
	require.Equal(t, []string{"wildcard"}, pop("b"))
	server.ForgetAll()
	require.Equal(t, []string{"wildcard"}, pop("a"))
	server.ForgetQueue(tenant, "orders")
	require.Equal(t, []string{"wildcard"}, pop("a"))
}
