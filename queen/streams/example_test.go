package streams_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"queenmq/queen"
	"queenmq/queen/streams"
	"queenmq/test/stack"
)

// Orders are summed up per shop and minute, by the times in them. Each result is stored exactly once, whatever happens to the runner.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := queen.Connect(stack.Shared().URL)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	type Order struct {
		Shop  string
		At    time.Time
		Total float64
	}
	noon := time.Date(2026, 9, 14, 12, 0, 0, 0, time.UTC)
	for _, o := range []Order{{"rome", noon, 10}, {"oslo", noon.Add(20 * time.Second), 5}, {"rome", noon.Add(50 * time.Second), 2.5}, {"rome", noon.Add(70 * time.Second), 100}} {
		item, err := queen.NewItem("example.orders", "europe", o)
		if err != nil {
			log.Fatal(err)
		}
		if _, err := client.Push(ctx, item); err != nil {
			log.Fatal(err)
		}
	}

	orders := streams.From[Order]("example.orders").
		EventTime(func(o Order) time.Time { return o.At }).
		KeyBy(func(o Order) string { return o.Shop })
	totals := streams.Sum(orders.Window(streams.Tumbling(time.Minute)), func(o Order) float64 { return o.Total })
	runner, err := streams.NewRunner(client, "totals-per-minute", totals.To("example.totals"))
	if err != nil {
		log.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- runner.Run(running) }()

	for results := 0; results < 2; {
		batch, err := client.Pop(ctx, "example.totals", queen.PopOptions{Wait: 10 * time.Second})
		if err != nil {
			log.Fatal(err)
		}
		for _, m := range batch.Messages {
			fmt.Println(string(m.Payload))
			results++
		}
		if _, err := client.Ack(ctx, batch.Completed()...); err != nil {
			log.Fatal(err)
		}
	}
	stop()
	if err := <-done; err != nil {
		log.Fatal(err)
	}
	// Output:
	// {"key":"oslo","windowStart":"2026-09-14T12:00:00Z","windowEnd":"2026-09-14T12:01:00Z","value":5}
	// {"key":"rome","windowStart":"2026-09-14T12:00:00Z","windowEnd":"2026-09-14T12:01:00Z","value":12.5}
}

// A window for each working day of a shop in Rome, also when the clocks change.
func ExampleCron() {
	type Visit struct{ Shop string }
	visits := streams.From[Visit]("visits").KeyBy(func(v Visit) string { return v.Shop })
	daily := streams.Count(visits.Window(streams.Cron("0 6 * * 1-5", "Europe/Rome"), streams.AllowedLateness(time.Hour), streams.LateTo("visits.late")))
	_, err := streams.NewRunner(nil, "visits-per-day", daily.To("visits.daily"))
	fmt.Println(err)
	// Output: <nil>
}

// At most ten mails a second for each customer; the rest waits in its partition.
func ExampleStream_Gate() {
	type Mail struct{ Customer, Text string }
	mails := streams.From[Mail]("mails").KeyBy(func(m Mail) string { return m.Customer }).Gate(streams.Rate{Events: 10, Per: time.Second})
	query := mails.Foreach(func(ctx context.Context, m Mail) error {
		fmt.Println("send", m.Text)
		return ctx.Err()
	})
	_, err := streams.NewRunner(nil, "send-mails", query)
	fmt.Println(err)
	// Output: <nil>
}
