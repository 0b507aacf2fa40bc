// Package sql carries the database half of Queen: the schema and the stored procedures in which every durable decision
// is made. It holds no Go logic beyond handing out the embedded files in apply order.
package sql

import (
	"embed"
	"fmt"
	"io/fs"
	"sort"
)

//go:embed schema.sql procedures/*.sql
var files embed.FS

// A File is one SQL source file, in the order in which it must be applied.
type File struct {
	// Name is the path inside this directory, for example "procedures/003_log_push.sql".
	Name string
	// Text is the whole file.
	Text string
}

// Files returns schema.sql and then the procedure files in lexical order, which is apply order.
func Files() ([]File, error) {
	names, err := fs.Glob(files, "procedures/*.sql")
	if err != nil {
		return nil, fmt.Errorf("list procedure files: %w", err)
	}
	sort.Strings(names)
	out := make([]File, 0, len(names)+1)
	for _, name := range append([]string{"schema.sql"}, names...) {
		text, err := files.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		out = append(out, File{Name: name, Text: string(text)})
	}
	return out, nil
}
