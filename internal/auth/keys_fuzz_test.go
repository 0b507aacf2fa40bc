package auth

import (
	"strings"
	"testing"
)

// FuzzParseKeySet: whatever an issuer publishes, only keys come out that can check asymmetric signatures.
func FuzzParseKeySet(f *testing.F) {
	f.Add([]byte(`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`))
	f.Add([]byte(`{"keys":[{"kty":"oct","k":"c2VjcmV0"},{"kty":"RSA","n":"AQAB","e":"AQAB"}]}`))
	f.Add([]byte(`{"keys":[{"kty":"EC","crv":"P-256","x":"AA","y":"AA","use":"enc"}]}`))
	f.Add([]byte(`{"keys":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		keys, err := parseKeySet(body)
		if (err == nil) != (len(keys) > 0) {
			t.Fatalf("%d keys, %v", len(keys), err)
		}
		for _, key := range keys {
			if publicKind(key.key) == "" {
				t.Fatalf("a %T came out of a key set", key.key)
			}
		}
	})
}

// FuzzParsePublicKey: a text is refused with a reason, or is a public key of a kind with a name.
func FuzzParsePublicKey(f *testing.F) {
	f.Add("-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n-----END PUBLIC KEY-----\n")
	f.Add(`-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n-----END PUBLIC KEY-----`)
	f.Add("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----")
	f.Add("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----")
	f.Fuzz(func(t *testing.T, text string) {
		key, kind, err := parsePublicKey(text)
		if err == nil && (key == nil || kindNames[kind] == "") || err != nil && strings.ContainsRune(err.Error(), '\n') {
			t.Fatalf("%T of kind %q, %v", key, kind, err)
		}
	})
}
