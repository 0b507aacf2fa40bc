// Package archive is the format of backups: a directory that any tool can read.
//
//	queues.yaml           the queues with their options, as declared configuration
//	groups.ndjson         how many messages of each partition each group has consumed, one a line
//	000001.ndjson.gz ...  messages, one a line, partition after partition in the order of their offsets
//	index.ndjson          one line for each of these files, with its SHA-256; the last line closes the backup
//
// A file exists under its name only once it is whole and on disk, and counts only once the index names it, so that a backup that was
// killed at any moment goes on where its index ends. Payloads keep their bytes: those with a line break inside, which is legal JSON,
// are written as a JSON string ("raw") instead of a value ("data").
package archive
