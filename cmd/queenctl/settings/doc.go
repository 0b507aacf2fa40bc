// Package settings knows which broker queenctl talks to and with what rights: named contexts in a file, overridden by the
// environment, overridden by flags.
//
// Tokens are never part of that file. A context names a file of the token's own, which nobody else may read, or an environment
// variable; when it cannot be read the command fails instead of going on without. A token does not travel in clear text to
// another machine unless the context says so.
package settings
