package pg_test

import (
	"encoding/json"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
)

func TestPartitionOwner(t *testing.T) {
	t.Parallel()
	db, _ := setup(t)
	s := segment("q", "p", "1")
	s.Tenant = uuid.New()
	verdict := push(t, db, s)
	tenant, queue, name, found, err := db.PartitionOwner(t.Context(), verdict.PartitionID)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, s.Tenant, tenant)
	require.Equal(t, []string{"q", "p"}, []string{queue, name})
	_, _, _, found, err = db.PartitionOwner(t.Context(), uuid.New())
	require.NoError(t, err)
	require.False(t, found)
}

func TestPartitionLeaseHolder(t *testing.T) {
	t.Parallel()
	db, database := setup(t)
	partition := leased(t, db, "1")
	holder := func(group string) (string, bool) {
		t.Helper()
		worker, live, err := db.PartitionLeaseHolder(t.Context(), partition, group)
		require.NoError(t, err)
		return worker, live
	}
	worker, live := holder("g")
	require.Equal(t, "w", worker)
	require.True(t, live)
	_, err := database.Pool(t).Exec(t.Context(), "UPDATE queen.log_consumers SET lease_expires_at = now() - interval '1 s'")
	require.NoError(t, err)
	worker, live = holder("g")
	require.Equal(t, "w", worker)
	require.False(t, live)
	_, err = db.ReleaseLeaseOf(t.Context(), pg.DefaultTenant, partition, "g", "")
	require.NoError(t, err)
	for _, group := range []string{"g", "unknown"} {
		worker, live = holder(group)
		require.Empty(t, worker)
		require.False(t, live)
	}
}

func TestConfigure(t *testing.T) {
	t.Parallel()
	db, _ := setup(t)
	answer, err := db.Configure(t.Context(), pg.DefaultTenant, "orders", "shop", "new", []byte(`{"leaseTime":90,"maxSize":7,"encryptionEnabled":true,"delayedProcessing":1,"windowBuffer":2,"minPopWaitTime":3,"surprise":1}`))
	require.NoError(t, err)
	var result struct {
		Configured      bool
		Namespace, Task string
		Options         map[string]any
		Ignored         []string
	}
	require.NoError(t, json.Unmarshal(answer, &result))
	require.True(t, result.Configured)
	require.Equal(t, []string{"shop", "new"}, []string{result.Namespace, result.Task})
	require.InEpsilon(t, 90, result.Options["leaseTime"], 0)
	require.Equal(t, []string{"surprise"}, result.Ignored)

	settings, found, err := db.QueueSettings(t.Context(), pg.DefaultTenant, "orders")
	require.NoError(t, err)
	require.True(t, found)
	require.NotEqual(t, uuid.Nil, settings.ID)
	settings.ID = uuid.Nil
	require.Equal(t, pg.QueueSettings{LeaseSeconds: 90, EncryptionEnabled: true, MaxSize: 7, DelayedProcessing: 1, WindowBuffer: 2, MinPopWait: 3, DedupWindow: 3600}, settings)
	_, found, err = db.QueueSettings(t.Context(), uuid.New(), "orders")
	require.NoError(t, err)
	require.False(t, found)

	var refused *pg.OptionError
	_, err = db.Configure(t.Context(), pg.DefaultTenant, "orders", "", "", []byte(`{"leaseTime":-1}`))
	require.ErrorAs(t, err, &refused)
	require.Contains(t, refused.Text, `"leaseTime"`)
	again, _, err := db.QueueSettings(t.Context(), pg.DefaultTenant, "orders")
	require.NoError(t, err)
	require.Equal(t, 90, again.LeaseSeconds)
}

func TestDeleteQueue(t *testing.T) {
	t.Parallel()
	db, database := setup(t)
	leased(t, db, "1")
	existed := func(tenant uuid.UUID) bool {
		t.Helper()
		answer, err := db.DeleteQueue(t.Context(), tenant, "q")
		require.NoError(t, err)
		var result struct{ Existed bool }
		require.NoError(t, json.Unmarshal(answer, &result))
		return result.Existed
	}
	require.False(t, existed(uuid.New()))
	require.True(t, existed(pg.DefaultTenant))
	require.False(t, existed(pg.DefaultTenant))
	var left int
	require.NoError(t, database.Pool(t).QueryRow(t.Context(), "SELECT (SELECT count(*) FROM queen.log_txns) + (SELECT count(*) FROM queen.log_segments)").Scan(&left))
	require.Zero(t, left)
}

func TestSystemFlags(t *testing.T) {
	t.Parallel()
	db, database := setup(t)
	flags := func() [2]bool {
		t.Helper()
		push, pop, err := db.SystemFlags(t.Context())
		require.NoError(t, err)
		return [2]bool{push, pop}
	}
	require.Equal(t, [2]bool{}, flags())
	_, err := database.Pool(t).Exec(t.Context(), `INSERT INTO queen.system_state (key, value) VALUES ('maintenance_mode', '{"enabled": true}'), ('pop_maintenance_mode', '{"enabled": false}'), ('other', '{"enabled": true}')`)
	require.NoError(t, err)
	require.Equal(t, [2]bool{true, false}, flags())
	_, err = database.Pool(t).Exec(t.Context(), `UPDATE queen.system_state SET value = '{"enabled": true}' WHERE key = 'pop_maintenance_mode'`)
	require.NoError(t, err)
	require.Equal(t, [2]bool{true, true}, flags())
}

// A broker that owns nothing and has only what docs/grants.md says does all its work.
func TestTheGrantsOfTheDocumentAreEnough(t *testing.T) {
	t.Parallel()
	_, database := setup(t)
	role := newRole(t, database)
	_, err := database.Pool(t).Exec(t.Context(), grants(t, role))
	require.NoError(t, err)
	db := open(t, asRole(t, database, role))
	ctx := t.Context()

	require.NoError(t, db.ApplySchema(ctx), "the schema is applied, so nothing but reading is needed")
	configure(t, db, "q", `{"leaseTime":30}`)
	partition := leased(t, db, "1", "2", "3")
	_, err = db.RenewLease(ctx, pg.DefaultTenant, "w", 60)
	require.NoError(t, err)
	out := segment("out", "p", "a")
	out.Traces = []pg.FrameTrace{{ID: uuid.New()}}
	_, err = db.Transact(ctx, pg.Transaction{Tenant: pg.DefaultTenant, Pushes: []pg.Segment{out}, Acks: []pg.HashAck{completed(partition, "w", "1")}})
	require.NoError(t, err)
	letter, err := db.FileDeadLetter(ctx, pg.DeadLetter{PartitionID: partition, Group: "g", Worker: "w", Offset: 1, Payload: []byte("{}")})
	require.NoError(t, err)
	require.True(t, letter.OK, letter.Error)
	r := popRequest("q", "w2")
	claim, err := db.PopWildcard(ctx, r)
	require.NoError(t, err)
	require.Len(t, claim.Partitions, 1)
	acks, err := db.AckMulti(ctx, []pg.PositionalAck{{PartitionID: partition, Group: "g", Worker: "w2", End: 2, Count: 1}})
	require.NoError(t, err)
	require.True(t, acks[0].OK, acks[0].Error)
	_, _, err = db.SystemFlags(ctx)
	require.NoError(t, err)
	_, err = db.DeleteQueue(ctx, pg.DefaultTenant, "q")
	require.NoError(t, err)

	_, err = open(t, asRole(t, database, role)).Configure(ctx, pg.DefaultTenant, "x", "", "", nil)
	require.NoError(t, err)
	pool := database.Pool(t)
	_, err = pool.Exec(ctx, "DELETE FROM queen.schema_files")
	require.NoError(t, err)
	require.ErrorContains(t, db.ApplySchema(ctx), "docs/grants.md", "the role was told nothing about what to do")
}
