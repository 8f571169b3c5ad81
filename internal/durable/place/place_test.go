package place

import (
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/replica"
)

// TestAKeyIsNotShown: one that is given where its file, or a recipient, belongs comes into no error, by flag and by environment, in whatever form.
func TestAKeyIsNotShown(t *testing.T) {
	const key = "AGE-SECRET-KEY-1QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ"
	shown := func(err error, from string) {
		t.Helper()
		if err == nil || strings.Contains(strings.ToUpper(err.Error()), "QQQQ") || !strings.Contains(err.Error(), "not shown") {
			t.Errorf("%s: %v", from, err)
		}
	}
	for _, form := range []string{
		key, strings.ToLower(key), " " + key, "'" + key + "'", "./" + key, "key=" + key, "file:" + key, strings.Replace(key, "-1", "-PQ-1", 1),
		"# created: 2026-11-29T10:00:00Z\n# public key: age1qqq\n" + key,
	} {
		_, err := (&Keyring{File: form}).Identities()
		shown(err, "--identity "+form)
		t.Setenv(IdentityVariable, form)
		_, err = (&Keyring{}).Identities()
		shown(err, IdentityVariable+"="+form)
		_, err = sealed.New([]string{form}, nil)
		shown(err, "recipient "+form)
	}
}

// FuzzWhere: what is taken names a root that is a part of the argument, and a generation within bounds; what names none is refused as a wrong argument.
func FuzzWhere(f *testing.F) {
	for _, s := range []string{"/ckpt/lm@1200", "s3://b/lm@1200.e2", "/x@last", "/x@best", "az://c/lm@best:loss:max", "/a@b/c", "/x@", "/x@-1", "/x@1.e", "@5", "/x@274877906943.e16777215", "/x@274877906944", "/x@best:", "/x@best::max", "/x@1@2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		root, at, err := Parse(arg)
		if err != nil {
			if at != nil || root != "" || !usage.Is(err) {
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
		if at.Step > replica.MaxStep || at.Epoch > replica.MaxEpoch || at.byHint && at.Best != "" || at.epoch && (at.byHint || at.Best != "") {
			t.Fatalf("%q: %+v", arg, at)
		}
	})
}
