package api

import (
	"fmt"
	"unicode/utf8"
)

// Bounds of what callers may name things. Queue, namespace and task are VARCHAR(255) columns, counted in characters; the
// consumer group shares their bound. A partition name is part of index keys, counted in bytes. A transaction id has a 16-bit
// length field in the frame.
const (
	maxNameCharacters      = 255
	maxPartitionBytes      = 1024
	maxTransactionIDBytes  = 65535
	defaultPartition       = "Default"
	controlCharactersText  = "control characters are not allowed in queue, partition or transactionId"
	loneSurrogateText      = "lone surrogate escapes are not allowed in names"
	namesMustNotBeEmpty    = "must not be empty"
	namesMustBeUTF8        = "must be valid UTF-8"
	namesWithoutControls   = "must not contain control characters"
	nameTooLongFormat      = "is longer than %d characters"
	partitionTooLongFormat = "is longer than %d bytes"
)

// nameFault says what is wrong with a queue, group, namespace or task name, "" when nothing is. The empty name is the
// caller's business.
func nameFault(name string) string {
	if fault := textFault(name); fault != "" {
		return fault
	}
	if len(name) > maxNameCharacters && utf8.RuneCountInString(name) > maxNameCharacters {
		return fmt.Sprintf(nameTooLongFormat, maxNameCharacters)
	}
	return ""
}

// queueFault is nameFault for queue names, which must not be empty.
func queueFault(name string) string {
	if name == "" {
		return namesMustNotBeEmpty
	}
	return nameFault(name)
}

// partitionFault says what is wrong with a partition name, "" when nothing is. The empty name is a legal, real name.
func partitionFault(name string) string {
	if fault := textFault(name); fault != "" {
		return fault
	}
	if len(name) > maxPartitionBytes {
		return fmt.Sprintf(partitionTooLongFormat, maxPartitionBytes)
	}
	return ""
}

func textFault(name string) string {
	if hasControl(name) {
		return namesWithoutControls
	}
	if !utf8.ValidString(name) {
		return namesMustBeUTF8
	}
	return ""
}

// hasControl reports whether text holds a character below 0x20.
func hasControl[Text ~string | ~[]byte](text Text) bool {
	for i := range len(text) {
		if text[i] < 0x20 {
			return true
		}
	}
	return false
}
