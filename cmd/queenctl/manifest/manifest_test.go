package manifest

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

func TestWrittenDocumentsReadTheSame(t *testing.T) {
	t.Parallel()
	document := Document{Queues: []Queue{
		{Name: "123", Namespace: "yes", Options: map[string]json.RawMessage{"leaseTime": []byte("60"), "deadLetterQueue": []byte("false")}},
		{Name: "a: b # c", Task: "null", Options: map[string]json.RawMessage{}},
		{Name: "é\u202e\"'\n", Options: map[string]json.RawMessage{}},
	}}
	text, err := Write(document)
	require.NoError(t, err)
	back, err := Read(text)
	require.NoError(t, err, "%s", text)
	require.Empty(t, cmp.Diff(document, back))
	text, err = Write(Document{})
	require.NoError(t, err)
	require.Equal(t, "version: 1\nqueues: []\n", string(text))
}

func TestFaultsAreRefusedWithTheirLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                               "the document is empty",
		"[]":                             "line 1: the document must be a mapping",
		"queues: []":                     "version is missing",
		"version: 1\nqueues: {}":         "line 2: queues must be a list",
		"version: 1\nversion: 1":         `line 2: "version" stands twice`,
		"version: 1\nqueues: [1]":        "line 2: a queue must be a mapping",
		"version: 1\nqueues: [{name: }]": "name must be a text",
		"version: 1\nqueues: [{name: q, options: [1]}]":                                    "options must be a mapping",
		"version: 1\nqueues: [{name: q, options: {leasetime: 1}}]":                         "did you mean leaseTime?",
		"version: 1\nqueues: [{name: q, options: {something: 1}}]":                         `unknown option "something"`,
		"version: 1\nqueues: [{name: q, options: {leaseTime: 1.5}}]":                       "whole number",
		"version: 1\nqueues: [{name: q, options: {leaseTime: \"60\"}}]":                    "whole number",
		"version: 1\nqueues: [{name: q, options: {leaseTime: 0x10}}]":                      "whole number",
		"version: 1\nqueues: [{name: q, options: {leaseTime: 99999999999999999999}}]":      "whole number",
		"version: 1\nqueues: [{name: q, options: {deadLetterQueue: 1}}]":                   "true or false",
		"version: 1\nqueues: [{name: q, options: {deadLetterQueue: yes}}]":                 "true or false",
		"version: 1\nqueues: [{name: q}]\n---\nversion: 1\nqueues: [{name: q}]":            "stands in line 2 already",
		"version: 1\nqueues: [{name: q, options: {leaseTime: {a: 1}}}]":                    "whole number",
		"version: 1\nqueues:\n- name: q\n  bad: [":                                         "yaml",
		"version: 1\nqueues: [{name: q, options: {leaseTime: 1, leaseTime: 2}}]":           "stands twice",
		"version: 1\nextra: &a [1]\nqueues: []":                                            `unknown key "extra"`,
		"version: 1\nqueues: [{name: q, options: {leaseTime: }}]":                          "whole number",
		"version: 1\nqueues: [{name: q, namespace: {}}]":                                   "namespace must be a text",
		"version: 1\nqueues: [{name: q, lease: 1, options: {leaseTime: many, ttl: soon}}]": "leaseTime must be a whole number, not \"many\"\nline 2: ttl",
	} {
		_, err := Read([]byte(text))
		require.ErrorContains(t, err, want, text)
	}
}

func TestCompareListsEveryDifference(t *testing.T) {
	t.Parallel()
	declared := Document{Queues: []Queue{
		{Name: "new", Options: map[string]json.RawMessage{"leaseTime": []byte("1")}},
		{Name: "same", Namespace: "n", Options: map[string]json.RawMessage{"leaseTime": []byte("60")}},
		{Name: "drifted", Namespace: "n", Options: map[string]json.RawMessage{"leaseTime": []byte("60"), "retryLimit": []byte("3")}},
	}}
	there := Document{Queues: []Queue{
		{Name: "drifted", Namespace: "m", Options: map[string]json.RawMessage{"leaseTime": []byte("61"), "retryLimit": []byte("3"), "ttl": []byte("9")}},
		{Name: "same", Namespace: "n", Task: "t", Options: map[string]json.RawMessage{"leaseTime": []byte("60")}},
		{Name: "stray"},
	}}
	var lines []string
	for _, change := range Compare(declared, there, true) {
		lines = append(lines, change.String())
	}
	require.Equal(t, []string{`~ drifted namespace: "m" -> "n"`, "~ drifted leaseTime: 61 -> 60", "+ new", "~ new leaseTime: (none) -> 1", "- stray"}, lines)
	require.Len(t, Compare(declared, there, false), 4)
	require.Empty(t, Compare(there, there, true))
}

func TestFlagsOfOptions(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, o := range Options {
		require.Regexp(t, `^[a-z]+(-[a-z]+)*$`, o.Flag())
		require.False(t, seen[o.Flag()])
		seen[o.Flag()] = true
	}
	require.True(t, seen["lease-time"] && seen["redelivery-delay-ms"] && seen["dlq-after-max-retries"])
}
