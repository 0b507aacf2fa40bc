package broker_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"queenmq/broker"
	"queenmq/queen"
)

// A broker inside a program: it lives as long as the context, and clients use it like any other. Without DATABASE_URL it brings a
// private PostgreSQL.
func Example() {
	cfg, err := broker.LoadConfig(os.LookupEnv, nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	b := broker.New(cfg)
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	select {
	case <-b.Ready():
	case err := <-ended:
		log.Fatal(err)
	}
	client, err := queen.Connect(b.URL())
	if err != nil {
		log.Fatal(err)
	}
	results, err := client.Push(ctx, queen.Item{Queue: "orders", Payload: []byte(`{"total":12.5}`)})
	fmt.Println(results[0].Status, err)

	client.Close()
	stop()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
}
