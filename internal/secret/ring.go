package secret

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

const (
	keyBytes   = 32
	ivBytes    = 16
	nonceBytes = 12
	tagBytes   = 16
)

// ErrUndecryptable says that no key of the ring opens an envelope: it was made with another key, or it was changed.
var ErrUndecryptable = errors.New("the payload cannot be decrypted with any configured key")

// A KeyID tells keys apart without telling anything about them.
type KeyID [ivBytes - nonceBytes]byte

// String returns the id as 8 hexadecimal digits.
func (id KeyID) String() string { return hex.EncodeToString(id[:]) }

// An UndecryptableError says why a payload cannot be opened; it is an [ErrUndecryptable].
type UndecryptableError struct {
	// Envelope is false for a payload that is no envelope at all.
	Envelope bool
	// Key is what the envelope says about its key; envelopes of other programs say anything.
	Key KeyID
	// Known says that the ring has that key: then the bytes were changed after they were encrypted.
	Known bool
}

// Error tells people what to look for.
func (e *UndecryptableError) Error() string {
	switch {
	case !e.Envelope:
		return "the payload is marked as encrypted and is no envelope"
	case e.Known:
		return "the payload was changed after it was encrypted with key " + e.Key.String()
	default:
		return ErrUndecryptable.Error() + "; it names key " + e.Key.String()
	}
}

// Is makes it an ErrUndecryptable.
func (e *UndecryptableError) Is(target error) bool { return target == ErrUndecryptable }

type key struct {
	id   KeyID
	aead cipher.AEAD
	// naming is a key of its own, derived from this one, see [Ring.Names].
	naming [sha256.Size]byte
}

// A Ring is the key that encrypts and the older ones that still decrypt.
type Ring struct {
	active key
	all    []key // the active one first
}

// NewRing reads keys as 64 hexadecimal digits each: active encrypts, old (separated by commas) only decrypt. An empty active
// key without old ones is no ring, nil without an error. Errors name the variable and never the key.
func NewRing(active, old string) (*Ring, error) {
	active, old = strings.TrimSpace(active), strings.TrimSpace(old)
	if active == "" {
		if old != "" {
			return nil, errors.New("QUEEN_ENCRYPTION_KEYS_OLD is set without QUEEN_ENCRYPTION_KEY: set the key that encrypts from now on")
		}
		return nil, nil
	}
	first, err := parseKey(active)
	if err != nil {
		return nil, fmt.Errorf("QUEEN_ENCRYPTION_KEY %w", err)
	}
	ring := &Ring{active: first, all: []key{first}}
	if old == "" {
		return ring, nil
	}
	for i, text := range strings.Split(old, ",") {
		k, err := parseKey(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("QUEEN_ENCRYPTION_KEYS_OLD: key %d %w", i+1, err)
		}
		ring.all = append(ring.all, k)
	}
	return ring, nil
}

func parseKey(text string) (key, error) {
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != keyBytes {
		return key{}, fmt.Errorf("must be exactly %d hexadecimal digits (openssl rand -hex 32), it has %d characters", 2*keyBytes, len(text))
	}
	block, err := aes.NewCipher(raw)
	if err != nil {
		return key{}, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return key{}, err
	}
	sum := sha256.Sum256(append([]byte("queen key id\x00"), raw...))
	return key{id: KeyID(sum[:len(KeyID{})]), aead: aead, naming: sha256.Sum256(append([]byte("queen naming key\x00"), raw...))}, nil
}

// ActiveID is the id of the key that encrypts.
func (r *Ring) ActiveID() KeyID { return r.active.id }

// Seal returns the envelope of a payload, with a nonce of its own. An empty payload is sealed as null, which is how it is
// rendered. The payload is not kept.
func (r *Ring) Seal(payload []byte) []byte {
	var iv [ivBytes]byte
	_, _ = rand.Read(iv[:nonceBytes]) // it never fails: without randomness the program ends
	copy(iv[nonceBytes:], r.active.id[:])
	return r.active.seal(iv, payload)
}

func (k key) seal(iv [ivBytes]byte, payload []byte) []byte {
	if len(payload) == 0 {
		payload = []byte("null")
	}
	sealed := k.aead.Seal(make([]byte, 0, len(payload)+tagBytes), iv[:nonceBytes], payload, nil)
	ciphertext, tag := sealed[:len(payload)], sealed[len(payload):]
	const names = `{"encrypted":"","iv":"","authTag":""}`
	base := base64.StdEncoding
	out := make([]byte, 0, len(names)+base.EncodedLen(len(ciphertext))+base.EncodedLen(ivBytes)+base.EncodedLen(tagBytes))
	out = append(out, `{"encrypted":"`...)
	out = base.AppendEncode(out, ciphertext)
	out = append(out, `","iv":"`...)
	out = base.AppendEncode(out, iv[:])
	out = append(out, `","authTag":"`...)
	out = base.AppendEncode(out, tag)
	return append(out, `"}`...)
}

// envelope is the JSON form. Pointers tell absent members from empty ones.
type envelope struct {
	Encrypted *string `json:"encrypted"`
	IV        *string `json:"iv"`
	AuthTag   *string `json:"authTag"`
}

func parseEnvelope(text []byte) (iv [ivBytes]byte, sealed []byte, ok bool) {
	var e envelope
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if decoder.Decode(&e) != nil || decoder.More() || e.Encrypted == nil || e.IV == nil || e.AuthTag == nil {
		return iv, nil, false
	}
	base := base64.StdEncoding.Strict()
	rawIV, errIV := base.DecodeString(*e.IV)
	tag, errTag := base.DecodeString(*e.AuthTag)
	sealed, err := base.DecodeString(*e.Encrypted)
	// A shorter tag would be easier to forge.
	if err != nil || errIV != nil || errTag != nil || len(rawIV) != ivBytes || len(tag) != tagBytes {
		return iv, nil, false
	}
	return [ivBytes]byte(rawIV), append(sealed, tag...), true
}

// IDs are the ids of all keys of the ring, the active one first.
func (r *Ring) IDs() []string {
	ids := make([]string, len(r.all))
	for i, k := range r.all {
		ids[i] = k.id.String()
	}
	return ids
}

// Open returns the payload of an envelope, or an [*UndecryptableError].
func (r *Ring) Open(text []byte) ([]byte, error) {
	payload, _, err := r.OpenWith(text)
	return payload, err
}

// OpenWith is Open that also tells which key opened the envelope.
func (r *Ring) OpenWith(text []byte) ([]byte, KeyID, error) {
	iv, sealed, ok := parseEnvelope(text)
	if !ok {
		return nil, KeyID{}, &UndecryptableError{}
	}
	id, known := KeyID(iv[nonceBytes:]), false
	for _, named := range [...]bool{true, false} {
		for _, k := range r.all {
			if (k.id == id) != named {
				continue
			}
			known = known || named
			if payload, err := k.aead.Open(nil, iv[:nonceBytes], sealed, nil); err == nil {
				return payload, k.id, nil
			}
		}
	}
	return nil, KeyID{}, &UndecryptableError{Envelope: true, Key: id, Known: known}
}

// LooksSealed reports whether a payload has the shape of an envelope. Anybody can write one: only a frame's flag says that it is.
func LooksSealed(payload []byte) bool {
	if len(payload) == 0 || payload[0] != '{' || !bytes.Contains(payload, []byte(`"authTag"`)) {
		return false
	}
	_, _, ok := parseEnvelope(payload)
	return ok
}
