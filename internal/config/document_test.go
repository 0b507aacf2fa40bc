package config

import (
	"fmt"
	"strings"
)

// Markdown is docs/configuration.md: every setting with its default, bounds, unit and meaning.
func Markdown() string {
	var b strings.Builder
	b.WriteString(documentHead)
	title := ""
	for s := range settings(&Config{}) {
		if s.title != title {
			title = s.title
			fmt.Fprintf(&b, "\n## %s\n\n| variable | default | bounds | meaning |\n| --- | --- | --- | --- |\n", title)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", s.nameCell(), s.defaultCell(), s.boundsCell(), cell(s.doc))
	}
	b.WriteString("\n## Accepted without effect\n\nKnown from the wire contract and reported once at start when set. A name with `*` stands for all with that beginning.\n\n")
	b.WriteString("| variables | why |\n| --- | --- |\n")
	for _, group := range recognised {
		fmt.Fprintf(&b, "| %s | %s |\n", "`"+strings.Join(strings.Fields(group.names), "`, `")+"`", group.why)
	}
	return b.String()
}

const documentHead = `# Configuration

Generated from the declarations in ` + "`internal/config`" + `; a test fails when it is stale. The broker reads its settings from the environment
only. ` + "`queen config`" + ` prints the values in force and where each came from.

- A boolean is true/false, 1/0, yes/no or on/off in any case.
- A number, boolean or word that is blank counts as unset; one that does not parse or is out of bounds stops the start with a line that names
  the variable. All faults are reported at once.
- A text that is set but empty stays empty, unless its meaning says otherwise.
- An unknown variable that starts with QUEEN_ is reported at start with the nearest known name.
`

func (s *setting) nameCell() string {
	text := "`" + s.name() + "`"
	if len(s.names) > 1 {
		text += " (else `" + strings.Join(s.names[1:], "`, `") + "`)"
	}
	return text
}

func (s *setting) defaultCell() string {
	switch {
	case s.auto != "":
		return cell(s.auto)
	case s.def == "":
		return "unset"
	}
	return "`" + s.def + "`"
}

func (s *setting) boundsCell() string {
	switch {
	case s.oneOf != nil:
		return strings.Join(s.oneOf, ", ")
	case s.min == "":
		return ""
	}
	return strings.TrimSpace(s.min + " to " + s.max + " " + s.unit)
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
