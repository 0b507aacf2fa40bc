// Package management tests what an operator does, through whole brokers that share a database.
package management
