// Package rekey tells under which keys payloads are stored, and puts them under the active one: segments, dead letters, recorded
// traces and the state of streaming queries, in batches, beside brokers that serve and retention that deletes.
//
// Re-encryption is a walk in the order of primary keys. What a batch changed and how far the walk has come are stored in one
// transaction, so that it can be ended at any moment and goes on from there, also from another machine. A segment keeps its messages,
// hashes and times; only envelopes in it are sealed again, each with a fresh nonce. What no key opens stays as it is and is counted.
package rekey
