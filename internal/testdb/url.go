package testdb

import (
	"errors"
	"net/url"
)

// withDatabase returns a connection URL with another database.
func withDatabase(connString, database string) (string, error) {
	parsed, err := url.Parse(connString)
	if err != nil || parsed.Scheme != "postgres" && parsed.Scheme != "postgresql" {
		return "", errors.New("QUEEN_TEST_DATABASE_URL must be a URL: postgres://user:password@host:port/database")
	}
	parsed.Path = "/" + database
	return parsed.String(), nil
}
