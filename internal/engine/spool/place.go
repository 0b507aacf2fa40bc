package spool

import (
	"encoding/binary"
	"hash/crc32"
)

// placeBytes is the size of a place file: an offset and the CRC-32C of it, both little-endian.
const placeBytes = 8 + 4

// place returns up to where a complete file is stored already: 0 when nothing is known, or nothing that makes sense.
func (d *directory) place(base string, data []byte) int {
	text, err := d.files.readFile(d.file(base, placeSuffix))
	if err != nil || len(text) != placeBytes || crc32.Checksum(text[:8], castagnoli) != binary.LittleEndian.Uint32(text[8:]) {
		return 0
	}
	place := binary.LittleEndian.Uint64(text)
	known := false
	_, _ = scan(data, true, func(f found) error { known = known || uint64(f.end) == place; return nil }) //nolint:gosec // offsets are not negative
	if !known {
		return 0
	}
	return int(place) //nolint:gosec // an end of a stretch
}

// markPlace notes up to where the file in progress is stored, so that a broker that ends now does not store it again. The note is not forced
// to the disk: it survives the end of the broker, and after a power cut more is stored again. Failing to write it costs no more than that.
func (s *Spool) markPlace() {
	p := &s.progress
	if p.note == nil {
		path := s.dir.file(p.file.base, placeSuffix)
		note, err := s.dir.files.open(path)
		if err != nil {
			note, err = s.dir.files.create(path)
		}
		if err != nil {
			return
		}
		p.note = note
	}
	text := binary.LittleEndian.AppendUint64(make([]byte, 0, placeBytes), uint64(p.at)) //nolint:gosec // an offset
	text = binary.LittleEndian.AppendUint32(text, crc32.Checksum(text, castagnoli))
	_, _ = p.note.WriteAt(text, 0)
}

// closePlace gives the note of the file in progress up.
func (p *progress) closePlace() {
	if p.note != nil {
		_ = p.note.Close()
		p.note = nil
	}
}
