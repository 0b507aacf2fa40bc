package testdb

import (
	"context"
	"errors"
	"fmt"
	"os"

	"queenmq/internal/localpg"
)

// programs returns the directory with the PostgreSQL programs that tests run.
func programs(ctx context.Context) (string, error) {
	if dir := os.Getenv("QUEEN_TEST_PG_BIN"); dir != "" {
		return dir, nil
	}
	dir, err := localpg.Programs(ctx)
	if errors.Is(err, localpg.ErrNoBinaries) {
		return "", fmt.Errorf("tests need PostgreSQL 15 or newer: install it (initdb and postgres), set QUEEN_TEST_PG_BIN to its bin directory, "+
			"or point QUEEN_TEST_DATABASE_URL at a server: %w", err)
	}
	return dir, err
}
