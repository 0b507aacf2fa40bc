package faults

import (
	"os"
	"testing"

	"queenmq/test/stack"
)

func TestMain(m *testing.M) {
	code := m.Run()
	stack.RemoveBinary()
	os.Exit(code)
}
