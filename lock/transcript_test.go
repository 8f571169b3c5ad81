package lock

import (
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/transcript"
)

func TestTranscripts(t *testing.T) {
	transcript.Blocks(t, "", func() transcript.Do {
		w := newWorld()
		return func(line string, out *strings.Builder) error { return w.run(line, out) }
	})
}
