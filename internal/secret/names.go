package secret

import (
	"crypto/hmac"
	"crypto/sha256"

	"github.com/google/uuid"
)

// Names returns what a row is called whose own name would tell something, one name for each key of the ring, that of the active one first:
// a keyed hash of scope and name. Who has the key finds the row by its name; nobody else can tell names apart from noise, nor try them.
// A name says nothing about the envelope of its row but binds it: an envelope that holds name opens in the right row only.
func (r *Ring) Names(scope []byte, name string) []string {
	names := make([]string, len(r.all))
	for i, k := range r.all {
		names[i] = k.nameOf(scope, name)
	}
	return names
}

func (k key) nameOf(scope []byte, name string) string {
	mac := hmac.New(sha256.New, k.naming[:])
	var length [8]byte
	for i := range length {
		length[i] = byte(len(scope) >> (8 * i))
	}
	_, _ = mac.Write(length[:]) // a hash takes everything
	_, _ = mac.Write(scope)
	_, _ = mac.Write([]byte(name))
	return uuid.UUID(mac.Sum(nil)[:16]).String()
}
