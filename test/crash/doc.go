// Package crash kills brokers and databases in the middle of work and asks afterwards whether the promises held: what was
// answered "queued" is delivered, what was acknowledged does not come back, order per lane stands.
package crash
