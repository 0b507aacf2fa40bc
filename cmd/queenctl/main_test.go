package main

import (
	"testing"

	"queenmq/internal/testdb"
	"queenmq/test/stack"
)

// serve runs a broker on a database of its own until the test ends and returns where it listens.
func serve(t *testing.T, settings map[string]string) string {
	t.Helper()
	return stack.Serve(t, testdb.New(t).ConnString(), settings)
}
