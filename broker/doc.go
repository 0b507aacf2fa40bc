// Package broker runs a whole broker inside a Go program. It is the only place where the parts of a broker are constructed,
// started and stopped.
//
//	config, err := broker.LoadConfig(os.LookupEnv, nil)
//	// …
//	b := broker.New(config, broker.WithLogger(logger))
//	err = b.Run(ctx) // returns when ctx ends or a part fails
//
// # Start
//
// In this order: the private PostgreSQL when no database is configured, the connection pool (which opens nothing yet), the
// engine, the listener, then the wait for the database and the schema. Until the schema is there, health routes tell so and all
// others answer 503. A database that cannot be reached is waited for; what waiting cannot cure ends Run: wrong settings, a
// refused password, a server or schema of the wrong version, an address in use.
//
// # Stop
//
// In reverse: readiness turns to no, the listener closes, parked pops are answered 204, requests in flight finish, pushes that
// were taken are committed, the pool closes, the private PostgreSQL stops. Leases stay: their consumers may still acknowledge
// through another broker.
package broker
