package auth

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
)

// minRSABits is the least that RFC 7518 allows for RS algorithms.
const minRSABits = 2048

// kindNames are the kinds of public keys by the letters that begin their algorithms.
var kindNames = map[string]string{"RS": "RSA", "ES": "ECDSA", "Ed": "Ed25519"}

// parsePublicKey reads a PEM block: PUBLIC KEY, RSA PUBLIC KEY or CERTIFICATE. Environment files often write its line breaks as
// backslash and n.
func parsePublicKey(text string) (key any, kind string, err error) {
	if !strings.Contains(text, "\n") {
		text = strings.ReplaceAll(text, `\n`, "\n")
	}
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, "", errors.New("is not PEM (expected -----BEGIN PUBLIC KEY-----)")
	}
	switch block.Type {
	case "PUBLIC KEY":
		key, err = x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		key, err = x509.ParsePKCS1PublicKey(block.Bytes)
	case "CERTIFICATE":
		var certificate *x509.Certificate
		if certificate, err = x509.ParseCertificate(block.Bytes); err == nil {
			key = certificate.PublicKey
		}
	default:
		return nil, "", fmt.Errorf("holds a %s: expected a PUBLIC KEY", block.Type)
	}
	if err != nil {
		return nil, "", fmt.Errorf("cannot be read: %w", err)
	}
	if kind = publicKind(key); kind == "" {
		return nil, "", errors.New("holds a key that is neither RSA of at least 2048 bits, ECDSA nor Ed25519")
	}
	return key, kind, nil
}

// publicKind says for which kind of algorithms a public key is good, "" for none.
func publicKind(key any) string {
	switch key := key.(type) {
	case *rsa.PublicKey:
		if key.N.BitLen() >= minRSABits {
			return "RS"
		}
	case *ecdsa.PublicKey:
		return "ES"
	case ed25519.PublicKey:
		return "Ed"
	}
	return ""
}

// fits reports whether a public key is of the kind that an algorithm needs, curve included.
func fits(key any, algorithm string) bool {
	kind := kindOf(algorithm)
	if publicKind(key) != kind {
		return false
	}
	if curve, ok := key.(*ecdsa.PublicKey); ok {
		return curve.Curve.Params().BitSize == map[string]int{"ES256": 256, "ES384": 384, "ES512": 521}[algorithm]
	}
	return true
}
