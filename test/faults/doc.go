// Package faults breaks one thing at a time - the database, the network, a pooler, a broker, a client - and measures what it costs and how
// long after its end everything works again, without a restart of a broker.
package faults
