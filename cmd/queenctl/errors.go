package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/output"
	"queenmq/cmd/queenctl/settings"
	"queenmq/queen"
)

// Exit codes. Scripts rely on them.
const (
	exitOK      = 0
	exitUsage   = 1 // the command line is wrong
	exitServer  = 2 // the broker, the way to it, or a file failed
	exitAuth    = 3 // a token or a right is missing
	exitEmpty   = 4 // there is nothing to show or do
	exitDiffers = 5 // what was compared differs, or a part failed
)

// An exitError ends the program with a code of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func usage(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// differs is the error of a comparison that found differences, and of work of which a part failed.
func differs(format string, args ...any) error {
	return &exitError{exitDiffers, fmt.Errorf(format, args...)}
}

// empty is the error of a question whose answer is nothing.
func empty(format string, args ...any) error {
	return &exitError{exitEmpty, fmt.Errorf(format, args...)}
}

// errExplained ends a command whose request was shown instead of sent.
var errExplained = errors.New("explained")

// report writes what went wrong to stderr and returns the exit code.
func (a *app) report(ctx context.Context, command *cobra.Command, err error) int {
	code := exitCode(err)
	if interrupted(ctx, err) && code == exitServer {
		err = errors.New("interrupted")
	}
	switch {
	case code == exitOK, code == exitEmpty && a.flags.quiet, err.Error() == "":
		return code
	case code == exitEmpty:
		a.remark("%v", err)
		return code
	}
	fmt.Fprintf(a.stderr, "queenctl: %s\n", output.CleanLines(err.Error()))
	if code == exitUsage && command != nil {
		fmt.Fprintf(a.stderr, "See: %s --help\n", command.CommandPath())
	}
	return code
}

// exitCode finds the code of an error. Errors that nobody marked are cobra's when they are about the command line, and
// otherwise of the broker or of files.
func exitCode(err error) int {
	if err == nil || errors.Is(err, errExplained) {
		return exitOK
	}
	if marked, ok := errors.AsType[*exitError](err); ok {
		return marked.code
	}
	switch {
	case strings.HasPrefix(err.Error(), "unknown command "): // cobra's, which has no type
		return exitUsage
	case errors.Is(err, settings.ErrToken), errors.Is(err, queen.ErrUnauthenticated), errors.Is(err, queen.ErrForbidden):
		return exitAuth
	}
	return exitServer
}

// args makes cobra's checks of arguments count as usage.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(command *cobra.Command, given []string) error {
		if err := check(command, given); err != nil {
			return usage("%w", err)
		}
		return nil
	}
}

// isNotFound reports that there is no such thing, as opposed to no such route.
func isNotFound(err error) bool { return errors.Is(err, queen.ErrNotFound) }

// A missingRoute is the error of a request that this broker does not know.
type missingRoute struct{ method, path string }

func (e *missingRoute) Error() string {
	return fmt.Sprintf("this broker has no route %s %s: it is older than this queenctl, or another product (queenctl version shows both)", e.method, e.path)
}

func isMissingRoute(err error) bool {
	_, ok := errors.AsType[*missingRoute](err)
	return ok
}
