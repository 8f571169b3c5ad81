package main

import (
	"strings"
	"testing"

	"github.com/replicad/replicad/replica"
)

// TestAKeyIsNotShown: one that is given where its file belongs comes into no error, by flag and by environment.
func TestAKeyIsNotShown(t *testing.T) {
	const key = "age-secret-key-1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq"
	for _, k := range []*keyring{{file: key}, {}} {
		t.Setenv(identityEnv, key)
		if _, err := k.identities(); err == nil || strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), "not shown") {
			t.Errorf("%v", err)
		}
	}
}

// FuzzWhere: what is taken names a root that is a part of the argument, and a generation within bounds; what names none is refused as a wrong argument.
func FuzzWhere(f *testing.F) {
	for _, s := range []string{"/ckpt/lm@1200", "s3://b/lm@1200.e2", "/x@last", "/x@best", "az://c/lm@best:loss:max", "/a@b/c", "/x@", "/x@-1", "/x@1.e", "@5", "/x@274877906943.e16777215", "/x@274877906944", "/x@best:", "/x@best::max", "/x@1@2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		root, at, err := parseWhere(arg)
		if err != nil {
			if at != nil || root != "" || exitCode(t.Context(), err) != exitUsage {
				t.Fatalf("%q: %q, %+v beside %v", arg, root, at, err)
			}
			return
		}
		if !strings.HasPrefix(arg, root) || at == nil && root != arg && arg != root+"@last" {
			t.Fatalf("%q: root %q, %+v", arg, root, at)
		}
		if at == nil {
			return
		}
		if at.Step > replica.MaxStep || at.Epoch > replica.MaxEpoch || at.byHint && at.best != "" || at.epoch && (at.byHint || at.best != "") {
			t.Fatalf("%q: %+v", arg, at)
		}
	})
}
