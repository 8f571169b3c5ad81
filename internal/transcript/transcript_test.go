package transcript

import (
	"errors"
	"strings"
	"testing"
)

// TestBlocksAndLines play the files of this package: what a block or a line prints stands behind it, and comments stay.
func TestBlocksAndLines(t *testing.T) {
	n := 0
	count := func() Do {
		n = 0
		return func(line string, out *strings.Builder) error {
			if line == "fail" {
				return errors.New("as asked")
			}
			if n++; line != "quiet" {
				out.WriteString(line + "!\n")
			}
			return nil
		}
	}
	t.Run("blocks", func(t *testing.T) {
		t.Chdir("testdata/blocks")
		Blocks(t, "nothing", count)
	})
	t.Run("lines", func(t *testing.T) {
		t.Chdir("testdata/lines")
		Lines(t, count)
	})
	if n == 0 {
		t.Error("nothing was played")
	}
}

func TestFirstDiff(t *testing.T) {
	if d := firstDiff("a\nb\nc", "a\nx\nc"); !strings.HasPrefix(d, "line 2\nwant b\ngot  x\n") {
		t.Error(d)
	}
	if d := firstDiff("a", "a\nb"); !strings.HasPrefix(d, "line 2\nwant (the end)\ngot  b") {
		t.Error(d)
	}
	if d := firstDiff("a", "a"); d != "" {
		t.Error(d)
	}
}
