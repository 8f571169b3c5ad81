package replica

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// A list for people has its bound, and says how much it leaves out.
func TestListed(t *testing.T) {
	for want, c := range map[string]struct {
		items []string
		limit int
	}{
		"":                             {nil, 100},
		"one":                          {[]string{"one"}, 100},
		"one; two; three":              {[]string{"one", "two", "three"}, 100},
		"one; two; and 2 more":         {[]string{"one", "two", "three", strings.Repeat("x", 30)}, 31},
		"one; and 1 more":              {[]string{"one", strings.Repeat("x", 30)}, 30},
		"xx...":                        {[]string{strings.Repeat("x", 30)}, 5},
		"xxxxxxxxxxxx...; and 1 more":  {[]string{strings.Repeat("x", 30), "y"}, 33},
		"...; and 1 more":              {[]string{"first", "second"}, 1},
		strings.Repeat("é", 8) + "...": {[]string{strings.Repeat("é", 30)}, 20},
	} {
		got := Listed(c.items, c.limit)
		if got != want || !utf8.ValidString(got) {
			t.Errorf("%q in %d bytes is %q, want %q", c.items, c.limit, got, want)
		}
	}
	many := make([]string, 1000)
	for i := range many {
		many[i] = "step 2202: group-0.safetensors, chunk 9: digest differs"
	}
	if got := Listed(many, 700); len(got) > 700 || !strings.HasSuffix(got, "; and 988 more") {
		t.Errorf("%d bytes: %s", len(got), got)
	}
}

// Nothing that a terminal obeys, or that turns the order of its letters, is left in a line.
func TestLine(t *testing.T) {
	for text, want := range map[string]string{
		"plain, é 文 😀 text":      "plain, é 文 😀 text",
		"a\x1b[31m\nb\u0085c":    "a [31m b c",
		"a\u202eb\u2066c\u200bd": "a b c d",
		"\u2028\ue000\U000e0041": "   ",
		"\xffx":                  "x",
	} {
		if got := Line(text, 100); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}
