package pki

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// A renewed certificate is presented from the next handshake on, by a server and by a client; one of another node is not taken.
// A renewal that was killed leaves .new files; they blocked every later one.
func TestRenewAndReload(t *testing.T) {
	dir := t.TempDir()
	if err := Init(dir, []replica.NodeName{"a", "b"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	a, b := mustLoad(t, dir, "a"), mustLoad(t, dir, "b")
	server, old := a.ServerTLS("p"), a.NotAfter()
	if changed, err := a.Reload(time.Now()); changed || err != nil {
		t.Errorf("without a change: %v, %v", changed, err)
	}
	for _, left := range []string{"a.pem.new", "a-key.pem.new"} { // of one that was killed
		if err := os.WriteFile(filepath.Join(dir, left), []byte("half"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := Renew(dir, []replica.NodeName{"a"}, time.Now().Add(48*time.Hour), 0); err != nil {
		t.Fatal(err)
	}
	if changed, err := a.Reload(time.Now().Add(48 * time.Hour)); !changed || err != nil {
		t.Fatalf("renewed: %v, %v", changed, err)
	}
	if !a.NotAfter().After(old.Add(47 * time.Hour)) {
		t.Errorf("ends %v, before it was %v", a.NotAfter(), old)
	}
	posing := *b
	posing.files.cert, posing.files.key = filepath.Join(dir, "a.pem"), filepath.Join(dir, "a-key.pem")
	_, err := posing.Reload(time.Now().Add(48 * time.Hour))
	wantError(t, err, `node "a"`, `node "b"`)
	if server.GetCertificate == nil {
		t.Fatal("the server's certificate is fixed")
	}
	if c, err := server.GetCertificate(nil); err != nil || !c.Leaf.NotAfter.Equal(a.NotAfter()) {
		t.Errorf("the server presents one that ends %v, %v", c.Leaf.NotAfter, err)
	}
	if c, err := a.ClientTLS("b", "p").GetClientCertificate(nil); err != nil || !c.Leaf.NotAfter.Equal(a.NotAfter()) {
		t.Errorf("the client presents one that ends %v, %v", c.Leaf.NotAfter, err)
	}
	wantError(t, Renew(dir, []replica.NodeName{"c"}, time.Now(), 0), `"c"`, "pki add")
	if left, err := filepath.Glob(filepath.Join(dir, "*.new")); err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
	if st, err := os.Stat(filepath.Join(dir, "a-key.pem")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the new key: %v, %v", st.Mode(), err)
	}
}

func TestExpires(t *testing.T) {
	const day = 24 * time.Hour
	now := time.Unix(1_800_000_000, 0)
	for left, want := range map[time.Duration]struct {
		says   string
		urgent bool
	}{31 * day: {"", false}, 29 * day: {"expires in 29 days", false}, 2 * day: {"expires in 2 days", true}, 5 * time.Hour: {"expires in 5 hours", true}, -time.Hour: {"has expired", true}} {
		text, urgent := Expires(now.Add(left), now)
		if urgent != want.urgent || (text == "") != (want.says == "") {
			t.Errorf("%v: %q, urgent %v", left, text, urgent)
		}
		if want.says != "" {
			wantError(t, textError(text), want.says, "pki renew")
		}
	}
}

type textError string

func (e textError) Error() string { return string(e) }
