package broker

import (
	"context"
	"runtime"

	"queenmq/internal/api"
	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/meter"
	"queenmq/internal/engine/pop"
	"queenmq/internal/engine/push"
	"queenmq/internal/engine/ready"
	"queenmq/internal/engine/segment"
	"queenmq/internal/engine/stream"
	"queenmq/internal/secret"
	"queenmq/internal/tenant"
)

// ciphers are what seals and opens payloads and state. Without a ring they are interfaces that hold nothing, not nil pointers: the parts ask
// whether there is a key.
func ciphers(ring *secret.Ring) (push.Sealer, pop.Opener, stream.Ring) {
	if ring == nil {
		return nil, nil, nil
	}
	return ring, secret.Reader{Ring: ring}, ring
}

// pushConfig puts the settings of pushes in the form of their room.
func (b *Broker) pushConfig(packer *segment.Packer, verifier push.Verifier, sealer push.Sealer) push.Config {
	cfg := b.cfg.Push
	return push.Config{
		Shards: cfg.Shards, MaxInFlight: cfg.MaxInflight, BundleMax: cfg.BundleMax, Hold: cfg.Hold,
		Packer: packer, Logger: b.log, Verifier: verifier, Sealer: sealer,
	}
}

// popConfig puts the settings of pops in the form of their room.
func (b *Broker) popConfig(opener pop.Opener) pop.Config {
	cfg := b.cfg.Pop
	return pop.Config{
		DefaultMode: cfg.DefaultSubscriptionMode,
		Backoff: pop.Backoff{
			Initial: cfg.WaitInitialInterval, Threshold: cfg.WaitBackoffThreshold, Multiplier: cfg.WaitBackoffMultiplier, Max: cfg.WaitMaxInterval,
		},
		FusedPops: b.fusedPops(), FusedClaims: cfg.FusionConcurrency,
		Log: b.log, Opener: opener, Sniff: b.cfg.Secrets.Sniff,
		MaxAnswerBytes: cfg.MaxAnswerBytes, MaxInflightBytes: cfg.MaxInflightAnswers,
	}
}

// filePoison files messages that must not be delivered as dead letters, and counts them.
func filePoison(acker *ack.Server, counted *meter.Meter) func(context.Context, pop.DeadLetter) bool {
	return func(ctx context.Context, letter pop.DeadLetter) bool {
		outcome := acker.FileDeadLetter(ctx, ack.DeadLetterOrder{
			PartitionID: letter.PartitionID, Group: letter.Group, Worker: letter.LeaseID, Offset: letter.Offset,
			Undelivered: true, Reason: letter.Reason,
		})
		if outcome.Filed {
			counted.DeadLetter()
		}
		return outcome.Filed
	}
}

// apiConfig puts the settings of the interface in the form of its room.
func (b *Broker) apiConfig() api.Config {
	server, tenancy := b.cfg.Server, b.cfg.Tenancy
	return api.Config{
		MaxBodyBytes: server.MaxBodyBytes, MaxInflightBodyBytes: server.MaxInflightBody,
		PopTimeout: b.cfg.Pop.DefaultTimeout, Version: Version(), ServerID: server.ServerID, Log: b.log,
		Tenancy: tenancy.Header, TenantLabels: tenancy.LabelsMetrics(), Origins: tenancy.Origins(),
		Limits: tenant.Limits{Rate: tenancy.Rate, Burst: tenancy.Burst, Parked: tenancy.MaxParked},
	}
}

// fusedPops is how many pops may claim together.
func (b *Broker) fusedPops() int {
	if !b.cfg.Pop.Fusion {
		return 1
	}
	return b.cfg.Pop.FusionMaxJobs
}

// newGates makes the gates, with a hot list unless that is switched off.
func (b *Broker) newGates() *ready.Gates {
	cfg := b.cfg.HotList
	if !cfg.Enabled {
		return ready.New()
	}
	if cfg.Shards == 0 {
		cfg.Shards = b.cfg.Push.Shards
	}
	if cfg.ReseedFull == 0 {
		cfg.ReseedFull = -1
	}
	return ready.NewHot(ready.NewHotList(ready.HotConfig{
		Shards: cfg.Shards, WindowBatch: cfg.WindowBatch, Reseed: cfg.Reseed, ReseedWindow: cfg.ReseedWindow, ReseedFull: cfg.ReseedFull,
		IdleSweep: cfg.IdleSweep, Trace: cfg.Trace, Log: b.log,
	}))
}

// ackConfig puts the settings of acknowledgements in the form of their room, where negative is off.
func (b *Broker) ackConfig() ack.Config {
	cfg := ack.Config{Tenancy: b.cfg.Tenancy.Header, RegistryBytes: int64(b.cfg.Ack.RegistryMB) << 20, Shards: b.cfg.Ack.Shards, Log: b.log}
	if cfg.Shards == 0 {
		cfg.Shards = b.cfg.Push.Shards
	}
	if !b.cfg.Ack.Registry {
		cfg.RegistryBytes = -1
	}
	if !b.cfg.Ack.Fusion {
		cfg.Shards = -1
	}
	return cfg
}

// databaseCores is how many processors serve the database, as far as it is known: a private one runs on ours.
func (b *Broker) databaseCores() int {
	if b.cfg.Database.Configured {
		return 0
	}
	return runtime.GOMAXPROCS(0)
}
