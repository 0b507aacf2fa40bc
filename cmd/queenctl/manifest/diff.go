package manifest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// A Change is one difference between what is declared and what is there.
type Change struct {
	Queue string `json:"queue"`
	// Kind is create, change or undeclared.
	Kind string `json:"kind"`
	// Field is the option, "namespace" or "task"; empty for a whole queue.
	Field string `json:"field,omitempty"`
	// Have and Want are JSON values, empty for nothing.
	Have json.RawMessage `json:"have,omitempty"`
	Want json.RawMessage `json:"want,omitempty"`
}

// The kinds of changes.
const (
	Create     = "create"
	Set        = "change"
	Undeclared = "undeclared"
)

// Compare lists what separates the declared queues from those that are there, by queue. Options that are not declared are not
// compared. Queues that are not declared are listed when strict.
func Compare(declared, there Document, strict bool) []Change {
	var changes []Change
	have := map[string]*Queue{}
	for i := range there.Queues {
		have[there.Queues[i].Name] = &there.Queues[i]
	}
	for _, want := range declared.Queues {
		found := have[want.Name]
		delete(have, want.Name)
		if found == nil {
			changes = append(changes, Change{Queue: want.Name, Kind: Create})
			found = &Queue{}
		}
		for _, label := range []struct{ field, have, want string }{{"namespace", found.Namespace, want.Namespace}, {"task", found.Task, want.Task}} {
			if label.want != "" && label.want != label.have {
				changes = append(changes, Change{want.Name, Set, label.field, quotedOrNothing(label.have), quotedOrNothing(label.want)})
			}
		}
		for _, name := range optionOrder(want.Options) {
			if string(found.Options[name]) != string(want.Options[name]) {
				changes = append(changes, Change{want.Name, Set, name, found.Options[name], want.Options[name]})
			}
		}
	}
	if strict {
		for _, q := range there.Queues {
			if have[q.Name] != nil {
				changes = append(changes, Change{Queue: q.Name, Kind: Undeclared})
			}
		}
	}
	slices.SortStableFunc(changes, func(x, y Change) int { return strings.Compare(x.Queue, y.Queue) })
	return changes
}

func quotedOrNothing(text string) json.RawMessage {
	if text == "" {
		return nil
	}
	quoted, err := json.Marshal(text)
	if err != nil {
		return nil // a string always encodes
	}
	return quoted
}

// String is one line for people: "+ orders", "~ orders leaseTime: 300 -> 60", "- old".
func (c Change) String() string {
	switch c.Kind {
	case Create:
		return "+ " + c.Queue
	case Undeclared:
		return "- " + c.Queue
	}
	have := string(c.Have)
	if have == "" {
		have = "(none)"
	}
	return fmt.Sprintf("~ %s %s: %s -> %s", c.Queue, c.Field, have, c.Want)
}
