// Package testdb gives tests a real PostgreSQL: one server per test run, a fresh database per test.
//
// The first test process that asks starts a server in a temporary directory (version 15 or newer, found on PATH or in the
// usual installation directories); the test processes of other packages, also of other runs at the same time, join it. A small
// supervisor process, the test binary started again, stops the server and removes its files when nobody has used it for a
// while, also when the users were killed. The server is fast and forgetful (fsync=off): a test that needs durability, or wants
// to stop its server, takes a private one from [StartServer].
//
// A database made by [New] is a clone of a template to which the embedded schema has been applied once per schema text.
//
// Environment: QUEEN_TEST_DATABASE_URL names a server to use instead (its user needs CREATEDB; templates stay behind there),
// QUEEN_TEST_PG_BIN the directory of the PostgreSQL programs. Without either and without an installed PostgreSQL every test
// that asks for a database fails; none is skipped.
package testdb
