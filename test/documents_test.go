package test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	linkTarget = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading    = regexp.MustCompile(`(?m)^#+ (.+)$`)
	// Names in backticks that look like files or packages of this project.
	sourcePath = regexp.MustCompile("`((?:bench|broker|cmd|docs|examples|internal|sql|test|tools)/[A-Za-z0-9_./-]+)`")
)

// What the documents lead to exists: files, headings, sources.
func TestDocumentsLeadSomewhere(t *testing.T) {
	t.Parallel()
	var documents []string
	for _, pattern := range []string{"../*.md", "../*/*.md", "../*/*/*.md"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		documents = append(documents, found...)
	}
	require.Greater(t, len(documents), 8)
	links := 0
	for _, document := range documents {
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		for _, match := range linkTarget.FindAllSubmatch(text, -1) {
			links++
			file, anchor, _ := strings.Cut(string(match[1]), "#")
			target := document
			if file != "" {
				target = filepath.Join(filepath.Dir(document), file)
			}
			requirePath(t, target, document)
			if anchor != "" {
				require.Contains(t, anchors(t, target), anchor, "%s links to a heading of %s", document, target)
			}
		}
		for _, match := range sourcePath.FindAllSubmatch(text, -1) {
			if name := string(match[1]); !strings.Contains(name, "NNN") {
				requirePath(t, filepath.Join("..", name), document)
			}
		}
	}
	require.Greater(t, links, 8)
}

// A reader finds every page of docs from the README by following links, and every picture on one of these pages.
func TestDocumentsAreReachable(t *testing.T) {
	t.Parallel()
	reached := map[string]bool{}
	for next := []string{"../README.md"}; len(next) > 0; {
		document := next[0]
		next = next[1:]
		if reached[document] {
			continue
		}
		reached[document] = true
		if filepath.Ext(document) != ".md" {
			continue
		}
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		for _, match := range linkTarget.FindAllSubmatch(text, -1) {
			if file, _, _ := strings.Cut(string(match[1]), "#"); file != "" {
				next = append(next, filepath.Join(filepath.Dir(document), file))
			}
		}
	}
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../docs/screenshots/*.png", "../bench/*.md", "../bench/*/*.md", "../queen/*.md"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		for _, document := range found {
			if !reached[document] {
				t.Errorf("no link leads from the README to %s", document)
			}
		}
	}
}

// anchors are the names by which the headings of a document can be linked to.
func anchors(t *testing.T, document string) []string {
	t.Helper()
	text, err := os.ReadFile(document)
	require.NoError(t, err)
	var names []string
	for _, match := range heading.FindAllSubmatch(text, -1) {
		kept := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(string(match[1])), "")
		names = append(names, strings.ReplaceAll(kept, " ", "-"))
	}
	return names
}

func requirePath(t *testing.T, path, document string) {
	t.Helper()
	_, err := os.Stat(path)
	require.NoError(t, err, "%s names it", document)
}
