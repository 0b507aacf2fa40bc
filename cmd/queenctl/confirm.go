package main

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// destructive adds the flags of commands that cannot be undone.
func (a *app) destructive(command *cobra.Command) *cobra.Command {
	command.Flags().BoolVar(&a.flags.preview, "preview", false, "show what would happen and change nothing")
	command.Flags().BoolVar(&a.flags.preview, "dry-run", false, "the same as --preview")
	command.Flags().BoolVarP(&a.flags.yes, "yes", "y", false, "do it without asking")
	return command
}

// confirm shows what is going to happen and decides whether it does: not with --preview, at once with --yes, and otherwise when
// somebody at a terminal says so. Without a terminal nobody can be asked, so nothing happens.
func (a *app) confirm(format string, args ...any) (bool, error) {
	text := fmt.Sprintf(format, args...)
	switch {
	case a.flags.explain:
		return true, nil
	case a.flags.preview:
		fmt.Fprintf(a.stdout, "would %s\n", text)
		return false, nil
	case a.flags.yes:
		return true, nil
	case !a.stdinTerminal || !a.stderrTerminal:
		return false, usage("this would %s; --yes does it, --preview only shows it", text)
	}
	fmt.Fprintf(a.stderr, "This will %s. Go on? [y/N] ", text)
	line, _ := bufio.NewReader(a.stdin).ReadString('\n') // the end of the input is a no
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return true, nil
	}
	return false, usage("nothing was done")
}
