package testdb

import (
	"errors"
	"fmt"
	"net/url"
)

// withDatabase returns a connection URL with another database.
func withDatabase(connString, database string) (string, error) {
	parsed, err := url.Parse(connString)
	if err != nil || parsed.Scheme != "postgres" && parsed.Scheme != "postgresql" {
		return "", fmt.Errorf("QUEEN_TEST_DATABASE_URL must be a postgres:// URL: %w", errors.Join(err))
	}
	parsed.Path = "/" + database
	return parsed.String(), nil
}
