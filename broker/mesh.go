package broker

import (
	"context"
	"fmt"
	"net"
	"os"

	"github.com/google/uuid"

	"queenmq/internal/api"
	"queenmq/internal/engine/pop"
	"queenmq/internal/engine/push"
	"queenmq/internal/engine/ready"
	"queenmq/internal/mesh"
	"queenmq/internal/pg"
	"queenmq/internal/upkeep"
)

// neighbours is how this broker and the others of its database know of each other.
type neighbours struct {
	registration *mesh.Registration
	mesh         *mesh.Mesh // nil when it is switched off

	pusher *push.Pusher
	popper *pop.Server
	gates  *ready.Gates
}

// newNeighbours joins the parts that other brokers may have news for.
func (b *Broker) newNeighbours(db *pg.DB, pusher *push.Pusher, popper *pop.Server, gates *ready.Gates, flags *upkeep.Flags, reconcile *upkeep.Reconcile) *neighbours {
	n := &neighbours{pusher: pusher, popper: popper, gates: gates}
	self := pg.Broker{Instance: b.instance, ID: b.cfg.Server.ServerID, Version: Version()}
	n.registration = &mesh.Registration{Broker: self, Address: b.reachableAt, List: db, Others: func(int) {}, Log: b.log}
	if !b.cfg.Mesh.Enabled {
		return n
	}
	n.mesh = mesh.New(mesh.Config{
		Instance: self.Instance, ServerID: self.ID, Version: self.Version, Address: b.reachableAt, DefaultTenant: pg.DefaultTenant, Log: b.log,
		Receiver: mesh.Receiver{
			Messages:     gates.WakeRemote,
			Released:     gates.ReleasedRemote,
			QueueChanged: n.forgetQueue,
			GroupChanged: n.forgetGroup,
			Flags:        flags.Refresh,
			Missed: func(ctx context.Context) error {
				if err := flags.Refresh(ctx); err != nil {
					return err
				}
				gates.ForgetAll()
				gates.WakeAll()
				return reconcile.Step(ctx)
			},
		},
	}, mesh.OverDatabase(db))
	n.registration.Others = func(others int) { n.mesh.OthersRegistered(others > 0) }
	gates.Tell(n.mesh.Available, n.mesh.Released)
	return n
}

// forgetQueue drops what this broker remembers of a queue that was configured or deleted.
func (n *neighbours) forgetQueue(tenant uuid.UUID, queue string) {
	n.pusher.ForgetQueue(tenant, queue)
	n.popper.ForgetQueue(tenant, queue)
	// A changed option may release messages that parked pops wait for.
	n.gates.WakeRemote(tenant, queue, "")
}

// forgetGroup drops what this broker remembers of a group that was moved or deleted.
func (n *neighbours) forgetGroup(tenant uuid.UUID, queue, group string) {
	n.popper.ForgetGroup(tenant, queue, group)
	if queue == "" {
		n.gates.WakeAll()
		return
	}
	n.gates.WakeRemote(tenant, queue, "")
}

// queueChanged follows a change made through this broker.
func (n *neighbours) queueChanged(tenant uuid.UUID, queue string) {
	n.forgetQueue(tenant, queue)
	if n.mesh != nil {
		n.mesh.QueueChanged(tenant, queue)
	}
}

// groupChanged follows a change made through this broker.
func (n *neighbours) groupChanged(tenant uuid.UUID, queue, group string) {
	n.forgetGroup(tenant, queue, group)
	if n.mesh != nil {
		n.mesh.GroupChanged(tenant, queue, group)
	}
}

// flagsChanged follows a maintenance switch that was turned through this broker.
func (n *neighbours) flagsChanged() {
	if n.mesh != nil {
		n.mesh.FlagsChanged()
	}
}

// figures puts the figures of the mesh in the form of the interface.
func (n *neighbours) figures() api.MeshFigures {
	stats := n.mesh.Stats()
	figures := api.MeshFigures{
		Listening: stats.Listening, Proven: stats.Proven, Sent: stats.Sent, Received: stats.Received, Failed: stats.Failed, Dropped: stats.Dropped,
		Malformed: stats.Malformed, Suppressed: stats.Suppressed, Partial: stats.Partial, Lost: stats.Lost, Sessions: stats.Sessions, Usage: stats.Usage,
	}
	for _, peer := range stats.Peers {
		figures.Peers = append(figures.Peers, api.MeshPeer{ServerID: peer.ServerID, Address: peer.Address, Alive: peer.Alive})
	}
	return figures
}

// reachableAt is the host:port at which others may reach this broker, as far as it can tell; "" while it does not listen yet.
func (b *Broker) reachableAt() string {
	select {
	case <-b.ready:
	default:
		return ""
	}
	host, port, err := net.SplitHostPort(b.address)
	if err != nil {
		return b.address
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		if host, err = os.Hostname(); err != nil {
			host = "localhost"
		}
	}
	return net.JoinHostPort(host, port)
}

// checkListenURL finds an unreadable QUEEN_LISTEN_URL before the pool does, to blame the right setting.
func (b *Broker) checkListenURL() error {
	if !b.cfg.Mesh.ListenURL.IsSet() {
		return nil
	}
	if _, err := pg.ParseConfig(b.cfg.Mesh.ListenURL.Reveal()); err != nil {
		return fmt.Errorf("QUEEN_LISTEN_URL: %w", err)
	}
	return nil
}
