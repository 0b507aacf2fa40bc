package tenant

import (
	"strings"
	"testing"

	"github.com/google/uuid"
)

// FuzzOf: a header is one canonical UUID, blank, or refused.
func FuzzOf(f *testing.F) {
	for _, value := range []string{"", " ", "0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731", "{0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731}", "urn:uuid:0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731", "0199b0c47be27c04a1d95e2c8f0b6731"} {
		f.Add(value)
	}
	fallback := uuid.MustParse("00000000-0000-0000-0000-000000000001")
	f.Fuzz(func(t *testing.T, value string) {
		id, err := Of([]string{value}, fallback)
		text := strings.TrimSpace(value)
		switch {
		case err != nil && id != uuid.Nil, err == nil && text == "" && id != fallback, err == nil && text != "" && !strings.EqualFold(id.String(), text):
			t.Fatalf("%q became %s, %v", value, id, err)
		}
	})
}
