package main

import (
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func (a *app) apiCommand() *cobra.Command {
	var data string
	command := &cobra.Command{
		Use: "api METHOD PATH", Short: "Send any request to the broker", Args: args(cobra.ExactArgs(2)),
		Long:    "Send a request with the address and token of the context, and show the answer. --data @FILE takes the body from a file.",
		Example: "  queenctl api GET '/api/v1/resources/queues?limit=5'",
		RunE: func(command *cobra.Command, given []string) error {
			path, rawQuery, _ := strings.Cut(given[1], "?")
			query, err := url.ParseQuery(rawQuery)
			if err != nil || !strings.HasPrefix(path, "/") {
				return usage("%q is no path with a query", given[1])
			}
			var body any
			if data != "" {
				text := []byte(data)
				if name, ok := strings.CutPrefix(data, "@"); ok {
					if text, err = a.readAll(name); err != nil {
						return err
					}
				}
				body = text
			}
			answer, err := a.call(command.Context(), strings.ToUpper(given[0]), path, query, body)
			if err != nil {
				return err
			}
			if !json.Valid(answer) {
				_, err := a.stdout.Write(answer)
				return err
			}
			return a.printer.Item(answer)
		},
	}
	command.Flags().StringVarP(&data, "data", "d", "", "body, or @FILE")
	return command
}

func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use: "man DIRECTORY", Short: "Write a manual page for every command", Args: args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			if err := os.MkdirAll(given[0], 0o755); err != nil {
				return err
			}
			root := command.Root()
			root.DisableAutoGenTag = true
			if err := doc.GenManTree(root, &doc.GenManHeader{Title: "QUEENCTL", Section: "1", Source: "Queen", Manual: "Queen"}, given[0]); err != nil {
				return err
			}
			pages, err := filepath.Glob(filepath.Join(given[0], "queenctl*.1"))
			if err != nil {
				return err
			}
			a.remark("%d pages in %s", len(pages), given[0])
			return nil
		},
	}
}
