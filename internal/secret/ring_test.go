package secret_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"queenmq/internal/secret"
)

// The vector of the stored format.
const (
	vectorKey      = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	vectorEnvelope = `{"encrypted":"PCC4Of/Uvw==","iv":"AAECAwQFBgcICQoLDA0ODw==","authTag":"nC7+pk5gtDf6uERqsDtuOw=="}`
	otherKey       = "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100"
)

func ring(t testing.TB, active, old string) *secret.Ring {
	t.Helper()
	r, err := secret.NewRing(active, old)
	require.NoError(t, err)
	return r
}

func TestStoredFormat(t *testing.T) {
	t.Parallel()
	payload, err := ring(t, vectorKey, "").Open([]byte(vectorEnvelope))
	require.NoError(t, err)
	require.Equal(t, `{"n":1}`, string(payload))
	require.Equal(t, vectorEnvelope, string(secret.SealVector(ring(t, vectorKey, ""), payload)))

	reordered := `{ "iv": "AAECAwQFBgcICQoLDA0ODw==", "authTag": "nC7+pk5gtDf6uERqsDtuOw==", "encrypted": "PCC4Of/Uvw==" }`
	payload, err = ring(t, vectorKey, "").Open([]byte(reordered))
	require.NoError(t, err, "PostgreSQL's jsonb reorders members")
	require.Equal(t, `{"n":1}`, string(payload))
}

func TestSealedPayloadsComeBack(t *testing.T) {
	t.Parallel()
	r := ring(t, vectorKey, "")
	rapid.Check(t, func(t *rapid.T) {
		payload := rapid.SliceOfN(rapid.Byte(), 1, 200).Draw(t, "payload")
		kept := bytes.Clone(payload)
		sealed := r.Seal(payload)
		require.Equal(t, kept, payload, "the caller's bytes are left alone")
		require.True(t, secret.LooksSealed(sealed))
		require.True(t, json.Valid(sealed))
		opened, err := r.Open(sealed)
		require.NoError(t, err)
		require.Equal(t, payload, opened)
	})
	empty, err := r.Open(r.Seal(nil))
	require.NoError(t, err)
	require.Equal(t, "null", string(empty))
}

func TestNoncesAreFresh(t *testing.T) {
	t.Parallel()
	r := ring(t, vectorKey, "")
	seen := map[string]bool{}
	for range 2000 {
		var e struct {
			IV []byte `json:"iv"`
		}
		require.NoError(t, json.Unmarshal(r.Seal([]byte(`1`)), &e))
		require.Len(t, e.IV, 16)
		require.False(t, seen[string(e.IV[:12])])
		seen[string(e.IV[:12])] = true
	}
}

func TestKeyRing(t *testing.T) {
	t.Parallel()
	before, after := ring(t, vectorKey, ""), ring(t, otherKey, " "+vectorKey+" ")
	require.NotEqual(t, before.ActiveID(), after.ActiveID())
	payload, err := after.Open(before.Seal([]byte(`"old"`)))
	require.NoError(t, err, "an old key still decrypts")
	require.Equal(t, `"old"`, string(payload))
	_, err = before.Open(after.Seal([]byte(`"new"`)))
	require.ErrorIs(t, err, secret.ErrUndecryptable, "the active key encrypts")
	payload, err = after.Open([]byte(vectorEnvelope))
	require.NoError(t, err, "envelopes that name no key are tried with all")
	require.Equal(t, `{"n":1}`, string(payload))
}

// Nothing that differs from what was sealed in a single bit is opened.
func TestChangedEnvelopesAreNotOpened(t *testing.T) {
	t.Parallel()
	r := ring(t, vectorKey, "")
	var e map[string]string
	require.NoError(t, json.Unmarshal([]byte(vectorEnvelope), &e))
	for _, member := range []string{"encrypted", "iv", "authTag"} {
		raw, err := base64.StdEncoding.DecodeString(e[member])
		require.NoError(t, err)
		for bit := range 8 * len(raw) {
			if member == "iv" && bit >= 8*12 {
				continue // not part of the nonce: says only which key to try first
			}
			changed := bytes.Clone(raw)
			changed[bit/8] ^= 1 << (bit % 8)
			_, err := r.Open([]byte(strings.Replace(vectorEnvelope, e[member], base64.StdEncoding.EncodeToString(changed), 1)))
			require.ErrorIs(t, err, secret.ErrUndecryptable, "%s bit %d", member, bit)
		}
		for length := range len(raw) {
			_, err := r.Open([]byte(strings.Replace(vectorEnvelope, e[member], base64.StdEncoding.EncodeToString(raw[:length]), 1)))
			require.ErrorIs(t, err, secret.ErrUndecryptable, "%s cut to %d bytes", member, length)
		}
	}
	_, err := ring(t, otherKey, "").Open([]byte(vectorEnvelope))
	require.ErrorIs(t, err, secret.ErrUndecryptable)
}

func TestReaderOpensOnlyWhatIsMarked(t *testing.T) {
	t.Parallel()
	reader := secret.Reader{Ring: ring(t, vectorKey, "")}
	for name, row := range map[string]struct {
		payload string
		flagged bool
		want    string
		err     error
	}{
		"Marked":                 {vectorEnvelope, true, `{"n":1}`, nil},
		"MarkedButForeign":       {strings.Replace(vectorEnvelope, "PCC4", "QCC4", 1), true, strings.Replace(vectorEnvelope, "PCC4", "QCC4", 1), secret.ErrUndecryptable},
		"Plain":                  {`{"n":1}`, false, `{"n":1}`, nil},
		"LooksSealed":            {vectorEnvelope, false, `{"n":1}`, nil},
		"LooksSealedButIsNot":    {strings.Replace(vectorEnvelope, "PCC4", "QCC4", 1), false, strings.Replace(vectorEnvelope, "PCC4", "QCC4", 1), nil},
		"EnvelopeWithMoreInside": {strings.Replace(vectorEnvelope, "{", `{"n":1,`, 1), false, strings.Replace(vectorEnvelope, "{", `{"n":1,`, 1), nil},
	} {
		got, err := reader.Open([]byte(row.payload), row.flagged)
		require.ErrorIs(t, err, row.err, name)
		require.Equal(t, row.want, string(got), name)
	}
}

func TestUnusableKeysAreRefusedAndNotRepeated(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ active, old, want string }{
		{vectorKey[:62], "", "QUEEN_ENCRYPTION_KEY must be exactly 64 hexadecimal digits"},
		{vectorKey + "00", "", "QUEEN_ENCRYPTION_KEY must be"},
		{"zz" + vectorKey[2:], "", "QUEEN_ENCRYPTION_KEY must be"},
		{vectorKey, otherKey + ",", "QUEEN_ENCRYPTION_KEYS_OLD: key 2"},
		{vectorKey, "abc", "QUEEN_ENCRYPTION_KEYS_OLD: key 1"},
		{"", otherKey, "QUEEN_ENCRYPTION_KEYS_OLD is set without QUEEN_ENCRYPTION_KEY"},
	} {
		r, err := secret.NewRing(row.active, row.old)
		require.ErrorContains(t, err, row.want)
		require.Nil(t, r)
		require.NotContains(t, err.Error(), "0405060708")
		require.NotContains(t, err.Error(), "bbaa99")
	}
	r, err := secret.NewRing(" ", "")
	require.NoError(t, err)
	require.Nil(t, r)
}

func FuzzOpen(f *testing.F) {
	f.Add([]byte(vectorEnvelope))
	f.Add([]byte(`{"encrypted":"","iv":"","authTag":""}`))
	f.Add([]byte(`{"encrypted":null}`))
	r := ring(f, vectorKey, "")
	f.Fuzz(func(t *testing.T, text []byte) {
		payload, err := r.Open(text)
		if err != nil && payload != nil {
			t.Fatal("a refused envelope gave a payload")
		}
		if err == nil && string(payload) != `{"n":1}` {
			t.Fatalf("forged: %s", text)
		}
	})
}

func TestNamesTellNothingAndAreFoundAgain(t *testing.T) {
	t.Parallel()
	before, after := ring(t, vectorKey, ""), ring(t, otherKey, vectorKey)
	scope := []byte("query and partition")
	name := before.Names(scope, "alice@example.org")
	require.Len(t, name, 1)
	require.Regexp(t, `^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`, name[0])
	require.Equal(t, name, ring(t, vectorKey, "").Names(scope, "alice@example.org"), "names stay")
	both := after.Names(scope, "alice@example.org")
	require.Equal(t, name[0], both[1], "what an old key named is found")
	require.NotEqual(t, both[0], both[1])
	for _, other := range [][]string{before.Names(scope, "bob@example.org"), before.Names([]byte("another query"), "alice@example.org"), before.Names([]byte("query and partitionalice"), "@example.org")} {
		require.NotEqual(t, name, other)
	}
}
