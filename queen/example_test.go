package queen_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"queenmq/queen"
	"queenmq/test/stack"
)

// brokerURL stands for "http://localhost:6632" here: the examples run against a broker that the tests start.
func brokerURL() string { return stack.Shared().URL }

type order struct {
	Number int     `json:"number"`
	Total  float64 `json:"total"`
}

func Example() {
	ctx := context.Background()
	client, err := queen.Connect(brokerURL())
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	item, err := queen.NewItem("example.orders", "customer-7", order{Number: 1, Total: 12.5})
	if err != nil {
		log.Fatal(err)
	}
	item.TransactionID = "order-1" // pushed again, it is a duplicate
	results, err := client.Push(ctx, item)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(results[0].Status)

	batch, err := client.Pop(ctx, "example.orders", queen.PopOptions{Group: "billing", Wait: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range batch.Messages {
		fmt.Println(m.Partition, m.TransactionID, string(m.Payload))
	}
	if _, err := client.Ack(ctx, batch.Completed()...); err != nil {
		log.Fatal(err)
	}
	// Output:
	// queued
	// customer-7 order-1 {"number":1,"total":12.5}
}

func ExampleConnect() {
	// Two brokers of one database, with a token. Nothing is sent yet.
	client, err := queen.Connect("http://queen-1:6632,http://queen-2:6632", queen.WithToken("eyJ…"), queen.WithRetryBudget(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	client.Close()
	// Output:
}

func ExampleConsume() {
	client, err := queen.Connect(brokerURL())
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	for n := range 3 {
		item, _ := queen.NewItem("example.consumed", "customer-7", order{Number: n})
		if _, err := client.Push(ctx, item); err != nil {
			log.Fatal(err)
		}
	}

	o := queen.ConsumeOptions{
		PopOptions:  queen.PopOptions{Group: "shipping"},
		Concurrency: 4,
		OnError:     func(err error) { log.Print(err) },
	}
	err = queen.Consume(ctx, client, "example.consumed", o, func(ctx context.Context, o order, m *queen.Message) error {
		fmt.Println("ship", o.Number)
		if o.Number == 2 {
			stop() // Consume acknowledges what was handled, and returns
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// ship 0
	// ship 1
	// ship 2
	// <nil>
}

func ExampleUnprocessable() {
	handle := func(_ context.Context, o order, _ *queen.Message) error {
		switch {
		case o.Total < 0:
			return queen.Unprocessable(errors.New("a negative total")) // a dead letter at once
		case o.Number == 0:
			return queen.RetryIn(time.Minute) // later, without spending a retry
		}
		return nil
	}
	fmt.Println(handle(context.Background(), order{Total: -1}, nil))
	// Output: a negative total
}

func ExampleClient_Transaction() {
	ctx := context.Background()
	client, err := queen.Connect(brokerURL())
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Push(ctx, queen.Item{Queue: "example.source", Payload: []byte(`{"number":1}`)}); err != nil {
		log.Fatal(err)
	}
	batch, err := client.Pop(ctx, "example.source", queen.PopOptions{Group: "forwarder"})
	if err != nil {
		log.Fatal(err)
	}
	// What was read is acknowledged, and what follows from it is pushed, in one commit.
	transaction := client.Transaction().Ack(batch.Completed()...)
	for _, m := range batch.Messages {
		transaction.Push(queen.Item{Queue: "example.sink", Partition: m.Partition, Payload: m.Payload})
	}
	result, err := transaction.Commit(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(result.Acked), len(result.Pushed))
	// Output: 1 1
}

func ExampleClient_NewProducer() {
	ctx := context.Background()
	client, err := queen.Connect(brokerURL())
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	producer := client.NewProducer(queen.ProducerOptions{Buffer: 1000})
	for n := range 100 {
		item, _ := queen.NewItem("example.produced", "customer-7", order{Number: n})
		if err := producer.Send(ctx, item); err != nil { // waits while the buffer is full
			log.Fatal(err)
		}
	}
	closing, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	unsent, err := producer.Close(closing)
	fmt.Println(len(unsent), err)
	// Output: 0 <nil>
}

func ExampleAdmin() {
	ctx := context.Background()
	client, err := queen.Connect(brokerURL())
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	admin := client.Admin()
	if _, err := admin.Configure(ctx, "example.admin", queen.QueueOptions{LeaseTime: new(30), MaxSize: new(10_000)}); err != nil {
		log.Fatal(err)
	}
	for dead, err := range admin.DeadLetters(ctx, queen.DeadLetterFilter{Queue: "example.admin"}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(dead.TransactionID, dead.Reason)
	}
	_, err = admin.Queue(ctx, "example.no such queue")
	fmt.Println(errors.Is(err, queen.ErrNotFound))
	// Output: true
}

func ExampleClient_Do() {
	client, err := queen.Connect(brokerURL())
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	response, err := client.Do(context.Background(), "GET", "/livez", nil, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(response.Status)
	// Output: 200
}
