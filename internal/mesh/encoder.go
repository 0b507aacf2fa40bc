package mesh

import "bytes"

// An encoder puts items of one kind into payloads, each filled up to its limit.
type encoder struct {
	sender sender
	head   []byte // up to and including the bracket that opens the items
	body   []byte // the items of the payload under way
	done   []string
	weight int
	most   int // payloads; what does not fit in is left out
}

func (s sender) newEncoder(k kind, most int) *encoder {
	return &encoder{sender: s, head: append(s.begin(k), `,"i":[`...), most: most}
}

// overflows tells that something did not fit in.
func (e *encoder) overflows() bool { return len(e.done) >= e.most }

// Ends of an item with partitions, and of a payload.
const (
	itemEnd    = `]}`
	payloadEnd = `]}`
)

// add puts one item into as many payloads as its partitions, which may be none, take.
func (e *encoder) add(key queueKey, group string, partitions []string) {
	opened := e.open(key, group)
	if len(partitions) == 0 {
		e.put(append(opened, '}'), 1)
		return
	}
	opened = append(opened, `,"p":[`...)
	for len(partitions) > 0 && !e.overflows() {
		entry, taken := bytes.Clone(opened), 0
		for _, name := range partitions {
			quoted := appendText(nil, name)
			if e.length()+len(entry)+1+len(quoted)+len(itemEnd) > maxPayload {
				break
			}
			if taken > 0 {
				entry = append(entry, ',')
			}
			entry = append(entry, quoted...)
			taken++
		}
		if taken == 0 {
			e.flush() // an empty payload has room for any name: at most 255 characters of at most 4 bytes, three times
			continue
		}
		e.put(append(entry, itemEnd...), taken)
		partitions = partitions[taken:]
	}
}

// open begins an item.
func (e *encoder) open(key queueKey, group string) []byte {
	dst := []byte{'{'}
	if key.tenant != e.sender.defaultTenant {
		dst = append(dst, `"t":"`...)
		dst = append(dst, key.tenant.String()...)
		dst = append(dst, `",`...)
	}
	dst = append(dst, `"q":`...)
	dst = appendText(dst, key.queue)
	if group != "" {
		dst = append(dst, `,"g":`...)
		dst = appendText(dst, group)
	}
	return dst
}

// length is that of the payload under way with a comma and its end.
func (e *encoder) length() int { return len(e.head) + len(e.body) + 1 + len(payloadEnd) }

// put appends a finished item.
func (e *encoder) put(entry []byte, weight int) {
	if e.length()+len(entry) > maxPayload {
		e.flush()
	}
	if e.overflows() {
		return
	}
	if len(e.body) > 0 {
		e.body = append(e.body, ',')
	}
	e.body = append(e.body, entry...)
	e.weight += weight
}

// flush ends the payload under way.
func (e *encoder) flush() {
	if len(e.body) == 0 {
		return
	}
	e.done = append(e.done, string(e.head)+string(e.body)+payloadEnd)
	e.weight++
	e.body = e.body[:0]
}

// payloads ends the encoding. weight is how much of the sender's allowance they use up together.
func (e *encoder) payloads() (payloads []string, weight int) {
	e.flush()
	return e.done, e.weight
}
