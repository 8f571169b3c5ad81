package console

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode"

	"github.com/replicad/replicad/replica"
)

// evil clears a terminal, and looks like a line of ours behind that.
const evil = "evil\x1b[2J\x1b[H\r\nleader   evil (term 99)\u009b31m\u202e"

func TestPrintfKeepsToItsLine(t *testing.T) {
	for _, c := range []struct {
		arg  any
		verb string
	}{{evil, "%s"}, {errors.New(evil), "%v"}, {[]string{evil}, "%v"}, {map[string]string{"zone": evil}, "%v"}, {replica.NodeName(evil), "%-40s"}} {
		var b strings.Builder
		Printf(&b, "a\t"+c.verb+"\n", c.arg)
		rest, ok := strings.CutSuffix(b.String(), "\n")
		rest, also := strings.CutPrefix(rest, "a\t")
		if !ok || !also || strings.ContainsFunc(rest, func(r rune) bool { return !unicode.IsPrint(r) }) || !strings.Contains(rest, "term 99") {
			t.Errorf("%T with %s is printed as %q", c.arg, c.verb, b.String())
		}
	}
	var b strings.Builder
	Printf(&b, "%5d|%-4s|%.3s|%v\n", 42, "ab", "abcdef", Paragraph("one\ta\ntwo\x1b[2J\n"))
	if want := "   42|ab  |abc|one\ta\ntwo [2J\n\n"; b.String() != want { // a paragraph keeps its lines
		t.Errorf("printed %q, want %q", b.String(), want)
	}
}

func TestJSONIsPrintedAndTheSame(t *testing.T) {
	var b strings.Builder
	if err := JSON(&b, json.RawMessage(`{"text":"\u009b31m \u202e`+"\u009b"+`"}`)); err != nil {
		t.Fatal(err)
	}
	if i := strings.IndexFunc(b.String(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
		t.Errorf("printed %q", b.String())
	}
	var back struct{ Text string }
	if err := json.Unmarshal([]byte(b.String()), &back); err != nil || back.Text != "\u009b31m \u202e\u009b" {
		t.Errorf("read back %q, %v", back.Text, err)
	}
}
