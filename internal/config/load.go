package config

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
)

// A Lookup tells the value of an environment variable and whether it is set.
type Lookup func(name string) (value string, set bool)

// A Value is one setting as it is in force, for people: Text is masked when the setting is secret.
type Value struct {
	Name string
	Text string
	// Source is the variable the value came from, or "default".
	Source  string
	Default string
	Doc     string
}

// Load reads every setting through lookup. names lists the variables that are set, so that unknown ones can be reported;
// nil skips that report.
//
// All faults are returned together, joined, one line each, and each line starts with the variable's name. Environment
// describes the machine the defaults depend on.
func Load(lookup Lookup, names []string, machine Machine) (*Config, error) {
	c := &Config{}
	var faults []error
	for field := range settings(c) {
		value, err := field.read(lookup)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		c.values = append(c.values, value)
	}
	faults = append(faults, c.Server.check()...)
	faults = append(faults, c.Database.check(lookup)...)
	faults = append(faults, c.TLS.check()...)
	faults = append(faults, c.Tenancy.check()...)
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	if err := c.fillComputed(lookup, machine); err != nil {
		return nil, err
	}
	c.Unused, c.Unknown = classify(lookup, names)
	return c, nil
}

// A Machine is what the computed defaults depend on.
type Machine struct {
	Root  bool
	Cores int
	// Home is the user's home directory, "" when there is none.
	Home string
}

// ThisMachine describes the running process; root tells whether it runs as root, home is its home directory.
func ThisMachine(root bool, home string) Machine {
	return Machine{Root: root, Home: home, Cores: runtime.GOMAXPROCS(0)}
}

func (c *Config) fillComputed(lookup Lookup, machine Machine) error {
	if c.Server.ServerID == "" {
		c.Server.ServerID = fmt.Sprintf("queen-%08x", rand.Uint32())
		c.show("QUEEN_SERVER_ID", c.Server.ServerID)
	}
	if c.Database.PoolSize == 0 {
		// 160 is the wire contract's figure for a database of its own. A private server shares this machine's cores with
		// the broker, and a core is busy with a handful of transactions; more connections only queue inside PostgreSQL.
		c.Database.PoolSize = 160
		if !c.Database.Configured {
			c.Database.PoolSize = min(160, max(32, 16*machine.Cores))
		}
		c.show("DB_POOL_SIZE", fmt.Sprint(c.Database.PoolSize))
	}
	if c.Private.DataDir == "" {
		dir, err := defaultDataDir(lookup, machine)
		if err != nil && !c.Database.Configured {
			return err
		}
		c.Private.DataDir = dir
		c.show("QUEEN_DATA_DIR", dir)
	}
	if c.Buffer.Dir == "" {
		c.Buffer.Dir = defaultBufferDir(lookup, machine)
		c.show("FILE_BUFFER_DIR", c.Buffer.Dir)
	}
	return nil
}

func (c *Config) show(name, text string) {
	for i := range c.values {
		if c.values[i].Name == name {
			c.values[i].Text = text
		}
	}
}

// defaultBufferDir is where the contract has it, for those who may write there. Without any directory of its own the broker keeps nothing.
func defaultBufferDir(lookup Lookup, machine Machine) string {
	if machine.Root {
		return "/var/lib/queen/buffers"
	}
	dir, err := defaultDataDir(lookup, machine)
	if err != nil {
		return "off"
	}
	return dir + "/buffers"
}

func defaultDataDir(lookup Lookup, machine Machine) (string, error) {
	if machine.Root {
		return "/var/lib/queen/data", nil
	}
	if dir, _ := lookup("XDG_DATA_HOME"); strings.HasPrefix(dir, "/") {
		return dir + "/queen", nil
	}
	if machine.Home == "" {
		return "", errors.New("QUEEN_DATA_DIR is not set and this user has no home directory: set it, or set DATABASE_URL")
	}
	return machine.Home + "/.local/share/queen", nil
}

// Values lists every setting in the order of the documentation.
func (c *Config) Values() []Value { return c.values }

// settings yields the settings of c in declaration order.
func settings(c *Config) func(yield func(*setting) bool) {
	return func(yield func(*setting) bool) {
		groups := reflect.ValueOf(c).Elem()
		for i := range groups.NumField() {
			title := groups.Type().Field(i).Tag.Get("title")
			if title == "" {
				continue
			}
			group := groups.Field(i)
			for j := range group.NumField() {
				tag := group.Type().Field(j).Tag
				if names := tag.Get("env"); names == "" || names == "-" {
					continue
				}
				if !yield(newSetting(title, tag, group.Field(j))) {
					return
				}
			}
		}
	}
}
