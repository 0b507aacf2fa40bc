package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"queenmq/cmd/queenctl/output"
	"queenmq/queen"
)

// A session is queenctl in a process of its own, on a terminal of 100 columns or into a buffer.
type session struct {
	t       *testing.T
	cmd     *exec.Cmd
	keys    *os.File // the terminal's other side, nil without one
	ended   chan error
	read    chan struct{} // closed when everything was read
	mu      sync.Mutex
	written bytes.Buffer
}

// Write gathers what queenctl writes.
func (s *session) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written.Write(p)
}

func (s *session) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written.String()
}

func newSession(t *testing.T, server string, args []string) *session {
	t.Helper()
	s := &session{t: t, ended: make(chan error, 1), read: make(chan struct{})}
	s.cmd = exec.CommandContext(t.Context(), "queenctl", args...)
	s.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "QUEEN_SERVER=" + server, "TERM=xterm"}
	return s
}

// onTerminal starts queenctl on a terminal; stdin is the terminal's unless input is given.
func onTerminal(t *testing.T, server string, input *os.File, args ...string) *session {
	t.Helper()
	s := newSession(t, server, args)
	if input != nil {
		s.cmd.Stdin = input
	}
	// The terminal is that of stdout, which is one whatever stdin is.
	keys, err := pty.StartWithAttrs(s.cmd, &pty.Winsize{Rows: 30, Cols: 100}, &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 1})
	require.NoError(t, err)
	s.keys = keys
	t.Cleanup(func() { _ = keys.Close() })
	go func() {
		defer close(s.read)
		buffer := make([]byte, 4096)
		for {
			n, err := keys.Read(buffer)
			_, _ = s.Write(buffer[:n])
			if err != nil {
				return // the other side is closed: Linux says EIO
			}
		}
	}()
	go func() { s.ended <- s.cmd.Wait() }()
	return s
}

// piped starts queenctl with stdout and stderr in one buffer.
func piped(t *testing.T, server string, args ...string) *session {
	t.Helper()
	s := newSession(t, server, args)
	s.cmd.Stdout, s.cmd.Stderr = s, s
	require.NoError(t, s.cmd.Start())
	close(s.read)
	go func() { s.ended <- s.cmd.Wait() }()
	return s
}

// until waits until the output matches.
func (s *session) until(pattern string) {
	s.t.Helper()
	wanted := regexp.MustCompile(pattern)
	for deadline := time.Now().Add(time.Minute); !wanted.MatchString(s.text()); time.Sleep(5 * time.Millisecond) { // a poll of a foreign process
		if time.Now().After(deadline) {
			s.t.Fatalf("never %s in:\n%q", pattern, s.text())
		}
	}
}

// end waits for the end of the process and returns its exit code and everything it wrote.
func (s *session) end() (int, string) {
	s.t.Helper()
	select {
	case <-s.ended:
	case <-time.After(time.Minute):
		s.t.Fatalf("queenctl does not end:\n%s", s.text())
	}
	<-s.read
	return s.cmd.ProcessState.ExitCode(), s.text()
}

func clientOf(t *testing.T, server string) *queen.Client {
	t.Helper()
	client, err := queen.Connect(server)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

func pushItems(t *testing.T, client *queen.Client, items ...queen.Item) {
	t.Helper()
	_, err := client.Push(t.Context(), items...)
	require.NoError(t, err)
}

// A push of known length shows how much is done, how fast it goes and how long it will take, on a terminal and only there.
func TestPushShowsProgressOnATerminal(t *testing.T) {
	t.Parallel()
	server := serve(t, nil)
	path := filepath.Join(t.TempDir(), "lines")
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("{\"n\":1}\n", 2000)), 0o600))
	input, err := os.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, input.Close()) }()

	code, text := onTerminal(t, server, input, "push", "q", "--batch", "200", "--rate", "4000").end()
	require.Equal(t, 0, code, text)
	require.Regexp(t, `\r\x1b\[K\[#+\.+\] +\d+% pushed [\d,]+ of 2,000 messages, [\d,]+/s, ETA \d+`, text)
	require.Regexp(t, `\[####################\] 100% pushed 2,000 of 2,000 messages, [\d,]+/s`, text)
	require.Contains(t, text, "queued 2000 (queue q, 1 partition)")

	code, text = onTerminal(t, server, nil, "push", "q", path, "--quiet").end()
	require.Equal(t, 0, code, text)
	require.NotContains(t, text, "\x1b")
	code, text = piped(t, server, "push", "q", path).end()
	require.Equal(t, 0, code, text)
	require.Equal(t, "queued 2000 (queue q, 1 partition)\n", text)
}

// hostile is what strangers may put into payloads and names: colours, cursor movements, title changes, C1, directions, invisibles.
const hostile = "\u001b[31mred\u001b]0;title\u0007 \u009b2J \u202egnp.exe \u2066x\u2069 \u200b\u2028 \u007f\r\b"

// hostileName is what of it names may hold.
const hostileName = "\u009b31m\u202eq\u2066\u200b\u2028\u007f"

// raw finds what could act on a terminal: everything that SafeWriter escapes, except line breaks as terminals show them.
func raw(text string) string {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	if escaped := output.CleanLines(text); escaped != text {
		return fmt.Sprintf("%q", text)
	}
	return ""
}

// Nothing that strangers stored reaches a terminal raw, whichever verb and format shows it. A pipe gets the exact bytes.
func TestHostileTextStaysText(t *testing.T) {
	t.Parallel()
	server := serve(t, nil)
	client := clientOf(t, server)
	payload, err := json.Marshal(map[string]string{"text": hostile})
	require.NoError(t, err)
	payload = bytes.ReplaceAll(payload, []byte(`\u2028`), []byte("\u2028")) // as another encoder would write it
	pushItems(t, client, queen.Item{Queue: hostileName, Partition: hostileName, TransactionID: "t" + hostileName, Payload: payload})
	batch, err := client.Pop(t.Context(), hostileName, queen.PopOptions{Group: hostileName})
	require.NoError(t, err)
	_, err = client.Ack(t.Context(), batch.Messages[0].DeadLettered(fmt.Errorf("%s", hostile)))
	require.NoError(t, err)
	address := batch.Messages[0].PartitionID + "/" + batch.Messages[0].TransactionID

	for _, args := range [][]string{
		{"peek", hostileName},
		{"peek", hostileName, "-o", "wide"},
		{"peek", hostileName, "-o", "json"},
		{"peek", hostileName, "-o", "ndjson"},
		{"peek", hostileName, "-o", "yaml"},
		{"peek", hostileName, "-o", "template={{.data.text}} {{.partition}}"},
		{"get", address},
		{"get", address, "--data"},
		{"tail", hostileName},
		{"messages", "list"},
		{"pop", hostileName, "-g", "another"},
		{"queue", "list", "-o", "wide"},
		{"queue", "show", hostileName},
		{"partition", "list", hostileName},
		{"group", "list"},
		{"group", "show", hostileName},
		{"dlq", "list", "-o", "wide"},
		{"dlq", "groups", "-o", "wide"},
		{"status"},
		{"events"},
		{"top", "--once"},
		{"export"},
		{"queue", "show", "none" + hostileName},
		{"queue", "rm", hostileName, "--preview"},
		{"queue", "rm", hostileName, "--explain"},
		{"nonsense" + hostileName},
	} {
		code, text := onTerminal(t, server, nil, args...).end()
		require.Contains(t, []int{0, 1, 2}, code, "%q: %s", args, text)
		require.Empty(t, raw(text), "%q", args)
		require.NotEmpty(t, text, "%q", args)
	}
	code, text := piped(t, server, "get", address, "--data").end()
	require.Equal(t, 0, code)
	require.Equal(t, string(payload)+"\n", text)
}

// What a terminal shows of JSON is the same JSON.
func TestEscapedJSONMeansTheSame(t *testing.T) {
	t.Parallel()
	server := serve(t, nil)
	payload, err := json.Marshal(map[string]string{"text": hostile})
	require.NoError(t, err)
	pushItems(t, clientOf(t, server), queen.Item{Queue: "q", TransactionID: "t", Payload: bytes.ReplaceAll(payload, []byte(`\u2028`), []byte("\u2028"))})
	code, text := onTerminal(t, server, nil, "get", "t", "--data").end()
	require.Equal(t, 0, code)
	var shown map[string]string
	require.NoError(t, json.Unmarshal([]byte(text), &shown))
	require.Equal(t, hostile, shown["text"])
}

// Destructive verbs ask at a terminal, and take only yes for yes.
func TestDestructiveVerbsAsk(t *testing.T) {
	t.Parallel()
	server := serve(t, nil)
	pushItems(t, clientOf(t, server), queen.Item{Queue: "q", Payload: []byte("1")})
	answer := func(text string) (int, string) {
		s := onTerminal(t, server, nil, "queue", "rm", "q")
		s.until(`This will delete the queue q with 1 partition and 1 message, \d unread, and 0 dead letters\. Go on\? \[y/N\] `)
		_, err := s.keys.WriteString(text)
		require.NoError(t, err)
		return s.end()
	}
	code, text := answer("\n")
	require.Equal(t, exitUsage, code, text)
	require.Contains(t, text, "nothing was done")
	code, text = answer("maybe\n")
	require.Equal(t, exitUsage, code, text)
	code, text = answer("y\n")
	require.Equal(t, exitOK, code, text)
	require.Regexp(t, `deleted +yes`, text)
}

// The live view draws frames on the terminal's other screen, shows hostile names as text, and gives the terminal back on q.
func TestTopRedrawsUntilQ(t *testing.T) {
	t.Parallel()
	server := serve(t, nil)
	client := clientOf(t, server)
	pushItems(t, client, queen.Item{Queue: hostileName, Payload: []byte("1")})
	s := onTerminal(t, server, nil, "top", "--interval", "100ms")
	s.until(`(?s)\x1b\[H.*QUEUE.*\\u009b31m.*GROUP.*\x1b\[J.*\x1b\[H`)
	pushItems(t, client, queen.Item{Queue: "second-frame", Payload: []byte("1")})
	s.until("second-frame")
	_, err := s.keys.WriteString("xq")
	require.NoError(t, err)
	code, text := s.end()
	require.Equal(t, exitOK, code, text)
	require.True(t, strings.HasSuffix(text, leaveScreen), "%q", text[max(0, len(text)-100):])
	text = strings.NewReplacer(enterScreen, "", leaveScreen, "", "\x1b[H", "", "\x1b[J", "", "\x1b[K", "", "\x1b[1m", "", "\x1b[0m", "").Replace(text)
	require.Empty(t, raw(text))
}

// Following shows what comes, into partitions that are new too, once and without a cursor; Ctrl-C is its good end.
func TestTailFollows(t *testing.T) {
	t.Parallel()
	server := serve(t, nil)
	client := clientOf(t, server)
	push := func(partition, id string) {
		pushItems(t, client, queen.Item{Queue: "q", Partition: partition, TransactionID: id, Payload: []byte("1")})
	}
	push("a", "old-1")
	push("b", "old-2")
	s := piped(t, server, "tail", "q", "-f", "-n", "1", "--interval", "20ms", "-o", "template={{.transactionId}}")
	s.until("old-2")
	for i := range 20 {
		push([]string{"a", "b", "fresh"}[i%3], fmt.Sprintf("new-%d", i))
		s.until(fmt.Sprintf(`new-%d\n`, i))
	}
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGINT))
	code, text := s.end()
	require.Equal(t, exitOK, code, text)
	require.NotContains(t, text, "old-1")
	for i := range 20 {
		require.Equal(t, 1, strings.Count(text, fmt.Sprintf("new-%d\n", i)), text)
	}
	groups, err := client.Do(t.Context(), "GET", "/api/v1/consumer-groups", nil, nil)
	require.NoError(t, err)
	require.JSONEq(t, "[]", string(groups.Body))
}
