package broker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// certificateAge is how long loaded certificates are used before their files are looked at again.
const certificateAge = time.Second

// A certificateSource gives the listener its certificate and takes up changed files without a restart. When changed files cannot be
// used the ones before stay in use and the log says so.
type certificateSource struct {
	certFile, keyFile, caFile string
	log                       *slog.Logger

	mu     sync.Mutex
	config *tls.Config
	looked time.Time
	state  string // of the files that config was made from, or that failed last
}

// newCertificateSource loads the files once: what is wrong at the start stops it, in one line that names the variable.
func (b *Broker) newCertificateSource() (*certificateSource, error) {
	s := &certificateSource{certFile: b.cfg.TLS.Cert, keyFile: b.cfg.TLS.Key, caFile: b.cfg.TLS.ClientCA, log: b.log}
	var err error
	s.state = s.fileState()
	s.looked = time.Now()
	s.config, err = s.load()
	return s, err
}

// tlsConfig is what the listener uses: it asks for the current configuration on every handshake.
func (s *certificateSource) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current(), nil },
		// Never asked, because of the above; the server wants to see a source of certificates.
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &s.current().Certificates[0], nil },
	}
}

func (s *certificateSource) current() *tls.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.looked) < certificateAge {
		return s.config
	}
	s.looked = time.Now()
	state := s.fileState()
	if state == s.state {
		return s.config
	}
	s.state = state
	config, err := s.load()
	if err != nil {
		s.log.LogAttrs(context.Background(), slog.LevelError, "changed certificate files cannot be used; the ones before stay in use", slog.Any("error", err))
		return s.config
	}
	s.config = config
	s.log.LogAttrs(context.Background(), slog.LevelInfo, "changed certificate files are in use")
	return config
}

// fileState changes when one of the files does.
func (s *certificateSource) fileState() string {
	state := ""
	for _, name := range []string{s.certFile, s.keyFile, s.caFile} {
		if info, err := os.Stat(name); err == nil {
			state += fmt.Sprintf("%d %d;", info.ModTime().UnixNano(), info.Size())
		} else {
			state += ";"
		}
	}
	return state
}

func (s *certificateSource) load() (*tls.Config, error) {
	certificate, err := tls.LoadX509KeyPair(s.certFile, s.keyFile)
	if err != nil {
		return nil, fmt.Errorf("QUEEN_TLS_CERT, QUEEN_TLS_KEY: %w", err)
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, Certificates: []tls.Certificate{certificate},
	}
	if s.caFile == "" {
		return config, nil
	}
	text, err := os.ReadFile(s.caFile)
	if err != nil {
		return nil, fmt.Errorf("QUEEN_TLS_CLIENT_CA: %w", err)
	}
	config.ClientCAs = x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(text) {
		return nil, errors.New("QUEEN_TLS_CLIENT_CA holds no certificate in PEM form")
	}
	config.ClientAuth = tls.RequireAndVerifyClientCert
	return config, nil
}
