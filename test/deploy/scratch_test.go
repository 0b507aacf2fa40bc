package deploy

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
	"queenmq/test/stack"
	"queenmq/test/wire"
)

// The program of the release works where there is no other file, as in the image: no libraries, no shell, no /etc, no /tmp, and as nobody. It
// keeps pushes in its buffer there while the database is away, and ends when it is told to.
func TestProgramNeedsNothingAroundIt(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	_, flags, found := strings.Cut(string(makefile), "CGO_ENABLED=0 GOOS=linux GOARCH=$$arch go build -trimpath -buildvcs=$(BUILDVCS) ")
	require.True(t, found, "the release is built in another way: this test must follow")
	require.True(t, strings.HasPrefix(flags, "-ldflags '-s -w -buildid=' "))
	image := read(t, "Dockerfile")
	for _, line := range []string{"FROM scratch", "USER 65532:65532", "ENV FILE_BUFFER_DIR=/var/lib/queen/buffers", `ENTRYPOINT ["/queen"]`, `CMD ["serve"]`} {
		require.Contains(t, image, line+"\n")
	}

	root := t.TempDir()
	buffers := filepath.Join(root, "var/lib/queen/buffers")
	require.NoError(t, os.MkdirAll(buffers, 0o755))
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", filepath.Join(root, "queen"), "queenmq/cmd/queen")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	said, err := build.CombinedOutput()
	require.NoError(t, err, "%s", said)

	around := []string{"unshare", "--map-root-user", "--root=" + root}
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chown(buffers, 65532, 65532))
		around = []string{"unshare", "--root=" + root, "--setuid=65532", "--setgid=65532"}
		for dir := root; dir != filepath.Dir(os.TempDir()) && dir != "/"; dir = filepath.Dir(dir) {
			if info, err := os.Stat(dir); err == nil && dir != os.TempDir() {
				require.NoError(t, os.Chmod(dir, info.Mode().Perm()|0o055)) // the way to the new root
			}
		}
	}
	server := testdb.StartServer(t, testdb.ServerOptions{Settings: map[string]string{"fsync": "off"}})
	broker := stack.NewProcess(t, server.ConnString("postgres"), stack.ProcessOptions{
		Binary: func() (string, error) { return "/queen", nil }, Around: around, Env: []string{"FILE_BUFFER_DIR=/var/lib/queen/buffers"},
	})
	broker.Start(t)
	client := wire.NewClient(broker.URL, 8)
	defer client.Close()
	push := func(id string) string {
		verdicts, err := client.Push(t.Context(), []wire.PushItem{{Queue: "q", TransactionID: id, Payload: json.RawMessage(`1`)}})
		require.NoError(t, err)
		return verdicts[0].Status
	}
	require.Equal(t, "queued", push("a"))
	server.Stop(t, "fast")
	require.Eventually(t, func() bool { return push("b") == "buffered" }, 30*time.Second, 10*time.Millisecond)
	kept, err := os.ReadDir(buffers)
	require.NoError(t, err)
	require.NotEmpty(t, kept)
	server.Start(t)
	seen := map[string]bool{}
	require.Eventually(t, func() bool {
		batch, err := client.Pop(t.Context(), wire.PopRequest{Queue: "q", AnyPartition: true, Batch: 10, AutoAck: true})
		if err == nil && batch != nil {
			for _, m := range batch.Messages {
				seen[m.TransactionID] = true
			}
		}
		return seen["a"] && seen["b"]
	}, 30*time.Second, 20*time.Millisecond)
	require.NoError(t, broker.Signal(syscall.SIGTERM))
	select {
	case <-broker.Exited():
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
}
