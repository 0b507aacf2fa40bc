//go:build race

package bounds

// parkedBytes is twice the bound that holds without the race detector, which makes every stack frame larger.
const parkedBytes = 20_000
