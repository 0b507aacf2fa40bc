// Package hotlist holds what a broker must deliver although its memory of ready partitions was told nothing of it, and what it must not
// keep when its clients leave.
package hotlist
