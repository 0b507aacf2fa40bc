package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/output"
)

func (a *app) diffCommand() *cobra.Command {
	var files []string
	var queue string
	var strict bool
	command := &cobra.Command{
		Use: "diff (MESSAGE MESSAGE | -f FILE)", Short: "Compare two messages, or the broker with declared configuration",
		Long: `With -f: list what separates the broker from a declared configuration. With two messages (transaction ids, or
PARTITION-ID/TRANSACTION-ID): compare payload and labels. Exit code 5 when something differs.`,
		RunE: func(command *cobra.Command, given []string) error {
			switch {
			case len(files) > 0 && len(given) == 0:
				return a.diffDeclared(command.Context(), files, strict)
			case len(files) == 0 && len(given) == 2:
				return a.diffMessages(command.Context(), given[0], given[1], queue)
			}
			return usage("give two messages, or -f and a file")
		},
	}
	f := command.Flags()
	f.StringArrayVarP(&files, "file", "f", nil, "declared configuration (YAML); - is stdin; may be repeated")
	f.BoolVar(&strict, "strict", false, "with -f: queues that are not declared differ too")
	f.StringVar(&queue, "queue", "", "look for transaction ids in this queue only")
	return command
}

// compared are the labels of a message that diff looks at, in this order.
var compared = []string{"queue", "partition", "offset", "transactionId", "traceId", "producerSub", "isEncrypted", "status", "createdAt"}

func (a *app) diffMessages(ctx context.Context, left, right, queue string) error {
	var texts [2][]string
	for i, name := range []string{left, right} {
		at, err := a.addressOf(ctx, name, queue)
		if err != nil {
			return err
		}
		message, err := a.message(ctx, at)
		if err != nil {
			return err
		}
		if texts[i], err = messageLines(message); err != nil {
			return err
		}
	}
	lines, same := output.Diff(texts[0], texts[1])
	if same {
		a.remark("the messages are the same")
		return nil
	}
	fmt.Fprintf(a.stdout, "--- %s\n+++ %s\n", output.Clean(left), output.Clean(right))
	for _, line := range lines {
		fmt.Fprintln(a.stdout, output.Clean(line))
	}
	return differs("the messages differ")
}

func messageLines(message json.RawMessage) ([]string, error) {
	decoded, err := output.Decode(message)
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, name := range compared {
		if value, ok := output.At(decoded, name); ok && value != nil {
			lines = append(lines, name+": "+output.Cell(value, ""))
		}
	}
	payload, err := decode[struct{ Data json.RawMessage }](message)
	if err != nil {
		return nil, err
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, payload.Data, "", "  "); err != nil {
		return nil, badAnswer(err)
	}
	return append(append(lines, "data:"), strings.Split(pretty.String(), "\n")...), nil
}
