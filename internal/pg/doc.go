// Package pg is the only door to PostgreSQL: the connection pool, the schema apply, one typed method per stored procedure,
// the translation of SQLSTATEs into errors of this project, and the retry of serialization failures and deadlocks.
//
// It takes no business decision. Whatever decides who owns a message is SQL (package sql); whatever schedules work is the
// engine. Methods take a context first, run exactly one transaction, and may be called from any number of goroutines.
package pg
