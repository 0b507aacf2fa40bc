package main

import (
	"flag"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"queenmq/test/documents"
)

// The commands that the documents and the Makefile's readers are told to run have flags and scenarios that are there.
func TestDocumentedRunsAreKnown(t *testing.T) {
	t.Parallel()
	commands, err := documents.Commands("..")
	require.NoError(t, err)
	runs := 0
	for _, command := range commands {
		args, called := command.Args("go")
		if !called || len(args) < 2 || args[0] != "run" || args[1] != "./bench" {
			continue
		}
		runs++
		flags := flag.NewFlagSet("bench", flag.ContinueOnError)
		flags.SetOutput(io.Discard)
		var o options
		o.declare(flags)
		if err := flags.Parse(args[2:]); err != nil {
			require.ErrorIs(t, err, flag.ErrHelp, "%s", command)
			continue
		}
		require.Empty(t, flags.Args(), "%s", command)
		for _, name := range expand(strings.Split(o.scenarios, ",")) {
			require.NotNil(t, scenarioOf(name), "%s: no scenario %s", command, name)
		}
	}
	require.Greater(t, runs, 15)
}
