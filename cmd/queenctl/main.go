// Command queenctl is the command line of Queen: data, queues, groups, dead letters, declared configuration, backups and checks.
//
// It is a client of the HTTP API like any other; every command says with --explain which request it stands for. Exit codes: 0 done,
// 1 the command line is wrong, 2 the broker or something on the way failed, 3 a token or a right is missing, 4 there is nothing,
// 5 what was compared differs or a part failed.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"
)

func main() {
	os.Exit(run())
}

// run carries out the command line of this process.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the second signal ends the process at once
	return newApp(process{
		args: os.Args[1:], stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, now: time.Now,
		stdinTerminal: isTerminal(os.Stdin), stdoutTerminal: isTerminal(os.Stdout), stderrTerminal: isTerminal(os.Stderr),
		size: terminalSize,
	}).run(ctx)
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// terminalSize is that of the terminal that progress and top write to; 80 x 24 when it does not say.
func terminalSize() (columns, lines int) {
	for _, f := range []*os.File{os.Stderr, os.Stdout} {
		if columns, lines, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 && lines > 0 {
			return columns, lines
		}
	}
	return 80, 24
}
