package main

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"queenmq/test/documents"
)

var generated = regexp.MustCompile(`(?s)(<!-- generated: [^>]*-run Documented -update -->\n).*?(<!-- end of the generated part -->)`)

// leaves are the commands that do something.
func leaves(command *cobra.Command) (all []*cobra.Command) {
	if !command.HasSubCommands() {
		return []*cobra.Command{command}
	}
	for _, child := range command.Commands() {
		if child.Name() != "help" && child.Name() != "completion" {
			all = append(all, leaves(child)...)
		}
	}
	return all
}

func tree(t *testing.T) *cobra.Command {
	t.Helper()
	return newApp(process{stdin: &bytes.Buffer{}, stdout: &bytes.Buffer{}, stderr: &bytes.Buffer{}, getenv: func(string) string { return "" }, now: time.Now}).root()
}

// docs/queenctl.md lists every verb.
func TestVerbsAreDocumented(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	table.WriteString("| Verb | What it does |\n| --- | --- |\n")
	for _, command := range leaves(tree(t)) {
		use := strings.TrimPrefix(command.UseLine(), "queenctl ")
		use = strings.ReplaceAll(strings.TrimSuffix(use, " [flags]"), "|", `\|`)
		fmt.Fprintf(&table, "| `%s` | %s |\n", use, strings.ReplaceAll(command.Short, "|", `\|`))
	}
	const document = "../../docs/queenctl.md"
	text, err := os.ReadFile(document)
	require.NoError(t, err)
	wanted := generated.ReplaceAllFunc(text, func(block []byte) []byte {
		parts := generated.FindSubmatch(block)
		return []byte(string(parts[1]) + table.String() + string(parts[2]))
	})
	if *update {
		require.NoError(t, os.WriteFile(document, wanted, 0o644))
		return
	}
	require.Equal(t, string(wanted), string(text), "go test ./cmd/queenctl -run Documented -update writes it anew")
}

// The commands that the documents show have verbs and flags that are there.
func TestDocumentedCommandsExist(t *testing.T) {
	t.Parallel()
	commands, err := documents.Commands("../..")
	require.NoError(t, err)
	shown := 0
	for _, line := range commands {
		args, called := line.Args("queenctl")
		if !called || len(args) == 0 || args[0] == "completion" {
			continue
		}
		shown++
		command, rest, err := tree(t).Find(args)
		require.NoError(t, err, "%s", line)
		require.True(t, command.Runnable(), "%s: no such verb", line)
		require.NoError(t, command.ParseFlags(rest), "%s", line)
	}
	require.Greater(t, shown, 15)
}

// Every verb is run by a script, every command says in a line what it is, and destructive ones can be previewed.
func TestEveryVerbHasAScript(t *testing.T) {
	t.Parallel()
	scripts := ""
	for _, dir := range []string{"testdata/script", "testdata/alone", "testdata/token"} {
		files, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(dir + "/" + file.Name())
			require.NoError(t, err)
			scripts += string(text)
		}
	}
	for _, command := range leaves(tree(t)) {
		path := command.CommandPath()
		names := []string{path}
		for _, alias := range command.Aliases {
			names = append(names, command.Parent().CommandPath()+" "+alias)
		}
		var patterns []string
		for _, name := range names {
			patterns = append(patterns, regexp.QuoteMeta(name)+`\b`)
		}
		run := regexp.MustCompile(`(?m)^(exec|exits \d|until \S+|until '[^']*') (` + strings.Join(patterns, "|") + `)`)
		require.True(t, run.MatchString(scripts), "no script runs %s", path)
		require.NotEmpty(t, command.Short, path)
		require.NotContains(t, strings.TrimSuffix(command.Short, "."), ". ", path)
		if command.Flags().Lookup("yes") != nil {
			require.NotNil(t, command.Flags().Lookup("preview"), path)
		}
	}
}
