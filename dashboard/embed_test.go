package dashboard_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"queenmq/dashboard"
)

func TestEveryPageIsTheSameFile(t *testing.T) {
	t.Parallel()
	index, found := dashboard.Find("/index.html")
	require.True(t, found)
	for _, page := range dashboard.Pages {
		require.Equal(t, 1, strings.Count(page, "/"), "links to files are relative: %s must have one segment", page)
		file, found := dashboard.Find(page)
		require.True(t, found, page)
		require.Same(t, index, file, page)
	}
	for _, none := range []string{"", "/nope", "/queues/", "/assets", "/assets/", "/dist/index.html", "/../embed.go", "/api"} {
		_, found := dashboard.Find(none)
		require.False(t, found, none)
	}
}

func TestFilesAreCompressedAndTagged(t *testing.T) {
	t.Parallel()
	index, _ := dashboard.Find("/")
	require.Equal(t, "text/html; charset=utf-8", index.Type)
	links := regexp.MustCompile(`(?:src|href)="([^"]+)"`).FindAllSubmatch(index.Body, -1)
	require.GreaterOrEqual(t, len(links), 2, "a script and a style")
	tags := map[string]bool{index.ETag: true}
	for _, link := range links {
		path := string(link[1])
		require.True(t, strings.HasPrefix(path, "./"), "%s must be relative", path)
		file, found := dashboard.Find(path[1:])
		require.True(t, found, path)
		require.Regexp(t, `^"[\w-]{22}"$`, file.ETag)
		require.False(t, tags[file.ETag], "two files share a tag")
		tags[file.ETag] = true
		if file.Compressed == nil {
			continue
		}
		r, err := gzip.NewReader(bytes.NewReader(file.Compressed))
		require.NoError(t, err)
		plain, err := io.ReadAll(r)
		require.NoError(t, err)
		require.Equal(t, file.Body, plain, path)
	}
}

func TestThePageHasNothingInline(t *testing.T) {
	t.Parallel()
	index, _ := dashboard.Find("/")
	require.NotRegexp(t, `(?i)<script(?:\s[^>]*)?>[^<]`, string(index.Body))
	require.NotRegexp(t, `(?i)<style|\sstyle=|\son\w+=|https?://`, string(index.Body))
	require.NotContains(t, dashboard.ContentSecurityPolicy, "unsafe")
}
