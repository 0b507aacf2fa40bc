package mesh

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var (
	defaultTenant = uuid.MustParse("00000000-0000-0000-0000-000000000001")
	otherTenant   = uuid.MustParse("00000000-0000-0000-0000-000000000002")
)

func testSender() sender {
	return sender{server: "broker-a", instance: uuid.MustParse("00000000-0000-7000-8000-00000000000a"), defaultTenant: defaultTenant}
}

// read decodes payloads and gathers what they say.
func read(t require.TestingT, payloads []string) (said map[string]bool, weight int) {
	said = map[string]bool{}
	for _, text := range payloads {
		require.LessOrEqual(t, len(text), maxPayload)
		p, err := decode(text)
		require.NoError(t, err, text)
		require.Equal(t, "broker-a", p.Server)
		weight += p.weight()
		for _, it := range p.Items {
			tenant := defaultTenant
			if it.Tenant != nil {
				tenant = *it.Tenant
			}
			what := fmt.Sprintf("%s %s %q %q", p.Kind, tenant, it.Queue, it.Group)
			for _, name := range it.Partitions {
				said[what+fmt.Sprintf(" %q", name)] = true
			}
			if len(it.Partitions) == 0 {
				said[what] = true
			}
		}
		if p.Kind == kindFlags {
			said["f"] = true
		}
	}
	return said, weight
}

func nameGenerator() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		name := rapid.StringOfN(rapid.RuneFrom([]rune(`ab"\/<&é水😀`+"\u2028\x7f")), 1, 12, -1).Draw(t, "name")
		if rapid.IntRange(0, 9).Draw(t, "long") == 0 {
			name = strings.Repeat(string([]rune(name)[:1]), maxName)
		}
		return name
	})
}

// Whatever gathers is said by the payloads, each of which a receiver accepts; queues stand for partitions only when these need too many.
func TestPayloadsSayWhatGathered(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := newOutbox()
		want := map[string]bool{}
		somewhere := map[queueKey]bool{}
		queues := map[string]string{} // of the leases that ended
		names := nameGenerator()
		for range rapid.IntRange(0, 60).Draw(t, "events") {
			key := queueKey{rapid.SampledFrom([]uuid.UUID{defaultTenant, otherTenant}).Draw(t, "tenant"), names.Draw(t, "queue")}
			switch rapid.IntRange(0, 6).Draw(t, "event") {
			case 0:
				o.flagsTurned()
				want["f"] = true
			case 1:
				o.changed(change{kind: kindQueue, key: key})
				want[fmt.Sprintf("q %s %q %q", key.tenant, key.queue, "")] = true
			case 2:
				group := names.Draw(t, "group")
				o.changed(change{kind: kindGroup, key: key, group: group})
				want[fmt.Sprintf("g %s %q %q", key.tenant, key.queue, group)] = true
			case 3:
				group := names.Draw(t, "group")
				for range rapid.IntRange(1, 20).Draw(t, "count") {
					partition := names.Draw(t, "partition")
					o.leaseEnded(key, partition, group)
					what := fmt.Sprintf("%s %q %q %q", key.tenant, key.queue, group, partition)
					want["r "+what], queues[what] = true, fmt.Sprintf("%s %q", key.tenant, key.queue)
				}
			case 4:
				somewhere[key] = true
				o.available(key, "")
			default:
				for range rapid.IntRange(1, 20).Draw(t, "count") {
					partition := names.Draw(t, "partition")
					o.available(key, partition)
					want[fmt.Sprintf("m %s %q %q %q", key.tenant, key.queue, "", partition)] = true
				}
			}
		}
		for key := range somewhere {
			prefix := fmt.Sprintf("m %s %q %q", key.tenant, key.queue, "")
			for what := range want {
				if strings.HasPrefix(what, prefix) {
					delete(want, what)
				}
			}
			want[prefix] = true
		}
		c, left := o.take(true)
		require.False(t, left)
		payloads, weight, partial := c.encode(testSender())
		said, weighed := read(t, payloads)
		require.Equal(t, weighed, weight)
		if !partial {
			require.Equal(t, want, said)
		}
		for what := range want {
			if !said[what] {
				require.True(t, partial)
				if queue, found := strings.CutPrefix(what, "r "); found {
					require.Contains(t, said, "m "+queues[queue]+` ""`, what)
					continue
				}
				require.True(t, said[what[:strings.LastIndex(what, ` "`)]], what)
			}
		}
		rest, _ := o.take(true)
		none, _, _ := rest.encode(testSender())
		require.Empty(t, none)
	})
}

func TestQueuesStandForTooManyEndedLeases(t *testing.T) {
	t.Parallel()
	o := newOutbox()
	for i := range 2 * maxReleased {
		o.leaseEnded(queueKey{defaultTenant, "many"}, fmt.Sprintf("a partition with a long name %d", i), "g")
	}
	o.leaseEnded(queueKey{otherTenant, "few"}, strings.Repeat("p", maxName+1), "g")
	c, _ := o.take(true)
	require.LessOrEqual(t, len(c.released[groupKey{queueKey{defaultTenant, "many"}, "g"}]), maxReleased)
	payloads, weight, partial := c.encode(testSender())
	require.True(t, partial)
	said, weighed := read(t, payloads)
	require.Equal(t, weighed, weight)
	require.Contains(t, said, fmt.Sprintf("m %s %q %q", defaultTenant, "many", ""))
	require.Contains(t, said, fmt.Sprintf("m %s %q %q", otherTenant, "few", ""), "a name that is no queue's is not told")
}

func TestQueuesStandForPartitionsThatNeedTooManyPayloads(t *testing.T) {
	t.Parallel()
	o := newOutbox()
	for i := range 5000 {
		o.available(queueKey{defaultTenant, "many"}, fmt.Sprintf("partition-%d", i))
	}
	o.available(queueKey{otherTenant, "few"}, "p")
	c, _ := o.take(true)
	payloads, _, partial := c.encode(testSender())
	require.True(t, partial)
	said, _ := read(t, payloads)
	require.Equal(t, map[string]bool{
		`m ` + defaultTenant.String() + ` "many" ""`: true, `m ` + otherTenant.String() + ` "few" ""`: true,
	}, said)
}

func TestManyQueuesNeverFillMoreThanEightPayloads(t *testing.T) {
	t.Parallel()
	o := newOutbox()
	for i := range 20_000 {
		o.available(queueKey{otherTenant, fmt.Sprintf("queue-%d", i)}, "p")
	}
	c, _ := o.take(true)
	payloads, _, partial := c.encode(testSender())
	require.True(t, partial)
	require.Len(t, payloads, maxPayloads)
	read(t, payloads)
}

func TestOutboxIsBounded(t *testing.T) {
	t.Parallel()
	o := newOutbox()
	key := queueKey{defaultTenant, "q"}
	for i := range maxGathered + 1 {
		o.available(key, fmt.Sprint(i))
	}
	require.Zero(t, o.gathered)
	require.True(t, o.queues[key].somewhere)
	for i := range maxChanges + 5 {
		o.changed(change{kind: kindQueue, key: queueKey{defaultTenant, fmt.Sprint(i)}})
	}
	require.EqualValues(t, 5, o.lost)
	c, left := o.take(false)
	require.True(t, left, "messages wait for their turn")
	require.Len(t, c.changes, maxChanges)
	o.putBack(c)
	c, left = o.take(true)
	require.False(t, left)
	require.Len(t, c.changes, maxChanges)
	require.Len(t, c.queues, 1)
}

func TestForeignPayloadsAreIgnored(t *testing.T) {
	t.Parallel()
	head := `"s":"x","b":"00000000-0000-7000-8000-00000000000b"`
	for name, text := range map[string]string{
		"NotJSON":          `hello`,
		"Empty":            ``,
		"OtherVersion":     `{"v":2,` + head + `,"t":"f"}`,
		"NoVersion":        `{` + head + `,"t":"f"}`,
		"OtherKind":        `{"v":1,` + head + `,"t":"z"}`,
		"NoInstance":       `{"v":1,"s":"x","b":"7","t":"f"}`,
		"ControlCharacter": `{"v":1,` + head + `,"t":"m","i":[{"q":"a\u0007"}]}`,
		"LongName":         `{"v":1,` + head + `,"t":"m","i":[{"q":"` + strings.Repeat("é", maxName+1) + `"}]}`,
		"NoQueue":          `{"v":1,` + head + `,"t":"m","i":[{"p":["a"]}]}`,
		"BadPartition":     `{"v":1,` + head + `,"t":"m","i":[{"q":"a","p":["\n"]}]}`,
		"BadTenant":        `{"v":1,` + head + `,"t":"m","i":[{"q":"a","t":"me"}]}`,
		"TooLong":          `{"v":1,` + head + `,"t":"f","x":"` + strings.Repeat("a", maxPayload) + `"}`,
	} {
		_, err := decode(text)
		require.Error(t, err, name)
	}
	p, err := decode(`{"v":1,` + head + `,"t":"m","i":[{"q":"a"}],"later":true}`)
	require.NoError(t, err, "members that a newer broker adds do not matter")
	require.Equal(t, "a", p.Items[0].Queue)
}

func TestAllowanceIsPerSenderAndRefills(t *testing.T) {
	t.Parallel()
	now := t0
	a := allowances{senders: map[uint32]*allowance{}, swept: now}
	require.True(t, a.take(1, allowedRate, now))
	require.False(t, a.take(1, 1, now))
	require.True(t, a.take(2, 1, now), "another sender has its own")
	now = now.Add(second / 2)
	require.True(t, a.take(1, allowedRate/2, now))
	require.False(t, a.take(1, 1, now))
	for id := range uint32(3 * maxSenders) {
		a.take(id+10, 1, now)
	}
	require.LessOrEqual(t, len(a.senders), maxSenders+1)
	now = now.Add(2 * senderMemory)
	a.take(5, 1, now)
	require.Len(t, a.senders, 1)
}

// Whatever is accepted has names that fit, and says the same when it is written again.
func FuzzDecode(f *testing.F) {
	o := newOutbox()
	o.available(queueKey{otherTenant, "q"}, "p")
	o.changed(change{kind: kindGroup, key: queueKey{defaultTenant, ""}, group: "g"})
	c, _ := o.take(true)
	payloads, _, _ := c.encode(testSender())
	for _, text := range append(payloads, testSender().heartbeat("v1", "host:1", 12), testSender().bare(kindFlags)) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := decode(text)
		if err != nil {
			return
		}
		require.Positive(t, p.weight())
		for _, it := range p.Items {
			require.True(t, isName(it.Queue) && isName(it.Group))
		}
		again, err := json.Marshal(p)
		require.NoError(t, err)
		if len(again) <= maxPayload {
			back, err := decode(string(again))
			require.NoError(t, err)
			require.Equal(t, p, back)
		}
	})
}

// Whatever a broker is called, it can tell the others everything, and they believe it.
func TestAnyServerNameLeavesRoomForHints(t *testing.T) {
	t.Parallel()
	for _, name := range []string{strings.Repeat("x", 9000), strings.Repeat("\x01", 300), strings.Repeat("😀", 400), strings.Repeat("\xff", 9000), ""} {
		m := New(Config{ServerID: name, Instance: uuid.New(), DefaultTenant: defaultTenant}, nil)
		e := m.sender.newEncoder(kindMessages, 10)
		long := strings.Repeat("😀", maxName)
		done := make(chan struct{})
		go func() {
			defer close(done)
			e.add(queueKey{otherTenant, long}, long, []string{long, "p"})
		}()
		select {
		case <-done:
		case <-t.Context().Done():
		case <-time.After(20 * time.Second):
			require.FailNow(t, "no end")
		}
		payloads, _ := e.payloads()
		payloads = append(payloads, m.sender.heartbeat("build", "host:1", 1))
		said := 0
		for _, text := range payloads {
			p, err := decode(text)
			require.NoError(t, err)
			require.Equal(t, m.cfg.ServerID, p.Server)
			for _, it := range p.Items {
				said += len(it.Partitions)
			}
		}
		require.Equal(t, 2, said)
	}
}
