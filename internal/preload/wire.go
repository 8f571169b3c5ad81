package preload

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// Limits of what others say, in bytes and in entries.
const (
	maxReport  = 1 << 20
	maxMessage = 64 << 10 // MESSAGE in replicad_preload.py
	maxPayload = 16 << 20 // PAYLOAD there
	maxModules = 1 << 15
	maxName    = 200
	maxWhy     = 500
)

// Report is what a program's first life says of itself.
type Report struct {
	PID      int               `json:"pid"`
	Argv     []string          `json:"argv"` // a character for each byte
	Isolated bool              `json:"isolated"`
	Folder   string            `json:"folder"` // for PYTHONPATH
	Modules  []string          `json:"modules"`
	Own      []string          `json:"own"`
	Changed  map[string]string `json:"changed"`
}

// ParseReport reads a report and checks what a program can have got wrong.
func ParseReport(b []byte) (r Report, err error) {
	if len(b) > maxReport {
		return r, fmt.Errorf("a report of more than %d bytes", maxReport)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("report: %w", err)
	}
	switch {
	case r.PID <= 0:
		return r, fmt.Errorf("report: process %d", r.PID)
	case len(r.Modules)+len(r.Own)+len(r.Changed) > maxModules:
		return r, fmt.Errorf("report: more than %d names", maxModules)
	case !filepath.IsAbs(r.Folder) || strings.ContainsAny(r.Folder, ":\x00") || len(r.Folder) > 4096:
		return r, fmt.Errorf("report: folder %.100q cannot be in PYTHONPATH", r.Folder)
	}
	return r, nil
}

// Message is what the process says: exactly one of its kinds is set.
type Message struct {
	Hello     int    `json:"hello"`     // its process id
	Importing string `json:"importing"` // a module
	LeftOut   []Left `json:"left_out"`
	Refused   string `json:"refused"`
	Ready     *int   `json:"ready"` // how many modules
	Forked    uint64 `json:"forked"`
	Failed    uint64 `json:"failed"`

	Argv     []string `json:"argv"`     // of Hello
	Packages []string `json:"packages"` // of Ready
	KiB      int64    `json:"kib"`      // of Ready
	PID      int      `json:"pid"`      // of Forked
	Why      string   `json:"why"`      // of Failed
	Changed  bool     `json:"changed"`  // of Failed
}

// Left is a module that may not be imported beforehand.
type Left struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// ParseMessage reads a message. Texts that go into the log are cut.
func ParseMessage(b []byte) (m Message, err error) {
	if len(b) > maxMessage {
		return m, fmt.Errorf("a message of more than %d bytes", maxMessage)
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, err
	}
	kinds := 0
	for _, set := range []bool{m.Hello != 0, m.Importing != "", m.LeftOut != nil, m.Refused != "", m.Ready != nil, m.Forked != 0, m.Failed != 0} {
		if set {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return m, fmt.Errorf("a message of %d kinds", kinds)
	case m.Hello < 0 || m.PID < 0 || m.KiB < 0 || m.Ready != nil && *m.Ready < 0:
		return m, errors.New("a negative number")
	}
	m.Importing, m.Refused, m.Why = printable(m.Importing, maxName), printable(m.Refused, maxWhy), printable(m.Why, maxWhy)
	for i := range m.LeftOut {
		m.LeftOut[i] = Left{printable(m.LeftOut[i].Name, maxName), printable(m.LeftOut[i].Why, maxWhy)}
	}
	for i := range m.Packages {
		m.Packages[i] = printable(m.Packages[i], maxName)
	}
	return m, nil
}

// printable is a text for a line of the log.
func printable(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return s
}

// latin writes bytes as the characters of the same numbers, since JSON has no bytes.
func latin(s string) string {
	var b strings.Builder
	for i := range len(s) {
		b.WriteRune(rune(s[i]))
	}
	return b.String()
}

func latins(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = latin(s)
	}
	return out
}

// plan is what the process is to import.
type plan struct {
	Modules  []string          `json:"modules"`
	LeaveOut []string          `json:"leave_out"`
	Own      []string          `json:"own"`
	Varying  []string          `json:"varying"`
	Prefixes []string          `json:"prefixes"`
	Changed  map[string]string `json:"changed"`
}

// request asks for a fork.
type request struct {
	Fork     uint64   `json:"fork"`
	Launcher int      `json:"launcher"`
	Env      []string `json:"env"`
	Targets  []int    `json:"targets"`
}
