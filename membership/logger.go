package membership

import (
	"bytes"
	"log"
	"strings"
)

// NewLogger gives memberlist's lines to fn, one call each, with the level that memberlist writes into the text ("DEBUG",
// "INFO", "WARN", "ERR"). fn must be safe for concurrent use.
func NewLogger(fn func(level, msg string)) *log.Logger { return log.New(lines(fn), "", 0) }

type lines func(level, msg string)

// Write implements io.Writer: package log calls it once for each line.
func (fn lines) Write(b []byte) (int, error) {
	text := string(bytes.TrimSpace(b))
	level := "INFO"
	if rest, ok := strings.CutPrefix(text, "["); ok {
		if l, msg, ok := strings.Cut(rest, "] "); ok {
			level, text = l, strings.TrimPrefix(msg, "memberlist: ")
		}
	}
	fn(level, text)
	return len(b), nil
}
