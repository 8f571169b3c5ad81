package store

import (
	"strings"
	"testing"
)

func TestCheckKey(t *testing.T) {
	for key, ok := range map[string]bool{
		"a": true, "lm/20261125T1716Z-4385b34d/commits/step-00001200.e2.json": true, ".probe-x": true, "a/..b": true, "A=b+c@d_e": true,
		strings.Repeat("a", MaxSegment): true, strings.Repeat("a/", MaxKey/2-1) + "ab": true,
		"": false, "/a": false, "a/": false, "a//b": false, ".": false, "..": false, "a/../b": false, "a/./b": false, "~a": false, "a b": false, "a\x00": false,
		"ä": false, `a\b`: false, "a%2e": false, strings.Repeat("a", MaxSegment+1): false, strings.Repeat("a/", MaxKey/2) + "ab": false,
	} {
		if err := CheckKey(key); (err == nil) != ok {
			t.Errorf("%.40q: %v, want ok %v", key, err, ok)
		}
	}
}

func TestCheckPrefix(t *testing.T) {
	for prefix, ok := range map[string]bool{"": true, "a": true, "a/": true, "a/b": true, "a/.": true, "a/..": true, ".probe-": true, "/": false, "../": false, "a/../": false, "a//": false, "a b": false} {
		if err := CheckPrefix(prefix); (err == nil) != ok {
			t.Errorf("%q: %v, want ok %v", prefix, err, ok)
		}
	}
}

// FuzzCheckKey: no key leads out of the root, and each of its prefixes may be listed.
func FuzzCheckKey(f *testing.F) {
	for _, s := range []string{"a/b", "../a", "a/..", "a//b", ".probe-x", "a/..b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if CheckKey(key) != nil {
			return
		}
		if key[0] == '/' || strings.Contains("/"+key+"/", "/../") || strings.ContainsAny(key, "\x00\\~") {
			t.Fatalf("%q is taken", key)
		}
		for i := range key {
			if err := CheckPrefix(key[:i]); err != nil {
				t.Fatalf("%q is a key, and its prefix is refused: %v", key, err)
			}
		}
	})
}
