package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"queenmq/test/documents"
)

// The commands of the program that the documents name are those of its help.
func TestDocumentedCommandsExist(t *testing.T) {
	t.Parallel()
	known := []string{"", "serve"}
	for _, match := range regexp.MustCompile(`(?m)^  queen (\w[\w ]*?)  `).FindAllStringSubmatch(usage, -1) {
		known = append(known, match[1])
	}
	commands, err := documents.Commands("../..")
	require.NoError(t, err)
	named := 0
	for _, command := range commands {
		args, called := command.Args("queen")
		if !called || command.Document == "bench/peers/README.md" { // which has a column "queen is"
			continue
		}
		named++
		require.Contains(t, known, strings.Join(args, " "), "%s", command)
	}
	require.Greater(t, named, 8)
}
