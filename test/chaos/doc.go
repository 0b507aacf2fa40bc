// Package chaos runs brokers with wrong clocks and a PostgreSQL as child processes, breaks them in every way that a seed chooses while clients
// work, and holds what the clients saw against what the broker promises.
//
//	go test ./test/chaos -run TestChaos -args -chaos.duration=30m -chaos.seed=1
package chaos
