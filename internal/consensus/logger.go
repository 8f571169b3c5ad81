package consensus

import (
	"io"

	"github.com/hashicorp/go-hclog"
)

// NewLogger gives raft's warnings and errors to fn: args are keys and values in turn. fn must be safe for concurrent use.
func NewLogger(fn func(isError bool, msg string, args ...any)) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Output: io.Discard, Level: hclog.Warn})
	l.RegisterSink(&sink{fn})
	return l
}

// sink is a pointer's target because hclog keeps sinks as map keys.
type sink struct {
	fn func(isError bool, msg string, args ...any)
}

// Accept implements hclog.SinkAdapter.
func (s *sink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	if level >= hclog.Warn {
		s.fn(level >= hclog.Error, msg, args...)
	}
}
