package config

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// WriteTable writes the settings in force for a person: value, where it came from, default. Secrets are masked.
func (c *Config) WriteTable(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "VARIABLE\tVALUE\tSOURCE\tDEFAULT")
	for _, v := range c.values {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", v.Name, v.Text, v.Source, v.Default)
	}
	return table.Flush()
}
