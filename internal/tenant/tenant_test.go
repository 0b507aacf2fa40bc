package tenant_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/tenant"
)

func TestOf(t *testing.T) {
	t.Parallel()
	fallback, id := uuid.New(), uuid.MustParse("0199b0c4-6a11-7f3e-8c55-41d0e9a7b2f6")
	for _, values := range [][]string{nil, {""}, {"  "}} {
		got, err := tenant.Of(values, fallback)
		require.NoError(t, err)
		require.Equal(t, fallback, got)
	}
	for _, text := range []string{id.String(), "0199B0C4-6A11-7F3E-8C55-41D0E9A7B2F6", " " + id.String() + " "} {
		got, err := tenant.Of([]string{text}, fallback)
		require.NoError(t, err)
		require.Equal(t, id, got)
	}
	for _, values := range [][]string{
		{"acme"},
		{"{" + id.String() + "}"},
		{"urn:uuid:" + id.String()},
		{"0199b0c46a117f3e8c5541d0e9a7b2f6"},
		{id.String() + "0"},
		{id.String(), id.String()},
		{"", id.String()},
		{id.String() + "," + id.String()},
		{"0199b0c4-6a11-7f3e-8c55-41d0e9a7b2g6"},
	} {
		_, err := tenant.Of(values, fallback)
		require.ErrorIs(t, err, tenant.ErrInvalid, values)
	}
}

func TestMeter(t *testing.T) {
	t.Parallel()
	a, b, start := uuid.New(), uuid.New(), time.Now()

	t.Run("RateIsPerTenantAndRefusalsCostNothing", func(t *testing.T) {
		t.Parallel()
		m := tenant.NewMeter(tenant.Limits{Rate: 10, Burst: 2})
		require.Zero(t, m.Allow(a, start))
		require.Zero(t, m.Allow(a, start))
		for range 50 {
			require.InDelta(t, 0.1, m.Allow(a, start).Seconds(), 0.001)
		}
		require.Zero(t, m.Allow(b, start), "one tenant does not spend another's share")
		require.Zero(t, m.Allow(a, start.Add(100*time.Millisecond)))
		require.NotZero(t, m.Allow(a, start.Add(100*time.Millisecond)))
	})

	t.Run("ZeroBoundsNothing", func(t *testing.T) {
		t.Parallel()
		m := tenant.NewMeter(tenant.Limits{})
		for range 1000 {
			require.Zero(t, m.Allow(a, start))
			require.True(t, m.Park(a))
		}
	})

	t.Run("ParkedPopsArePerTenant", func(t *testing.T) {
		t.Parallel()
		m := tenant.NewMeter(tenant.Limits{Parked: 2})
		require.True(t, m.Park(a))
		require.True(t, m.Park(a))
		require.False(t, m.Park(a))
		require.True(t, m.Park(b))
		m.Unpark(a)
		require.True(t, m.Park(a))
		require.False(t, m.Park(a))
	})

	t.Run("InventedTenantsDoNotFillTheMemoryNorFreeOthers", func(t *testing.T) {
		t.Parallel()
		m := tenant.NewMeter(tenant.Limits{Rate: 1, Burst: 1, Parked: 1})
		require.True(t, m.Park(a))
		for range 30_000 {
			m.Allow(uuid.New(), start)
		}
		require.LessOrEqual(t, m.Tracked(), 10_001)
		require.False(t, m.Park(a), "its parked pop is still known")
	})
}
