package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"queenmq/test/stack"
)

// A fault is one way to break something. begin draws all its choices from random before it does anything, and returns what ends the fault.
type fault struct {
	name string
	// target says what is broken: faults of one target are not combined.
	target string
	begin  func(ctx context.Context, c *cluster, random *rand.Rand) (what string, end func())
}

var faults = []fault{
	{"kill -9 of a broker", "broker", func(_ context.Context, c *cluster, random *rand.Rand) (string, func()) {
		i := random.IntN(brokers)
		c.nodes[i].Kill()
		return fmt.Sprint("kill broker ", i), func() { c.nodes[i].Launch(c.t) }
	}},
	{"kill -9 of all brokers", "broker", func(_ context.Context, c *cluster, _ *rand.Rand) (string, func()) {
		for _, n := range c.nodes {
			n.Kill()
		}
		return "kill all brokers", func() {
			for _, n := range c.nodes {
				n.Launch(c.t)
			}
		}
	}},
	{"stop of a broker", "broker", func(_ context.Context, c *cluster, random *rand.Rand) (string, func()) {
		i := random.IntN(brokers)
		_ = c.nodes[i].Signal(syscall.SIGTERM)
		return fmt.Sprint("stop broker ", i), func() {
			select {
			case <-c.nodes[i].Exited():
			case <-time.After(grace + 20*time.Second): // the grace time, with room for a loaded machine
				c.t.Errorf("broker %d did not end within its grace time", i)
			}
			c.nodes[i].Kill()
			c.nodes[i].Launch(c.t)
		}
	}},
	{"freeze of a broker", "broker", func(_ context.Context, c *cluster, random *rand.Rand) (string, func()) {
		i := random.IntN(brokers)
		_ = c.nodes[i].Signal(syscall.SIGSTOP)
		return fmt.Sprint("freeze broker ", i), func() { _ = c.nodes[i].Signal(syscall.SIGCONT) }
	}},
	{"another clock", "broker", func(_ context.Context, c *cluster, random *rand.Rand) (string, func()) {
		i, shift := random.IntN(brokers), random.IntN(2*year)-year
		c.nodes[i].Kill()
		c.nodes[i].Set(stack.ClockShift, fmt.Sprint(shift))
		return fmt.Sprintf("kill broker %d, whose clock will be %d s off", i, shift), func() { c.nodes[i].Launch(c.t) }
	}},
	{"crash of PostgreSQL", "database", func(_ context.Context, c *cluster, _ *rand.Rand) (string, func()) {
		c.server.Stop(c.t, "immediate")
		return "crash PostgreSQL", func() { c.server.Start(c.t) }
	}},
	{"stop of PostgreSQL", "database", func(_ context.Context, c *cluster, _ *rand.Rand) (string, func()) {
		c.server.Stop(c.t, "fast")
		return "stop PostgreSQL", func() { c.server.Start(c.t) }
	}},
	{"freeze of PostgreSQL", "database", func(_ context.Context, c *cluster, _ *rand.Rand) (string, func()) {
		family := c.family()
		for _, pid := range family {
			_ = syscall.Kill(pid, syscall.SIGSTOP)
		}
		return "freeze PostgreSQL", func() {
			for _, pid := range slices.Backward(family) {
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
		}
	}},
	{"terminated sessions", "database", func(ctx context.Context, c *cluster, random *rand.Rand) (string, func()) {
		share := 0.1 + 0.9*random.Float64()
		ending, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for ending.Err() == nil {
				_ = c.do(ending, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
					WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND random() < $1`, share)
				pause(ending, 50*time.Millisecond)
			}
		}()
		return fmt.Sprintf("terminate %.0f %% of the sessions again and again", 100*share), func() { stop(); <-ended }
	}},
	{"read-only spell", "database", func(ctx context.Context, c *cluster, _ *rand.Rand) (string, func()) {
		set := func(statement string) {
			for _, one := range []string{statement, "SELECT pg_reload_conf()"} {
				if err := c.do(ctx, one); err != nil {
					c.t.Errorf("%s: %v", one, err)
				}
			}
		}
		set("ALTER SYSTEM SET default_transaction_read_only = on")
		return "PostgreSQL is read-only", func() { set("ALTER SYSTEM RESET default_transaction_read_only") }
	}},
	{"full disk", "database", func(_ context.Context, c *cluster, random *rand.Rand) (string, func()) {
		i := random.IntN(brokers)
		c.server.Stop(c.t, "immediate")
		disk := c.nodes[i].disk
		if disk != nil {
			if err := disk.Fill(); err != nil {
				c.t.Errorf("fill the disk: %v", err)
			}
		}
		return fmt.Sprintf("crash PostgreSQL while the disk of broker %d is full", i), func() {
			c.server.Start(c.t)
			if disk != nil {
				if err := disk.Empty(); err != nil {
					c.t.Errorf("empty the disk: %v", err)
				}
			}
		}
	}},
	{"network cut", "network", func(_ context.Context, c *cluster, random *rand.Rand) (string, func()) {
		i := random.IntN(brokers)
		c.nodes[i].proxy.Cut()
		return fmt.Sprintf("cut broker %d from PostgreSQL", i), c.nodes[i].proxy.Heal
	}},
	{"silent connections", "network", func(_ context.Context, c *cluster, random *rand.Rand) (string, func()) {
		i := random.IntN(brokers)
		c.nodes[i].proxy.Lose()
		return fmt.Sprintf("broker %d's connections go silent for good", i), func() {}
	}},
	{"reset connections", "network", func(_ context.Context, c *cluster, random *rand.Rand) (string, func()) {
		i := random.IntN(brokers)
		c.nodes[i].proxy.Reset()
		return fmt.Sprintf("reset broker %d's connections", i), func() {}
	}},
}

// strike breaks one or two things at a time, with time to breathe in between, for the given time. Everything is whole again when it returns.
// It draws from seed alone, so that a seed names the sequence of faults.
func strike(ctx context.Context, c *cluster, seed uint64, length time.Duration) {
	random := rand.New(rand.NewPCG(seed, 0xc4a05))
	begun := time.Now()
	say := func(what string) { c.t.Logf("%6.2f s %s: %s", time.Since(begun).Seconds(), clock(time.Now()), what) }
	// Every kind comes up in each round, in an order of its own.
	var round []int
	draw := func() fault {
		if len(round) == 0 {
			round = random.Perm(len(faults))
		}
		f := faults[round[0]]
		round = round[1:]
		return f
	}
	for time.Since(begun) < length && ctx.Err() == nil {
		pause(ctx, time.Duration(300+random.IntN(2200))*time.Millisecond)
		struck := []fault{draw()}
		if random.IntN(3) == 0 {
			if second := draw(); second.target != struck[0].target {
				struck = append(struck, second)
			}
		}
		lasting := time.Duration(100+random.IntN(1500)) * time.Millisecond
		if random.IntN(4) == 0 {
			lasting += leaseSeconds * time.Second
		}
		var ends []func()
		for _, f := range struck {
			what, end := f.begin(ctx, c, rand.New(rand.NewPCG(random.Uint64(), 1)))
			say(what)
			ends = append(ends, end)
		}
		pause(ctx, lasting)
		for _, end := range slices.Backward(ends) {
			end()
		}
		say("whole again")
		c.stillThere()
	}
}

// stillThere reports brokers that ended by themselves, and starts them again.
func (c *cluster) stillThere() {
	for i, n := range c.nodes {
		select {
		case <-n.Exited():
			log := n.Log()
			c.t.Errorf("broker %d ended by itself: %s", i, log[max(0, len(log)-3000):])
			n.Kill()
			n.Launch(c.t)
		default:
		}
	}
}
