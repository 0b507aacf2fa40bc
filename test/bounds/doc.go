// Package bounds holds whole brokers against what they promise about memory and about requests that make no sense.
package bounds
