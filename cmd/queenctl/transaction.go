package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"
)

func (a *app) transactionCommand() *cobra.Command {
	var file string
	var dryRun bool
	command := &cobra.Command{
		Use: "tx", Short: "Push and acknowledge in one commit, all or nothing", Aliases: []string{"transaction"},
		Long: `Carry out a file of operations in one transaction: {"operations": [{"type": "push", "items": [...]}, {"type": "ack", ...}],
"requiredLeases": [...]}. The bytes are sent as they are. A transaction that is rolled back is exit code 5.`,
		Args: args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			return a.transaction(command.Context(), file, dryRun)
		},
	}
	command.Flags().StringVarP(&file, "file", "f", "-", "file with the operations; - is stdin")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "read the file, say what it would do, and do nothing")
	return command
}

func (a *app) transaction(ctx context.Context, file string, dryRun bool) error {
	text, err := a.readAll(file)
	if err != nil {
		return err
	}
	var given struct {
		Operations []struct {
			Type  string            `json:"type"`
			Items []json.RawMessage `json:"items"`
		} `json:"operations"`
	}
	if err := json.Unmarshal(text, &given); err != nil {
		return usage("%s is no transaction: %w", file, err)
	}
	pushes, acks := 0, 0
	for i, operation := range given.Operations {
		switch operation.Type {
		case "push":
			pushes += len(operation.Items)
		case "ack":
			acks++
		default:
			return usage("%s: operation %d has the type %q; there are push and ack", file, i, operation.Type)
		}
	}
	if dryRun {
		_, err := fmt.Fprintf(a.stdout, "would push %s and acknowledge %d in one transaction\n", many(pushes, "message"), acks)
		return err
	}
	answer, err := a.call(ctx, http.MethodPost, "/api/v1/transaction", nil, text)
	if err != nil {
		return err
	}
	result, err := decode[struct {
		Success bool
		Error   string
	}](answer)
	if err != nil {
		return err
	}
	if err := a.printer.Item(answer); err != nil {
		return err
	}
	if !result.Success {
		return differs("rolled back, nothing was done: %s", result.Error)
	}
	return nil
}
