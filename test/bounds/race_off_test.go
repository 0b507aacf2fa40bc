//go:build !race

package bounds

// parkedBytes is the most that a parked pop may cost.
const parkedBytes = 10_000
