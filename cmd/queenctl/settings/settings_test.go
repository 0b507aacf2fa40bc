package settings

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func lookup(pairs map[string]string) func(string) string {
	return func(name string) string { return pairs[name] }
}

func TestFlagsWinOverEnvironmentOverContext(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte(" from-file \n"), 0o600))
	file := File{Current: "c", Contexts: map[string]Context{
		"c": {Server: "https://context", Tenant: "context-tenant", TokenEnv: "TOKEN"}, "d": {Server: "https://other", TokenFile: token},
	}}
	target, err := Resolve(file, Flags{}, lookup(map[string]string{"TOKEN": "from-context"}))
	require.NoError(t, err)
	require.Equal(t, Target{Name: "c", Servers: []string{"https://context"}, Tenant: "context-tenant", Token: "from-context", TokenSource: "environment TOKEN"}, target)
	target, err = Resolve(file, Flags{}, lookup(map[string]string{"QUEEN_CONTEXT": "d"}))
	require.NoError(t, err)
	require.Equal(t, []string{"https://other", "from-file"}, []string{target.Servers[0], target.Token})
	target, err = Resolve(file, Flags{Server: "a.example,https://b:1/"}, lookup(map[string]string{"TOKEN": "", "QUEEN_SERVER": "http://env", "QUEEN_TENANT": "env-tenant", "QUEEN_TOKEN": "t"}))
	require.ErrorIs(t, err, ErrToken, "a.example would get the token in clear text")
	require.ErrorContains(t, err, "http://a.example:6632")
	require.NotContains(t, err.Error(), " t ")
	target, err = Resolve(file, Flags{Server: "localhost,https://b:1/", PlainHTTP: false}, lookup(map[string]string{"QUEEN_TENANT": "env-tenant", "QUEEN_TOKEN": "t"}))
	require.NoError(t, err)
	require.Equal(t, []string{"http://localhost:6632", "https://b:1"}, target.Servers)
	require.Equal(t, []string{"env-tenant", "t"}, []string{target.Tenant, target.Token})
	target, err = Resolve(File{}, Flags{}, lookup(nil))
	require.NoError(t, err)
	require.Equal(t, Target{Servers: []string{DefaultServer}}, target)
}

// What is not this machine, or not encrypted, does not get a token by accident.
func TestTokensDoNotTravelInClearText(t *testing.T) {
	t.Parallel()
	env := lookup(map[string]string{"QUEEN_TOKEN": "t"})
	for server, fine := range map[string]bool{
		"http://localhost:1": true, "http://127.0.0.1": true, "http://[::1]:1": true, "https://example.com": true,
		"http://example.com": false, "http://10.0.0.1": false, "http://localhost.example.com": false, "http://127.0.0.1.example.com": false, "http://[::ffff:10.0.0.1]": false,
	} {
		_, err := Resolve(File{}, Flags{Server: server}, env)
		require.Equal(t, fine, err == nil, "%s: %v", server, err)
		_, err = Resolve(File{}, Flags{Server: server, PlainHTTP: true}, env)
		require.NoError(t, err, server)
	}
	for _, server := range []string{"ftp://a", "http://", "http://u:p@h", "http://h?x=1", "http://h#f", "http://h:port"} {
		_, err := Resolve(File{}, Flags{Server: server}, lookup(nil))
		require.Error(t, err, server)
		require.NotContains(t, err.Error(), ":p@")
	}
}

func TestTokenFilesAreForTheirOwner(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	for _, row := range []struct {
		text string
		mode os.FileMode
		want string
	}{{"t", 0o640, "others may read"}, {"t", 0o602, "others may read"}, {"", 0o600, "one line"}, {"a\nb", 0o600, "one line"}} {
		require.NoError(t, os.WriteFile(path, []byte(row.text), 0o600))
		require.NoError(t, os.Chmod(path, row.mode))
		_, err := ReadToken(path)
		require.ErrorIs(t, err, ErrToken)
		require.ErrorContains(t, err, row.want)
		require.NoError(t, os.Remove(path))
	}
	_, err := ReadToken(path)
	require.ErrorIs(t, err, ErrToken)
	_, err = Resolve(File{Current: "c", Contexts: map[string]Context{"c": {Server: "http://localhost", TokenFile: path}}}, Flags{}, lookup(nil))
	require.ErrorIs(t, err, ErrToken, "a token that is configured and missing is no request without one")
}

func TestFileIsReplacedInOneStepAndStrict(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "deep", "config.yaml")
	empty, err := Load(path)
	require.NoError(t, err)
	require.Empty(t, empty.Names())
	file := File{Current: "a", Contexts: map[string]Context{"b": {Server: "http://b"}, "a": {Server: "http://a", Tenant: "t", PlainHTTP: true}}}
	require.NoError(t, file.Save(path))
	back, err := Load(path)
	require.NoError(t, err)
	require.Equal(t, file, back)
	require.Equal(t, []string{"a", "b"}, back.Names())
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	for text, want := range map[string]string{
		"contexts: {a: {server: x, token: s}}": "tokens do not belong here", "current: none": `"none" is not among its contexts`, "servers: []": "servers", "[": "yaml",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := Load(path)
		require.ErrorContains(t, err, want)
	}
}

func TestPath(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"QUEENCTL_CONFIG": "/x", "HOME": "/h"}, "/x"},
		{map[string]string{"XDG_CONFIG_HOME": "/c", "HOME": "/h"}, "/c/queenctl/config.yaml"},
		{map[string]string{"HOME": "/h"}, "/h/.config/queenctl/config.yaml"},
	} {
		path, err := Path(lookup(row.env))
		require.NoError(t, err)
		require.Equal(t, row.want, path)
	}
	_, err := Path(lookup(nil))
	require.Error(t, err)
}
