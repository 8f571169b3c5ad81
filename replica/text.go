package replica

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Cut is the beginning of a text for people, at most max bytes of it and without what is no UTF-8: no reader of a message, a log entry or a
// snapshot takes such bytes, and a cut may fall into a character.
func Cut(s string, max int) string { return strings.ToValidUTF8(s[:min(len(s), max)], "") }

// Line is such a text as it may stand in a terminal's line: what is not printed, and could write over other lines or turn the order of letters,
// becomes a blank.
func Line(s string, max int) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, Cut(s, max))
}

// PrintedJSON is JSON with the same values, of printed characters and line ends alone: what else is in its texts is escaped.
func PrintedJSON(b []byte) []byte {
	clean := func(r rune) bool { return r == '\n' || unicode.IsPrint(r) }
	if bytes.IndexFunc(b, func(r rune) bool { return !clean(r) }) < 0 {
		return b
	}
	out := make([]byte, 0, 2*len(b))
	for _, r := range string(b) {
		if clean(r) {
			out = utf8.AppendRune(out, r)
			continue
		}
		for _, u := range utf16.Encode([]rune{r}) {
			out = fmt.Appendf(out, `\u%04x`, u)
		}
	}
	return out
}

// Listed joins items to at most limit bytes, and says how many more there are.
func Listed(items []string, limit int) string {
	const sep, room = "; ", len("; and 1000000 more")
	text := ""
	for i, item := range items {
		next := text
		if i > 0 {
			next += sep
		}
		next += item
		most := limit
		if i < len(items)-1 {
			most -= room
		}
		if len(next) > most {
			if i > 0 {
				return fmt.Sprintf("%s; and %d more", text, len(items)-i)
			}
			const cut = "..."
			if text = Cut(item, max(most-len(cut), 0)) + cut; len(items) > 1 {
				text = fmt.Sprintf("%s; and %d more", text, len(items)-1)
			}
			return text
		}
		text = next
	}
	return text
}
