//go:build !linux

package pg

import "syscall"

// limitUnacknowledged leaves it to the system's own time: there is no option of this meaning here.
func limitUnacknowledged(string, string, syscall.RawConn) error { return nil }
