package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/goccy/go-yaml"
)

// MaxFileBytes is how large a configuration file may be; a longer one is some other file.
const MaxFileBytes = 256 << 10

// Load reads a file, fills in the defaults and validates the result. Its errors begin with the path.
func Load(path string) (*Config, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	c, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("config %s: %w", path, err)
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("config %s: %w", path, err)
	}
	c = c.relativeTo(dir).WithDefaults()
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("config %s:\n%w", path, err)
	}
	return c, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w (give --config FILE, or start one node with --dev)", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if len(data) > MaxFileBytes {
		return nil, fmt.Errorf("config %s: more than %d bytes: is it a configuration?", path, MaxFileBytes)
	}
	return data, nil
}

// Parse reads one YAML document, as it is: no defaults, no validation. Unknown and repeated fields are refused with their line.
func Parse(data []byte) (c *Config, err error) {
	// The YAML library panics on some malformed documents (testdata/fuzz has them); to the caller that is a bad file like any other.
	defer func() {
		if r := recover(); r != nil {
			c, err = nil, fmt.Errorf("not YAML that can be read: %v", r)
		}
	}()
	if len(data) > MaxFileBytes {
		return nil, fmt.Errorf("%d bytes, at most %d", len(data), MaxFileBytes)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict())
	c = new(Config)
	if err := dec.Decode(c); errors.Is(err, io.EOF) {
		return nil, errors.New("the file is empty: see the example in README.md")
	} else if err != nil {
		return nil, errors.New(yaml.FormatError(err, false, true))
	}
	if err := dec.Decode(new(Config)); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one YAML document (---): want one")
	}
	return c, nil
}

// relativeTo returns a copy whose relative paths count from dir.
func (c Config) relativeTo(dir string) *Config {
	for _, p := range []*string{&c.Socket, &c.AdminSocket, &c.KeeperSocket, &c.StateDir, &c.DurableDir, &c.PKI.CA, &c.PKI.Cert, &c.PKI.Key, &c.PKI.GossipKey} {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
	return &c
}

// Write stores the configuration at path, for tools that make one.
func (c *Config) Write(path string) error {
	data, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("config %s: %w", path, err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	return nil
}
