package config

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// A setting is one tagged field of Config.
type setting struct {
	title    string
	names    []string
	def      string
	auto     string
	unit     string
	min      string
	max      string
	oneOf    []string
	doc      string
	blank    bool // a blank text means "unset"
	target   reflect.Value
	isText   bool
	isMasked bool
}

func newSetting(title string, tag reflect.StructTag, target reflect.Value) *setting {
	s := &setting{
		title: title, names: strings.Split(tag.Get("env"), ","), def: tag.Get("default"), auto: tag.Get("auto"), unit: tag.Get("unit"),
		min: tag.Get("min"), max: tag.Get("max"), doc: tag.Get("doc"), blank: tag.Get("blank") == "default", target: target,
	}
	if words := tag.Get("oneof"); words != "" {
		s.oneOf = strings.Split(words, "|")
	}
	switch target.Interface().(type) {
	case string:
		s.isText = len(s.oneOf) == 0
	case Secret:
		s.isText, s.isMasked = true, true
	}
	return s
}

func (s *setting) name() string { return s.names[0] }

// read finds the value of the setting, stores it in the field and returns what to show of it.
func (s *setting) read(lookup Lookup) (Value, error) {
	value := Value{Name: s.name(), Source: "default", Default: s.def, Doc: s.doc}
	if s.auto != "" {
		value.Default = s.auto
	}
	text, source := s.def, s.name()
	for _, name := range s.names {
		given, set := lookup(name)
		blank := strings.TrimSpace(given) == ""
		// A blank number, boolean or word cannot be meant as a value: compose files and charts produce it for "not given".
		if !set || blank && (s.blank || !s.isText) {
			continue
		}
		text, source, value.Source = given, name, name
		break
	}
	if value.Source == "default" && s.def == "" {
		return value, nil
	}
	// A default is outside the bounds where it stands for "computed later".
	if err := s.store(source, text, value.Source != "default"); err != nil {
		return value, err
	}
	value.Text = text
	if s.isMasked {
		value.Text = NewSecret(text).String()
		value.Default = ""
		if s.def != "" {
			value.Default = masked
		}
	}
	return value, nil
}

// store parses text into the field. name is the variable to blame.
func (s *setting) store(name, text string, checkBounds bool) error {
	trimmed := strings.TrimSpace(text)
	switch s.target.Interface().(type) {
	case bool:
		b, err := parseBool(name, trimmed)
		if err != nil {
			return err
		}
		s.target.SetBool(b)
	case time.Duration:
		n, err := s.parseInt(name, trimmed, checkBounds)
		if err != nil {
			return err
		}
		s.target.SetInt(n * int64(durationUnits[s.unit]))
	case int, int64:
		n, err := s.parseInt(name, trimmed, checkBounds)
		if err != nil {
			return err
		}
		s.target.SetInt(n)
	case float64:
		f, err := s.parseFloat(name, trimmed)
		if err != nil {
			return err
		}
		s.target.SetFloat(f)
	case Secret:
		s.target.Set(reflect.ValueOf(NewSecret(text)))
	case string:
		return s.storeText(name, text)
	default:
		panic(fmt.Sprintf("config: field of %s has the unsupported type %s", s.name(), s.target.Type()))
	}
	return nil
}

var durationUnits = map[string]time.Duration{"ms": time.Millisecond, "s": time.Second, "days": 24 * time.Hour}

func (s *setting) storeText(name, text string) error {
	if strings.ContainsRune(text, 0) {
		return fmt.Errorf("%s holds a NUL byte", name)
	}
	if len(s.oneOf) == 0 {
		s.target.SetString(text)
		return nil
	}
	for _, word := range s.oneOf {
		if strings.EqualFold(word, strings.TrimSpace(text)) {
			s.target.SetString(word)
			return nil
		}
	}
	return fmt.Errorf("%s=%q is not one of %s", name, text, strings.Join(s.oneOf, ", "))
}

func parseBool(name, text string) (bool, error) {
	switch strings.ToLower(text) {
	case "true", "1", "yes", "on":
		return true, nil
	case "false", "0", "no", "off":
		return false, nil
	}
	return false, fmt.Errorf("%s=%q is not a boolean (expected true/false, 1/0, yes/no, on/off)", name, text)
}

func (s *setting) parseInt(name, text string, checkBounds bool) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s=%q is not a whole number%s", name, text, s.inUnit())
	}
	if checkBounds && (s.min != "" && n < mustInt(s.min) || s.max != "" && n > mustInt(s.max)) {
		return 0, s.outOfBounds(name, text)
	}
	return n, nil
}

func (s *setting) parseFloat(name, text string) (float64, error) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(f) {
		return 0, fmt.Errorf("%s=%q is not a number%s", name, text, s.inUnit())
	}
	if s.min != "" && f < mustFloat(s.min) || s.max != "" && f > mustFloat(s.max) {
		return 0, s.outOfBounds(name, text)
	}
	return f, nil
}

func (s *setting) outOfBounds(name, text string) error {
	return fmt.Errorf("%s=%q is out of bounds: expected %s to %s%s", name, text, s.min, s.max, s.inUnit())
}

func (s *setting) inUnit() string {
	if s.unit == "" {
		return ""
	}
	return " (" + s.unit + ")"
}

// mustInt and mustFloat parse bounds in tags, which a test walks.
func mustInt(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic("config: bad bound in a tag: " + err.Error())
	}
	return n
}

func mustFloat(text string) float64 {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic("config: bad bound in a tag: " + err.Error())
	}
	return f
}
