// Package model checks the broker against a small in-memory description of what it promises: offsets in order, one live
// lease per (partition, group), cursors that only move forward, a retry budget that ends in the dead-letter table, and
// transactions that happen whole or not at all.
//
// The model knows no segments, no fusion and no caches: whatever the broker does inside must not show.
package model
