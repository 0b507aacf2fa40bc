package spool

import (
	"bytes"
	"fmt"

	"queenmq/internal/engine/push"
)

// A found is one stretch of a file: a record, or bytes that are none.
type found struct {
	message push.Accepted
	// raw is the stretch as it lies in the file.
	raw []byte
	// end is where the next stretch begins.
	end int
	// fault says why raw is not a record, nil for records.
	fault error
	// base is that of the file of a record that is carried, "" for those of the file in progress.
	base string
}

// scan calls visit for every stretch of a file, in order, and returns the length of everything before a tail that is cut off. Such a tail
// is no stretch in a file that was not complete: what was written of a record that never became whole was answered to nobody. In a
// complete file it is damage.
//
// A damaged record is one stretch when its length is right: when the next record follows it, or the end of the file, and none begins inside.
// Otherwise the next place at which a whole record with a right checksum begins ends the stretch; without such a place the rest of the file
// is it.
func scan(data []byte, complete bool, visit func(found) error) (length int, err error) {
	if len(data) == 0 || len(data) < len(header) && !complete {
		return 0, nil // the file was being made
	}
	at := 0
	if bytes.HasPrefix(data, []byte(header)) {
		at = len(header)
	} else {
		// Whole records are believed also without a header before them.
		if at = resume(data, 0); at > 0 {
			fault := fmt.Errorf("%w: the file does not begin with %s", errCorrupt, header)
			if err := visit(found{raw: data[:at], end: at, fault: fault}); err != nil {
				return 0, err
			}
		}
	}
	return scanRecords(data, at, complete, visit)
}

// scanFrom is scan of a complete file from a place at which a stretch begins, 0 being the beginning of the file.
func scanFrom(data []byte, from int, visit func(found) error) (length int, err error) {
	if from == 0 {
		return scan(data, true, visit)
	}
	return scanRecords(data, from, true, visit)
}

// scanRecords is scan behind the header.
func scanRecords(data []byte, at int, complete bool, visit func(found) error) (length int, err error) {
	for at < len(data) {
		body, size, fault := nextRecord(data[at:])
		end := at + size
		var message push.Accepted
		if fault == nil {
			message, fault = decodeRecord(body)
		} else {
			// Its length may not be right either: a whole record further on, also inside what the length claims, ends the damage.
			following := resume(data, at+1)
			if following == len(data) && !complete && (size == 0 || isUnwritten(data[at:end])) {
				return at, nil // nothing whole follows: the tail of a write that was interrupted
			}
			if size == 0 || following < end || end != len(data) && !isRecord(data[end:]) {
				end = following
			}
		}
		if err := visit(found{message: message, raw: data[at:end], end: end, fault: fault}); err != nil {
			return at, err
		}
		at = end
	}
	return at, nil
}

// isUnwritten tells of a record that never was written to its end before the power went: the file was given the room, and nothing stands where
// the JSON ends.
func isUnwritten(record []byte) bool { return record[len(record)-frameBytes/2-1] == 0 }

// recordStart is how every record of this package begins after its length.
var recordStart = []byte(`{"queue":`)

// resume finds the next whole record at or after from, or the end.
func resume(data []byte, from int) int {
	for at := from; at < len(data); {
		i := bytes.Index(data[at:], recordStart)
		if i < 0 {
			break
		}
		if begin := at + i - 4; begin >= from && isRecord(data[begin:]) {
			return begin
		}
		at += i + 1
	}
	return len(data)
}

func isRecord(data []byte) bool {
	_, _, err := nextRecord(data)
	return err == nil
}
