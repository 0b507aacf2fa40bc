package pg_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
)

func TestRoundTrips_QuantileLiesInTheBucketThatReachesIt(t *testing.T) {
	t.Parallel()
	var trips pg.RoundTrips
	none := trips.Load()
	require.Zero(t, none.Quantile(0.99))
	for range 4 {
		trips.Add(2 * time.Millisecond) // the bucket from 1 to 2.5 ms
	}
	four := trips.Load()
	require.Equal(t, 1750*time.Microsecond, four.Quantile(0.5))
	require.Equal(t, 2500*time.Microsecond, four.Quantile(1))
	for range 96 {
		trips.Add(time.Hour)
	}
	most := trips.Load()
	require.Equal(t, 30*time.Second, most.Quantile(0.5), "beyond the last bound it is that bound")
	require.Equal(t, 2500*time.Microsecond, most.Quantile(0.04))
}
