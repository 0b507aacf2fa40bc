package config

import (
	"fmt"
	"log/slog"
)

const masked = "***"

// A Secret is a text that prints as *** everywhere: in fmt verbs, logs and JSON. Reveal gives the text itself.
type Secret struct{ text string }

// NewSecret wraps text.
func NewSecret(text string) Secret { return Secret{text: text} }

// Reveal returns the secret itself. Call it where the secret is used, never where it is shown.
func (s Secret) Reveal() string { return s.text }

// IsSet tells whether the secret is not empty.
func (s Secret) IsSet() bool { return s.text != "" }

// String is *** for a set secret and empty for an unset one.
func (s Secret) String() string {
	if s.text == "" {
		return ""
	}
	return masked
}

// Format writes the masked text for every verb, so that %v, %+v and %#v of a surrounding struct cannot reveal it.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// LogValue masks the secret in structured logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText masks the secret in JSON and other text encodings.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
