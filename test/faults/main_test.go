package faults

import (
	"flag"
	"os"
	"testing"

	"queenmq/test/stack"
)

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	stack.RemoveBinary()
	os.Exit(code)
}
