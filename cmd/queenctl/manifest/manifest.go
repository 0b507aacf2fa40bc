package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Version is the only version of the document.
const Version = 1

// A Queue is the declared state of one queue.
type Queue struct {
	Name string
	// Namespace and Task are "" when the document does not say: then they are not compared.
	Namespace, Task string
	// Options are the declared ones; the others are the broker's business.
	Options map[string]json.RawMessage
}

// A Document is a set of queues, sorted by name.
type Document struct {
	Queues []Queue
}

// Read reads one or more YAML documents and returns them as one. Every fault is reported, with its line.
func Read(text []byte) (Document, error) {
	r := reader{seen: map[string]int{}}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for documents := 0; ; documents++ {
		var root yaml.Node
		err := decoder.Decode(&root)
		if errors.Is(err, io.EOF) {
			if documents == 0 {
				return Document{}, errors.New("the document is empty")
			}
			break
		}
		if err != nil {
			return Document{}, err
		}
		r.document(root.Content[0])
	}
	slices.SortFunc(r.result.Queues, func(x, y Queue) int { return strings.Compare(x.Name, y.Name) })
	return r.result, errors.Join(r.faults...)
}

// A reader gathers queues and faults.
type reader struct {
	result Document
	seen   map[string]int
	faults []error
}

func (r *reader) fault(at *yaml.Node, format string, args ...any) {
	r.faults = append(r.faults, fmt.Errorf("line %d: "+format, append([]any{at.Line}, args...)...))
}

// members calls visit for each member of a mapping.
func (r *reader) members(node *yaml.Node, what string, visit func(key string, at, value *yaml.Node)) {
	if node.Kind != yaml.MappingNode {
		r.fault(node, "%s must be a mapping", what)
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i]
		if seen[key.Value] {
			r.fault(key, "%q stands twice in %s", key.Value, what)
			continue
		}
		seen[key.Value] = true
		visit(key.Value, key, node.Content[i+1])
	}
}

func (r *reader) document(root *yaml.Node) {
	version := false
	r.members(root, "the document", func(key string, at, value *yaml.Node) {
		switch key {
		case "version":
			version = true
			if value.Value != fmt.Sprint(Version) {
				r.fault(value, "version must be %d, not %q", Version, value.Value)
			}
		case "queues":
			if value.Kind != yaml.SequenceNode {
				r.fault(value, "queues must be a list")
				return
			}
			for _, queue := range value.Content {
				r.queue(queue)
			}
		default:
			r.fault(at, "unknown key %q; the document has version and queues", key)
		}
	})
	if !version && root.Kind == yaml.MappingNode {
		r.fault(root, "version is missing; write version: %d", Version)
	}
}

func (r *reader) queue(node *yaml.Node) {
	queue := Queue{Options: map[string]json.RawMessage{}}
	r.members(node, "a queue", func(key string, at, value *yaml.Node) {
		switch key {
		case "name":
			r.text(value, key, &queue.Name)
		case "namespace":
			r.text(value, key, &queue.Namespace)
		case "task":
			r.text(value, key, &queue.Task)
		case "options":
			r.members(value, "options", func(name string, at, value *yaml.Node) { r.option(&queue, name, at, value) })
		default:
			r.fault(at, "unknown key %q; a queue has name, namespace, task and options", key)
		}
	})
	if node.Kind != yaml.MappingNode {
		return
	}
	if queue.Name == "" {
		r.fault(node, "a queue has no name")
		return
	}
	if line, twice := r.seen[queue.Name]; twice {
		r.fault(node, "the queue %q stands in line %d already", queue.Name, line)
		return
	}
	r.seen[queue.Name] = node.Line
	r.result.Queues = append(r.result.Queues, queue)
}

func (r *reader) text(value *yaml.Node, key string, into *string) {
	if value.Kind != yaml.ScalarNode || value.Tag == "!!null" {
		r.fault(value, "%s must be a text", key)
		return
	}
	*into = value.Value
}

func (r *reader) option(queue *Queue, name string, at, value *yaml.Node) {
	option, known := optionNamed(name)
	if !known {
		r.fault(at, "unknown option %q%s", name, nearest(name))
		return
	}
	var raw json.RawMessage
	if value.Kind == yaml.ScalarNode && (value.Tag == "!!int" || value.Tag == "!!bool") {
		raw = json.RawMessage(strings.ReplaceAll(value.Value, "_", ""))
	} else {
		raw = json.RawMessage(fmt.Sprintf("%q", value.Value))
	}
	if err := option.Check(raw); err != nil {
		r.fault(value, "%v", err)
		return
	}
	queue.Options[name] = raw
}

// nearest proposes the known option that differs least.
func nearest(name string) string {
	best, least := "", 4
	for _, o := range Options {
		if d := distance(strings.ToLower(name), strings.ToLower(o.Name)); d < least {
			best, least = o.Name, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// distance is the number of single-character edits between two texts.
func distance(x, y string) int {
	row := make([]int, len(y)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(x) {
		before := row[0]
		row[0] = i + 1
		for j := range len(y) {
			cost := before
			if x[i] != y[j] {
				cost++
			}
			before, row[j+1] = row[j+1], min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(y)]
}

// Write writes a document. Options stand in the order of [Options].
func Write(d Document) ([]byte, error) {
	root := mapping()
	add(root, "version", scalar(fmt.Sprint(Version), "!!int"))
	queues := &yaml.Node{Kind: yaml.SequenceNode}
	for _, q := range d.Queues {
		node := mapping()
		add(node, "name", text(q.Name))
		if q.Namespace != "" {
			add(node, "namespace", text(q.Namespace))
		}
		if q.Task != "" {
			add(node, "task", text(q.Task))
		}
		if len(q.Options) > 0 {
			options := mapping()
			for _, name := range optionOrder(q.Options) {
				tag := "!!int"
				if v := string(q.Options[name]); v == "true" || v == "false" {
					tag = "!!bool"
				}
				add(options, name, scalar(string(q.Options[name]), tag))
			}
			add(node, "options", options)
		}
		queues.Content = append(queues.Content, node)
	}
	if len(queues.Content) == 0 {
		queues.Style = yaml.FlowStyle
	}
	add(root, "queues", queues)
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := errors.Join(encoder.Encode(root), encoder.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// optionOrder lists the names of options in the order of [Options], unknown ones last.
func optionOrder(options map[string]json.RawMessage) []string {
	var names []string
	for _, o := range Options {
		if _, ok := options[o.Name]; ok {
			names = append(names, o.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if _, known := optionNamed(name); !known {
			names = append(names, name)
		}
	}
	return names
}

func mapping() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode} }

func scalar(value, tag string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Value: value, Tag: tag}
}

func text(value string) *yaml.Node {
	node := new(yaml.Node)
	node.SetString(value)
	return node
}

func add(to *yaml.Node, key string, value *yaml.Node) {
	to.Content = append(to.Content, text(key), value)
}

// Sort puts the queues in the order of their names.
func Sort(d *Document) {
	slices.SortFunc(d.Queues, func(x, y Queue) int { return strings.Compare(x.Name, y.Name) })
}
