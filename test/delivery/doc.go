// Package delivery holds the tests of what consumers see of pops, acks and transactions together, on a real database: redelivery,
// leases, dead letters, damaged segments, and exactly-once transformation.
package delivery
