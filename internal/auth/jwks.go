package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/MicahParks/jwkset"
)

const (
	// unknownKeyInterval is the least time between two fetches that unknown key ids ask for: anybody can invent ids.
	unknownKeyInterval = 5 * time.Second
	// maxKeySetBytes is the largest key set that is read.
	maxKeySetBytes = 1 << 20
)

// A verificationKey is one key of a set.
type verificationKey struct {
	id        string
	algorithm string // the only one it may be used with, "" for all of its kind
	key       any
}

// A keySet is the public keys of one URL, fetched now and then.
type keySet struct {
	url      string
	interval time.Duration
	timeout  time.Duration
	client   *http.Client
	log      *slog.Logger

	mu      sync.Mutex
	keys    []verificationKey // nil until the first fetch succeeded
	tried   time.Time
	running chan struct{} // closed when the fetch under way is over; nil without one
	reads   sync.WaitGroup
}

func newKeySet(url string, interval, timeout time.Duration, log *slog.Logger) *keySet {
	return &keySet{
		url: url, interval: interval, timeout: timeout, log: log,
		client: &http.Client{CheckRedirect: func(next *http.Request, before []*http.Request) error {
			if before[0].URL.Scheme == "https" && next.URL.Scheme != "https" {
				return errors.New("redirected from https to plain http")
			}
			if len(before) >= 5 {
				return errors.New("too many redirects")
			}
			return nil
		}},
	}
}

// run fetches at once, then at every interval; until the first success more often.
func (s *keySet) run(ctx context.Context) error {
	defer s.client.CloseIdleConnections()
	defer s.reads.Wait()                       // bounded by the timeout of a fetch
	for age := unknownKeyInterval; ; age = 0 { // a token may have come first
		s.fetch(ctx, age)
		wait := s.interval
		if !s.loaded() {
			wait = min(wait, unknownKeyInterval)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

func (s *keySet) loaded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys != nil
}

// find returns the key with an id, or, for a token that names none, the first key; the set is fetched again when it has none.
func (s *keySet) find(ctx context.Context, id string, named bool, algorithm string) (any, error) {
	key, err := s.look(id, named, algorithm)
	if err == nil || errors.Is(err, errAlgorithm) {
		return key, err
	}
	s.fetch(ctx, unknownKeyInterval)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return s.look(id, named, algorithm)
}

func (s *keySet) look(id string, named bool, algorithm string) (any, error) {
	s.mu.Lock()
	keys := s.keys
	s.mu.Unlock()
	if keys == nil {
		return nil, ErrKeysUnavailable
	}
	for _, k := range keys {
		if named && k.id != id {
			continue
		}
		if k.algorithm != "" && k.algorithm != algorithm || !fits(k.key, algorithm) {
			return nil, errAlgorithm
		}
		return k.key, nil
	}
	return nil, errKeyID
}

// fetch reads the set anew unless that was tried less than age ago. Callers that come while a fetch is under way wait for it.
// A failed fetch keeps the keys there are.
func (s *keySet) fetch(ctx context.Context, age time.Duration) {
	s.mu.Lock()
	running := s.running
	if running == nil && age > 0 && time.Since(s.tried) < age {
		s.mu.Unlock()
		return
	}
	if running == nil {
		running = make(chan struct{})
		s.running, s.tried = running, time.Now()
		// The fetch is for all who wait, so that it does not end with the one who came first. It is bounded by its timeout.
		s.reads.Go(func() { s.read(context.WithoutCancel(ctx), running) })
	}
	s.mu.Unlock()
	select {
	case <-running:
	case <-ctx.Done():
	}
}

func (s *keySet) read(ctx context.Context, running chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	keys, err := s.download(ctx)
	s.mu.Lock()
	if err == nil {
		s.keys = keys
	}
	s.running = nil
	s.mu.Unlock()
	close(running)
	if err != nil {
		s.log.WarnContext(ctx, "the key set for tokens could not be fetched (JWT_JWKS_URL)", slog.Any("error", err))
	}
}

func (s *keySet) download(ctx context.Context) ([]verificationKey, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	response, err := s.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server answered %s", response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxKeySetBytes+1))
	if err != nil {
		return nil, err
	}
	if len(body) > maxKeySetBytes {
		return nil, fmt.Errorf("the key set is larger than %d bytes", maxKeySetBytes)
	}
	return parseKeySet(body)
}

// parseKeySet keeps the public keys for signatures of a kind we know; secrets ("oct") and keys for encryption are left out, so
// that no key of a set can ever check an HS token.
func parseKeySet(body []byte) ([]verificationKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(body, &set); err != nil {
		return nil, fmt.Errorf("the answer is not a key set: %w", err)
	}
	keys := []verificationKey{}
	for _, raw := range set.Keys {
		one, err := jwkset.NewJWKFromRawJSON(raw, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{})
		if err != nil {
			continue // of a kind that others may use
		}
		marshalled := one.Marshal()
		if marshalled.USE != "" && marshalled.USE != jwkset.UseSig || publicKind(one.Key()) == "" {
			continue
		}
		keys = append(keys, verificationKey{id: marshalled.KID, algorithm: string(marshalled.ALG), key: one.Key()})
	}
	if len(keys) == 0 {
		return nil, errors.New("the key set holds no RSA, ECDSA or Ed25519 key for signatures")
	}
	return keys, nil
}
