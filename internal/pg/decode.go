package pg

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// decodeJSON reads the answer of a procedure. Keys that this build does not know are additions of a later one and harmless.
func decodeJSON(answer []byte, into any) error {
	if answer == nil {
		return fmt.Errorf("%w: NULL", ErrMalformedAnswer)
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformedAnswer, err)
	}
	return nil
}

// absentIsNil makes "no rows" a success, for reads that may find nothing.
func absentIsNil(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}
