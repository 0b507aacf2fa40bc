package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// profiled runs part and, when a directory is given for them, collects processor profiles of the broker meanwhile, a second each, and
// profiles of its memory at the end. `go tool pprof` merges the files that it is given.
func (b *bench) profiled(ctx context.Context, part func(ctx context.Context) (result, error)) (result, error) {
	if b.options.profiles == "" {
		return part(ctx)
	}
	collecting, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	var failure error
	running.Go(func() {
		for n := 0; collecting.Err() == nil && failure == nil; n++ {
			failure = b.fetchProfile(ctx, "profile?seconds=1", fmt.Sprintf("%s.cpu.%03d", b.queue, n))
		}
	})
	r, err := part(ctx)
	stop()
	running.Wait()
	for _, kind := range []string{"heap", "allocs", "goroutine", "block", "mutex"} {
		if failure == nil {
			failure = b.fetchProfile(ctx, kind, b.queue+"."+kind)
		}
	}
	if err != nil || failure != nil {
		return r, errors.Join(err, failure)
	}
	r.stages, err = b.stageShares(ctx)
	return r, err
}

func (b *bench) fetchProfile(ctx context.Context, path, name string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, b.profiler+"/debug/pprof/"+path, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("profile %s answered %d: %.300s", path, answer.StatusCode, text)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.options.profiles, name+".pprof"), text, 0o644)
}
