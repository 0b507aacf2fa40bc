package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// natsCommand is the first argument with which this program is a NATS server, in a process of its own like other servers.
const natsCommand = "nats-server"

// serveNATS runs a server until its standard input ends, which is when its parent has gone.
func serveNATS(arguments []string) error {
	flags := flag.NewFlagSet(natsCommand, flag.ContinueOnError)
	dir := flags.String("dir", "", "store directory")
	port := flags.Int("port", 0, "port on the loopback interface")
	always := flags.Bool("always", false, "sync_interval always")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: *port, JetStream: true, StoreDir: *dir, SyncAlways: *always, NoSigs: true, NoLog: true})
	if err != nil {
		return err
	}
	go s.Start()
	if !s.ReadyForConnections(time.Minute) {
		return errors.New("not ready")
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}
