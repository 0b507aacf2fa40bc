// Package secret encrypts payloads at rest: AES-256-GCM, one random nonce for each payload, and the envelope of the wire
// contract, a JSON object of three base64 texts:
//
//	{"encrypted":"<ciphertext>","iv":"<16 bytes>","authTag":"<16 bytes>"}
//
// Only the first 12 bytes of iv are the nonce. The other four are not used by anybody's decryption; here they carry the id of the
// key, so that a ring of several keys knows which one to try first and an operator can tell how much still lies under an old
// one. Envelopes of other programs have random bytes there and are tried with every key.
//
// A [Ring] is safe for concurrent use.
package secret
