package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestHelpBeginsWithFewFlags: --help of a launcher has a dozen flags, and --help --all those that it always had.
func TestHelpBeginsWithFewFlags(t *testing.T) {
	listed := func(args ...string) (names []string) {
		code, out, _ := try(t, args...)
		if code != 0 {
			t.Fatalf("%v: code %d: %s", args, code, out)
		}
		for _, m := range regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z-]+)`).FindAllStringSubmatch(out, -1) {
			names = append(names, m[1])
		}
		return names
	}
	for _, verb := range []string{"run", "exec"} {
		few, all := listed(verb, "--help"), listed(verb, "--help", "--all")
		if len(few) > 12 || len(few) < 8 {
			t.Errorf("%s --help has %d flags: %v", verb, len(few), few)
		}
		if len(all) < 20 {
			t.Errorf("%s --help --all has %d flags: %v", verb, len(all), all)
		}
		for _, name := range few {
			if !slices.Contains(all, name) {
				t.Errorf("%s --help --all does not have --%s", verb, name)
			}
		}
		if _, out, _ := try(t, verb, "--help"); !strings.Contains(out, " more flags, for rarer needs: replicad "+verb+" --help --all\n") {
			t.Errorf("%s --help does not name the others: %s", verb, out)
		}
		if code, _, text := try(t, verb, "--all", "--job", "a", "--world", "1", "--", "true"); code != exitUsage || !strings.Contains(text, "--all goes with --help") {
			t.Errorf("%s --all: code %d: %s", verb, code, text)
		}
	}
}
