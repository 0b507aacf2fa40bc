package stream

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
	"queenmq/internal/secret"
)

func control(query, partition uuid.UUID, value string) pg.StreamRow {
	return pg.StreamRow{Query: query, Partition: partition, Key: controlKey, Value: json.RawMessage(value)}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	ids := make([]uuid.UUID, 8)
	for i := range ids {
		ids[i] = uuid.New()
	}
	plain, sealed, foreign, empty := ids[0], ids[1], ids[2], ids[3]
	a, b := ids[4], ids[5]
	ring, err := secret.NewRing(strings.Repeat("ab", 32), "")
	require.NoError(t, err)
	encrypted := func(query, partition uuid.UUID, key, value string) pg.StreamRow {
		text, err := json.Marshal(row{query, partition, key, json.RawMessage(value)})
		require.NoError(t, err)
		r := pg.StreamRow{Query: query, Partition: partition, Key: ring.Names(scope(query, partition), controlKey)[0], Value: json.RawMessage(`{}`)}
		r.Sealed = new(string(ring.Seal(text)))
		return r
	}
	moved := encrypted(sealed, b, "another", `{"watermark":1,"late":100}`) // an envelope that lies where it does not belong
	db := &store{
		partitions: []pg.StreamPartitions{
			{Query: plain, Partitions: []uuid.UUID{a, b}, More: true},
			{Query: sealed, Sealed: true, Partitions: []uuid.UUID{a, b}},
			{Query: foreign, Partitions: []uuid.UUID{a}},
			{Query: empty},
		},
		rows: []pg.StreamRow{
			control(plain, a, `{"version":3,"watermark":1000,"late":2}`), control(plain, b, `{"version":1,"late":0}`),
			encrypted(sealed, a, controlKey, `{"watermark":5000,"late":1}`), moved,
			control(foreign, a, `["another","make"]`),
		},
	}
	ask := func(cfg Config) map[uuid.UUID]Progress {
		t.Helper()
		found, err := New(cfg, db, nil, nil, nil).Progress(t.Context(), pg.DefaultTenant, ids[:4])
		require.NoError(t, err)
		require.Len(t, found, 4)
		return found
	}
	found := ask(Config{Ring: ring})
	second, fifth := time.UnixMilli(1000).UTC(), time.UnixMilli(5000).UTC()
	require.Equal(t, Progress{Partitions: 1, Slowest: &second, Newest: &second, Late: new(int64(2))}, found[plain])
	require.Equal(t, Progress{Partitions: 1, Exact: true, Slowest: &fifth, Newest: &fifth, Late: new(int64(1))}, found[sealed])
	require.Equal(t, Progress{Exact: true}, found[foreign], "not known")
	require.Equal(t, Progress{Exact: true}, found[empty])
	require.Equal(t, Progress{Exact: true}, ask(Config{})[sealed], "without a key it is not known")

	db.rows = []pg.StreamRow{control(plain, a, `{"watermark":9e18}`), control(plain, b, `{"watermark":-5,"late":1}`)}
	require.Equal(t, Progress{Late: new(int64(1))}, ask(Config{})[plain], "no time that anybody means")
	none, err := New(Config{}, db, nil, nil, nil).Progress(t.Context(), pg.DefaultTenant, nil)
	require.NoError(t, err)
	require.Empty(t, none)
}
