package pki

import (
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

func mustLoadOperator(t testing.TB, dir, file string) *Operator {
	t.Helper()
	o, err := LoadOperator(filepath.Join(dir, file))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func mustSign(t testing.TB, o *Operator, message string) (certificate, signature []byte) {
	t.Helper()
	certificate, signature, err := o.Sign([]byte(message))
	if err != nil {
		t.Fatal(err)
	}
	return certificate, signature
}

func TestOperatorSigns(t *testing.T) {
	dir, now := initDir(t, "a"), time.Now()
	if err := AddOperator(dir, "eve", now, 0); err != nil {
		t.Fatal(err)
	}
	wantError(t, AddOperator(dir, "eve", now, 0), "operator-eve.pem", "not overwritten")
	wantError(t, AddOperator(dir, "../eve", now, 0), "../eve")
	a := mustLoad(t, dir, "a")
	for file, want := range map[string]string{"operator.pem": "operator", "operator-eve.pem": "eve"} {
		o := mustLoadOperator(t, dir, file)
		if o.Name != want || o.Cluster != a.Cluster {
			t.Errorf("%s is of %q of cluster %v", file, o.Name, o.Cluster)
		}
		certificate, signature := mustSign(t, o, "drain b")
		if name, _, err := a.CheckOperator(certificate, []byte("drain b"), signature, now); name != want || err != nil {
			t.Errorf("signed as %q: %v", name, err)
		}
		if st, err := os.Stat(filepath.Join(dir, file[:len(file)-len(".pem")]+"-key.pem")); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("key of %s: mode %v, %v", file, st.Mode(), err)
		}
	}
}

func TestCheckOperatorRefuses(t *testing.T) {
	now := time.Now()
	dir, other := initDir(t, "a"), initDir(t, "a")
	a, foreign := mustLoad(t, dir, "a"), mustLoad(t, other, "a")
	certificate, signature := mustSign(t, mustLoadOperator(t, dir, "operator.pem"), "drain b")
	theirs, theirSignature := mustSign(t, mustLoadOperator(t, other, "operator.pem"), "drain b")

	// Another cluster's CA names an operator of this one.
	ca, _, err := openCA(other, now)
	if err != nil {
		t.Fatal(err)
	}
	forged := t.TempDir()
	files, err := operatorFiles(ca, a.Cluster, "operator", "operator", now, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeNew(forged, files); err != nil {
		t.Fatal(err)
	}
	forgery, forgedSignature := mustSign(t, mustLoadOperator(t, forged, "operator.pem"), "drain b")

	// A node signs as if it were an operator.
	_, nodeCert, nodeKey, _ := paths(dir, "a")
	pair, err := tls.LoadX509KeyPair(nodeCert, nodeKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		certificate, signature []byte
		message                string
		at                     time.Time
		texts                  []string
	}{
		"another message":     {certificate, signature, "drain c", now, []string{"signature", "operator"}},
		"no signature":        {certificate, nil, "drain b", now, []string{"signature"}},
		"its cluster's":       {theirs, theirSignature, "drain b", now, []string{foreign.Cluster.String(), a.Cluster.String()}},
		"another CA's":        {forgery, forgedSignature, "drain b", now, []string{"unknown authority"}},
		"a node's":            {pair.Leaf.Raw, signature, "drain b", now, []string{"not an operator's"}},
		"the CA's":            {a.caOf(t, dir), signature, "drain b", now, []string{"not an operator's"}},
		"expired":             {certificate, signature, "drain b", now.Add(nodeLife + time.Hour), []string{"expired", "replicad pki operator"}},
		"not valid yet":       {certificate, signature, "drain b", now.Add(-2 * skew), []string{"not yet valid"}},
		"no certificate":      {nil, signature, "drain b", now, []string{"certificate"}},
		"a large certificate": {make([]byte, maxCertificate+1), signature, "drain b", now, []string{"at most"}},
		"a large signature":   {certificate, make([]byte, maxSignature+1), "drain b", now, []string{"at most"}},
	} {
		t.Run(name, func(t *testing.T) {
			who, _, err := a.CheckOperator(c.certificate, []byte(c.message), c.signature, c.at)
			wantError(t, err, c.texts...)
			if who != "" {
				t.Errorf("and yet it is %q", who)
			}
		})
	}
	if _, _, err := foreign.CheckOperator(certificate, []byte("drain b"), signature, now); !errors.Is(err, ErrForeign) {
		t.Errorf("%v is not ErrForeign", err)
	}
}

// caOf is the DER of the cluster's CA.
func (id *Identity) caOf(t *testing.T, dir string) []byte {
	t.Helper()
	c, err := readCA(filepath.Join(dir, caFile), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return c.Raw
}

func TestLoadOperatorRefuses(t *testing.T) {
	dir := initDir(t, "a")
	if err := AddOperator(dir, "eve", time.Now(), 0); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	load := func(file string) error { _, err := LoadOperator(at(file)); return err }
	wantError(t, load("a.pem"), "a.pem", "not an operator's", "replicad pki operator")
	wantError(t, load("operator"), "operator", "-key.pem")
	wantError(t, load("none.pem"), "none.pem")
	if CanLoadOperator(at("none.pem")) || !CanLoadOperator(at("operator.pem")) {
		t.Error("what is not there can be loaded, or what is there can't")
	}
	if err := os.Chmod(at("operator-key.pem"), 0o640); err != nil {
		t.Fatal(err)
	}
	wantError(t, load("operator.pem"), "operator-key.pem", "chmod 600")
	if err := os.Rename(at("operator-key.pem"), at("operator-eve-key.pem")); err != nil {
		t.Fatal(err)
	}
	if CanLoadOperator(at("operator.pem")) {
		t.Error("one without its key can be loaded")
	}
	wantError(t, load("operator.pem"), "operator-key.pem")
	if err := os.Chmod(at("operator-eve-key.pem"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantError(t, load("operator-eve.pem"), "operator-eve.pem", "operator-eve-key.pem")
}

// An operator is no node: its certificate is good neither for a daemon nor for a connection, in either direction.
func TestOperatorIsNoPeer(t *testing.T) {
	dir := initDir(t, "a")
	a := mustLoad(t, dir, "a")
	cert, key := filepath.Join(dir, "operator.pem"), filepath.Join(dir, "operator-key.pem")
	_, err := Load(filepath.Join(dir, caFile), cert, key, filepath.Join(dir, gossipFile))
	wantError(t, err, cert, "not a node's")
	posing := *a
	pair, err := tls.LoadX509KeyPair(cert, key)
	posing.cert = new(atomic.Pointer[tls.Certificate])
	posing.cert.Store(&pair)
	if err != nil {
		t.Fatal(err)
	}
	_, cErr, sErr := handshake(t, posing.ClientTLS("a", "p"), a.ServerTLS("p"))
	wantError(t, cErr)
	wantError(t, sErr, "not a node's")
	_, cErr, _ = handshake(t, a.ClientTLS("", "p"), posing.ServerTLS("p"))
	wantError(t, cErr, "certificate") // it serves nobody
}

// Files of two roles never overwrite each other, and a name that would have them do so is refused before anything is left.
func TestNamesThatCollide(t *testing.T) {
	for _, names := range [][]replica.NodeName{{"operator"}, {"a", "a-key"}, {"ca"}} {
		dir := filepath.Join(t.TempDir(), "pki")
		wantError(t, Init(dir, names, time.Now()), "two credentials", "another name")
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("%v leave %v behind: %v", names, left, err)
		}
	}
}

func FuzzParseOperator(f *testing.F) {
	for _, s := range []string{operatorURI(replica.ClusterID{1, 2}, "eve").String(), nodeURI(replica.ClusterID{1, 2}, "eve").String(), "", "replicad://01020000-0000-0000-0000-000000000000/operator/a/b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		cluster, name, err := parseOperator(s)
		if err != nil {
			return
		}
		if _, node, err := parseName(s); err == nil {
			t.Errorf("%q is operator %q and node %q", s, name, node)
		}
		if again := operatorURI(cluster, name).String(); again != s {
			t.Errorf("%q is written %q: two spellings of one identity", s, again)
		}
	})
}

// FuzzCheckOperator: nothing but what was signed is taken, whatever is changed.
func FuzzCheckOperator(f *testing.F) {
	dir := f.TempDir()
	if err := Init(filepath.Join(dir, "pki"), []replica.NodeName{"a"}, time.Now()); err != nil {
		f.Fatal(err)
	}
	dir = filepath.Join(dir, "pki")
	a, err := Load(paths(dir, "a"))
	if err != nil {
		f.Fatal(err)
	}
	certificate, signature := mustSign(f, mustLoadOperator(f, dir, "operator.pem"), "drain b")
	f.Add(certificate, []byte("drain b"), signature)
	f.Fuzz(func(t *testing.T, c, message, s []byte) {
		name, _, err := a.CheckOperator(c, message, s, time.Now())
		if err == nil && (name != "operator" || string(message) != "drain b") {
			t.Errorf("%q signed %q", name, message)
		}
	})
}
