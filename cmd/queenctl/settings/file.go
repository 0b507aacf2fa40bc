package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A Context is one way to a broker.
type Context struct {
	// Server is the address of a broker, or several separated by commas.
	Server string `yaml:"server"`
	// Tenant goes into the header x-queen-tenant; empty sends none.
	Tenant string `yaml:"tenant,omitempty"`
	// TokenFile and TokenEnv say where the token is; at most one of them is set.
	TokenFile string `yaml:"token-file,omitempty"`
	TokenEnv  string `yaml:"token-env,omitempty"`
	// PlainHTTP allows sending a token over http:// to another machine.
	PlainHTTP bool `yaml:"allow-plain-http,omitempty"`
	// CAFile replaces the authorities of the system; CertFile and KeyFile are the client's certificate.
	CAFile   string `yaml:"ca-file,omitempty"`
	CertFile string `yaml:"cert-file,omitempty"`
	KeyFile  string `yaml:"key-file,omitempty"`
}

// A File is the file of contexts.
type File struct {
	Current  string             `yaml:"current,omitempty"`
	Contexts map[string]Context `yaml:"contexts,omitempty"`
}

// Path returns where the file is: QUEENCTL_CONFIG, or queenctl/config.yaml below XDG_CONFIG_HOME or ~/.config.
func Path(lookup func(string) string) (string, error) {
	if path := lookup("QUEENCTL_CONFIG"); path != "" {
		return path, nil
	}
	if dir := lookup("XDG_CONFIG_HOME"); dir != "" {
		return filepath.Join(dir, "queenctl", "config.yaml"), nil
	}
	home := lookup("HOME")
	if home == "" {
		return "", errors.New("neither QUEENCTL_CONFIG, XDG_CONFIG_HOME nor HOME is set: there is no place for contexts")
	}
	return filepath.Join(home, ".config", "queenctl", "config.yaml"), nil
}

// Load reads the file; a missing one is empty. Unknown keys are refused: a token written into it would be used by nobody and
// read by everybody.
func Load(path string) (File, error) {
	var file File
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return file, nil
	}
	if err != nil {
		return file, err
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		hint := ""
		if strings.Contains(err.Error(), "field token ") {
			hint = " (tokens do not belong here: use token-file or token-env)"
		}
		return file, fmt.Errorf("%s: %w%s", path, err, hint)
	}
	if file.Current != "" {
		if _, ok := file.Contexts[file.Current]; !ok {
			return file, fmt.Errorf("%s: the current context %q is not among its contexts", path, file.Current)
		}
	}
	return file, nil
}

// Save replaces the file in one step.
func (f *File) Save(path string) error {
	text, err := yaml.Marshal(f)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), ".config-*")
	if err != nil {
		return err
	}
	_, err = temporary.Write(text)
	if err = errors.Join(err, temporary.Chmod(0o600), temporary.Close()); err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		_ = os.Remove(temporary.Name())
	}
	return err
}

// Names are the names of the contexts, sorted.
func (f *File) Names() []string {
	var names []string
	for name := range f.Contexts {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
