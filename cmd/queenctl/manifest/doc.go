// Package manifest reads, writes and compares declared configuration: a YAML document that lists queues with their options.
//
// Reading is strict: unknown keys, unknown options and values of the wrong kind are refused with their line, because a misspelt
// option that is skipped in silence is an option that is not set.
package manifest
