// Package concurrent lets many producers and consumers work at once on one and on several brokers and holds what they saw
// against the promises: nothing accepted is lost, nothing acknowledged comes again, lanes keep their order, and no two
// workers of a group hold one lane.
package concurrent
