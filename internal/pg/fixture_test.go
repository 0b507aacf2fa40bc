package pg_test

import (
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
)

// hash stands for the hash of a transaction id; the database only compares it.
func hash(id string) []byte {
	sum := sha256.Sum256([]byte(id))
	return sum[:16]
}

func hashesOf(ids ...string) [][]byte {
	out := make([][]byte, len(ids))
	for i, id := range ids {
		out[i] = hash(id)
	}
	return out
}

// segment packs messages with the given transaction ids. Blobs are opaque to the database.
func segment(queue, partition string, ids ...string) pg.Segment {
	s := pg.Segment{Tenant: pg.DefaultTenant, Queue: queue, Partition: partition, Count: len(ids), Verified: -1, Plain: true, Blob: []byte("blob of " + strings.Join(ids, ","))}
	for _, id := range ids {
		s.Hashes = append(s.Hashes, hash(id)...)
	}
	return s
}

// push stores one segment and returns its verdict, which must be "queued".
func push(t testing.TB, db *pg.DB, s pg.Segment) pg.PushVerdict {
	t.Helper()
	verdicts, err := db.PushMulti(t.Context(), []pg.Segment{s}, pg.PushOptions{})
	require.NoError(t, err)
	require.Equal(t, pg.PushQueued, verdicts[0].Status)
	return verdicts[0]
}

// popRequest asks for up to ten messages of a queue for group "g".
func popRequest(queue, worker string) pg.PopRequest {
	return pg.PopRequest{Tenant: pg.DefaultTenant, Queue: queue, Group: "g", Budget: 10, LeaseSeconds: 60, Worker: worker, SubMode: "all"}
}

// leased pushes messages into queue "q", partition "p", and leases them to worker "w".
func leased(t testing.TB, db *pg.DB, ids ...string) (partition uuid.UUID) {
	t.Helper()
	verdict := push(t, db, segment("q", "p", ids...))
	claim, err := db.PopWildcard(t.Context(), popRequest("q", "w"))
	require.NoError(t, err)
	require.Len(t, claim.Partitions, 1)
	require.Equal(t, verdict.PartitionID, claim.Partitions[0].PartitionID)
	return verdict.PartitionID
}

// configure sets queue options.
func configure(t testing.TB, db *pg.DB, queue, options string) {
	t.Helper()
	_, err := db.Configure(t.Context(), pg.DefaultTenant, queue, "", "", []byte(options))
	require.NoError(t, err)
}
