package bench

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseSample(t *testing.T) {
	s, err := parseSample([]byte(`{"values":[1,2.5],"limits":[3e-1,4]}`+"\n"), 2)
	if err != nil || s.Values[1] != 2.5 || s.Limits[0] != 0.3 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, line := range []string{"", "[]", `{"values":[1],"limits":[1,2]}`, `{"values":[1,2],"limits":[]}`, `{"values":[1,2],"limits":[1,"x"]}`, `{"values":[1,2],"limits":[1,2],"n":2}`} {
		if _, err := parseSample([]byte(line), 2); err == nil {
			t.Errorf("%q was taken", line)
		}
	}
}

// What the C program is asked for divides into its regions; without it the figures are left out, and one that fails is told with what it said.
func TestInC(t *testing.T) {
	for _, quick := range []bool{false, true} {
		for _, c := range captures(quick) {
			if c.bytes()%uint64(8*c.regions) != 0 || c.regions%c.threads != 0 || c.bytes() < uint64(c.mib)*mib*99/100 {
				t.Errorf("%s: %d bytes", c.name(), c.bytes())
			}
		}
	}
	r := &runner{rounds: 2, opt: Options{CBench: filepath.Join(t.TempDir(), "none")}}
	if _, err := r.inC(t.Context(), "step", "0"); !errors.As(err, new(leftOut)) || !strings.Contains(err.Error(), "make bench") {
		t.Errorf("%v", err)
	}
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n[ \"$*\" = 'step 2 0' ] || { echo no such >&2; exit 2; }\necho '{\"values\":[1,2],\"limits\":[3,4]}'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	r.opt.CBench = script
	if s, err := r.inC(t.Context(), "step", "0"); err != nil || len(s.Limits) != 2 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := r.inC(t.Context(), "fly"); err == nil || !strings.Contains(err.Error(), "no such") {
		t.Errorf("%v", err)
	}
}
