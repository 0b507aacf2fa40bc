package secret

// A Reader opens the payloads of stored messages. It is safe for concurrent use.
type Reader struct{ Ring *Ring }

// Open returns the payload of a stored message. flagged says that the message is marked as encrypted; without the mark a payload of
// the shape of an envelope is tried and everything else is returned as it is. ErrUndecryptable comes with the payload as stored,
// and only for marked messages: what merely looks like an envelope may be somebody's own.
func (r Reader) Open(payload []byte, flagged bool) ([]byte, error) {
	if !flagged && !LooksSealed(payload) {
		return payload, nil
	}
	plain, err := r.Ring.Open(payload)
	switch {
	case err == nil:
		return plain, nil
	case flagged:
		return payload, err
	}
	return payload, nil
}
