package journal

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/config"
)

// fullDisk takes lines while there is room.
type fullDisk struct {
	bytes.Buffer
	full bool
}

func (d *fullDisk) Write(b []byte) (int, error) {
	if d.full {
		return 0, fmt.Errorf("write daemon.log: %w", unix.ENOSPC)
	}
	return d.Buffer.Write(b)
}

// TestAFullDiskUnderTheLog is said elsewhere than in the log, until a line is written again.
func TestAFullDiskUnderTheLog(t *testing.T) {
	for _, perMinute := range []config.Bytes{0, 1 << 20} {
		d := &fullDisk{}
		j, err := New(d, config.Log{Level: "info", PerMinute: perMinute}, "n1")
		if err != nil {
			t.Fatal(err)
		}
		j.Failed("a", "b", "c")
		if text := j.Unwritten(); text != "" {
			t.Errorf("%q", text)
		}
		d.full = true
		j.Failed("a", "b", "c")
		j.Leader(7)
		if text := j.Unwritten(); !strings.HasPrefix(text, "2 lines of this daemon's log were not written since ") || !strings.Contains(text, "no space left on device: free space on the disk") {
			t.Errorf("%q", text)
		}
		d.full = false
		j.Leader(8)
		if text := j.Unwritten(); text != "" || strings.Count(d.String(), "\n") != 2 {
			t.Errorf("%q, %s", text, d.String())
		}
	}
}
