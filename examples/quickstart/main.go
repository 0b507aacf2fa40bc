// Command quickstart runs a file through a broker and checks what comes out, with nothing but the standard library.
//
// It writes a JSON-lines file of orders, pushes every line as one message into the partition of its customer, reads the queue
// with two consumer groups at once, and compares: each group must have received every line exactly once, byte for byte, and
// the lines of each customer in the order of the file. It exits with 1 on any difference.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	o := options{out: os.Stdout}
	flag.StringVar(&o.url, "url", "http://127.0.0.1:6632", "the broker")
	flag.StringVar(&o.queue, "queue", fmt.Sprintf("quickstart-%d", time.Now().Unix()), "queue to use; it must not exist yet")
	flag.StringVar(&o.file, "file", filepath.Join(os.TempDir(), "quickstart.jsonl"), "where the records are written")
	flag.IntVar(&o.records, "records", 5000, "number of records")
	flag.BoolVar(&o.keep, "keep", false, "keep the queue afterwards")
	flag.Parse()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

type options struct {
	url, queue, file string
	records          int
	keep             bool
	out              io.Writer
}

// groups read the same queue independently of each other.
var groups = []string{"billing", "search"}

func run(ctx context.Context, o options) error {
	if err := writeRecords(o.file, o.records); err != nil {
		return err
	}
	lines, err := readLines(o.file)
	if err != nil {
		return err
	}
	c := &client{url: o.url}

	began := time.Now()
	if err := c.push(ctx, o.queue, lines); err != nil {
		return fmt.Errorf("push: %w", err)
	}
	fmt.Fprintf(o.out, "pushed %d records of %s into queue %s in %.2f s\n", len(lines), o.file, o.queue, time.Since(began).Seconds())

	faults := make([]error, len(groups))
	reports := make([]string, len(groups))
	var consumers sync.WaitGroup
	for i, group := range groups {
		consumers.Go(func() {
			began := time.Now()
			received, err := c.consume(ctx, o.queue, group, len(lines))
			if err == nil {
				err = compare(lines, received)
			}
			if err != nil {
				faults[i] = fmt.Errorf("group %s: %w", group, err)
				return
			}
			reports[i] = fmt.Sprintf("group %s: %d records from %d partitions, order and bytes as pushed, in %.2f s\n",
				group, len(lines), len(received), time.Since(began).Seconds())
		})
	}
	consumers.Wait()
	for i := range groups {
		if faults[i] != nil {
			return faults[i]
		}
		fmt.Fprint(o.out, reports[i])
	}
	if o.keep {
		return nil
	}
	return c.deleteQueue(ctx, o.queue)
}
