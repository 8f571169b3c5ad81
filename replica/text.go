package replica

import (
	"strings"
	"unicode"
)

// Cut is the beginning of a text for people, at most max bytes of it and without what is no UTF-8: no reader of a message, a log entry or a
// snapshot takes such bytes, and a cut may fall into a character.
func Cut(s string, max int) string { return strings.ToValidUTF8(s[:min(len(s), max)], "") }

// Line is such a text as it may stand in a terminal's line: control characters, which could write over other lines, become blanks.
func Line(s string, max int) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, Cut(s, max))
}
