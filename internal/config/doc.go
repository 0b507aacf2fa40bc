// Package config declares every setting of the broker once, as a tagged struct field, and reads them from the environment.
//
// From the tags come the parser, the bounds, the text of `queen config`, the report of faults and docs/configuration.md, so
// that none of them can disagree. Nothing here touches the process environment: the caller passes a lookup function.
//
// # Tags
//
//   - env: the variable; several names separated by commas are aliases, the first set one wins
//   - default: the value when the variable is unset (and, for everything but text, when it is blank)
//   - unit: ms, s or days for durations; bytes and others are words for the reader
//   - min, max: inclusive bounds, in the unit of the variable
//   - oneof: the legal words, separated by |
//   - blank: "default" makes a blank text mean "unset"
//   - auto: how a default that is computed is written in the documentation
//   - doc: one or two sentences for the operator
//
// A Config is immutable after Load and safe to share. Parts of the broker receive the sub-struct that concerns them, never
// the whole.
package config
