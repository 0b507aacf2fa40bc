package stack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ClockShift is the environment variable by which a broker built by ShiftedClock sees its clock wrong, in seconds; negative is behind.
const ClockShift = "TEST_CLOCK_SHIFT"

// ShiftedClock builds, once per test binary, a broker whose time.Now is wrong by what ClockShift says. The broker's own code is the same as
// ever: the standard library is compiled with two files of package time replaced. No build of the broker that anybody runs has this.
var ShiftedClock = sync.OnceValues(func() (string, error) {
	// The path is part of what the compiler is told: with the same one each time, later runs find everything in the build cache.
	dir := filepath.Join(os.TempDir(), "queen-clock-"+strconv.Itoa(os.Geteuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("find the Go installation: %w", err)
	}
	installed := strings.TrimSpace(string(out))
	// A tool chain in the module cache may not be overlaid; under another name it may.
	root := filepath.Join(dir, filepath.Base(installed))
	if err := os.Symlink(installed, root); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	overlay, err := writeOverlay(dir, root)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, fmt.Sprintf("queen-%d", os.Getpid()))
	build := exec.CommandContext(ctx, filepath.Join(root, "bin", "go"), "build", "-trimpath", "-overlay", overlay, "-o", path, "queenmq/cmd/queen")
	build.Env = append(os.Environ(), "GOROOT="+root, "GOTOOLCHAIN=local")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the broker with a shifted clock: %w: %s", err, out)
	}
	return path, nil
})

// RemoveShiftedClock deletes what ShiftedClock built. Call it at the end of TestMain.
func RemoveShiftedClock() {
	if path, err := ShiftedClock(); err == nil {
		_ = os.Remove(path)
	}
}

// shiftFile is what package time gets in addition.
const shiftFile = `package time

import "syscall"

var clockShift = func() (seconds int64) {
	text, _ := syscall.Getenv("` + ClockShift + `")
	behind := len(text) > 0 && text[0] == '-'
	if behind {
		text = text[1:]
	}
	for _, digit := range []byte(text) {
		seconds = seconds*10 + int64(digit-'0')
	}
	if behind {
		return -seconds
	}
	return seconds
}()
`

// writeOverlay writes the changed files of package time below dir and returns the list that the compiler reads.
func writeOverlay(dir, root string) (string, error) {
	source, err := os.ReadFile(filepath.Join(root, "src", "time", "time.go"))
	if err != nil {
		return "", err
	}
	const begin = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if bytes.Count(source, []byte(begin)) != 1 {
		return "", errors.New("time.Now of this Go release does not begin as expected: adapt writeOverlay")
	}
	changed := bytes.Replace(source, []byte(begin), []byte(begin+"\tsec += clockShift\n"), 1)
	now, shift, list := filepath.Join(dir, "time.go"), filepath.Join(dir, "shift.go"), filepath.Join(dir, "overlay.json")
	text, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(root, "src", "time", "time.go"): now, filepath.Join(root, "src", "time", "shift.go"): shift,
	}})
	if err != nil {
		return "", err
	}
	return list, errors.Join(writeWhole(now, changed), writeWhole(shift, []byte(shiftFile)), writeWhole(list, text))
}

// writeWhole replaces a file at once: another test process may read it.
func writeWhole(path string, text []byte) error {
	draft := fmt.Sprintf("%s.%d.%d", path, os.Getpid(), time.Now().UnixNano())
	if err := os.WriteFile(draft, text, 0o600); err != nil {
		return err
	}
	return os.Rename(draft, path)
}
