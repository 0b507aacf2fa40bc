package localpg

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A process is one run of the server.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when the server has been reaped and its messages were read
	err    error         // how it ended; written before exited is closed

	mu    sync.Mutex
	words []string // the last messages, oldest first
}

const wordsKept = 8

func newProcess(cmd *exec.Cmd, output *os.File, log *slog.Logger) *process {
	p := &process{cmd: cmd, exited: make(chan struct{})}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		p.listen(output, log)
	}()
	go func() {
		p.err = cmd.Wait()
		// Backends of a server that died hold the pipe open until they notice; its last words are read within this time.
		_ = output.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		<-drained
		_ = output.Close()
		close(p.exited)
	}()
	return p
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// listen passes the server's messages on. Routine ones are for debugging; LOG is PostgreSQL's word for those. So are errors:
// whoever sent the statement gets them too and knows whether they matter.
func (p *process) listen(output *os.File, log *slog.Logger) {
	level := slog.LevelDebug
	lines := bufio.NewReaderSize(output, 64<<10)
	for {
		line, tooLong, err := lines.ReadLine()
		if text := strings.TrimRight(string(line), " "); text != "" {
			severity, message, _ := strings.Cut(text, ":")
			if strings.HasPrefix(strings.TrimSpace(message), "terminating connection") {
				severity = "LOG" // a session that a shutdown cut
			}
			switch severity {
			case "LOG", "INFO", "NOTICE", "ERROR":
				level = slog.LevelDebug
			case "WARNING", "FATAL", "PANIC":
				level = slog.LevelWarn
			}
			log.Log(context.Background(), level, "postgresql says", slog.String("text", text))
			p.remember(text)
		}
		for tooLong && err == nil {
			_, tooLong, err = lines.ReadLine()
		}
		if err != nil {
			return
		}
	}
}

func (p *process) remember(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.words = append(p.words, text); len(p.words) > wordsKept {
		p.words = p.words[1:]
	}
}

// logComplaint finds the complaints among the routine messages, which PostgreSQL files under the same severity.
var logComplaint = regexp.MustCompile(`invalid|unrecognized|error|could not`)

// lastWords is what the server said before it ended, in one line, for the error that reports the end.
func (p *process) lastWords() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	end := "it ended"
	if p.err != nil {
		end = p.err.Error()
	}
	var complaints []string
	for _, text := range p.words {
		if !strings.HasPrefix(text, "LOG:") || logComplaint.MatchString(text) {
			complaints = append(complaints, strings.Join(strings.Fields(text), " "))
		}
	}
	if complaints == nil {
		return end
	}
	return fmt.Sprintf("%s (%s)", strings.Join(complaints, "; "), end)
}

// stop asks for a fast shutdown and waits for it; when ctx ends, for an immediate one, and at last kills.
func (p *process) stop(ctx context.Context, log *slog.Logger) {
	_ = p.cmd.Process.Signal(syscall.SIGINT)
	select {
	case <-p.exited:
		return
	case <-ctx.Done():
	}
	log.WarnContext(ctx, "private postgresql is slow to stop, it will recover at its next start")
	p.kill()
	<-p.exited
}

// kill stops the server without a checkpoint: by the signal for that, so that it takes its children along, and by force when
// that does not help.
func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGQUIT)
	select {
	case <-p.exited:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
	}
}
