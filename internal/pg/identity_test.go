package pg_test

import (
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
	"queenmq/internal/testdb"
)

func TestIdentityIsStoredOnce(t *testing.T) {
	t.Parallel()
	database := testdb.New(t)
	ids := make([]uuid.UUID, 8)
	var brokers sync.WaitGroup
	for i := range ids {
		brokers.Go(func() {
			db, err := pg.Open(t.Context(), pg.Options{ConnString: database.ConnString(), MaxConns: 2})
			if err != nil {
				return
			}
			defer db.Close()
			ids[i], _ = db.Identity(t.Context())
		})
	}
	brokers.Wait()
	require.NotEqual(t, uuid.Nil, ids[0])
	for _, id := range ids {
		require.Equal(t, ids[0], id)
	}
	other, err := pg.Open(t.Context(), pg.Options{ConnString: testdb.New(t).ConnString(), MaxConns: 2})
	require.NoError(t, err)
	defer other.Close()
	id, err := other.Identity(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, ids[0], id, "another database is another one")
}
