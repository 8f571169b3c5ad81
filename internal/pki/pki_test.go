package pki

import (
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/replica"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func initDir(t *testing.T, nodes ...replica.NodeName) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pki")
	if err := Init(dir, nodes, time.Now()); err != nil {
		t.Fatal(err)
	}
	return dir
}

func paths(dir string, node replica.NodeName) (ca, cert, key, gossip string) {
	return filepath.Join(dir, caFile), filepath.Join(dir, string(node)+".pem"), filepath.Join(dir, string(node)+"-key.pem"), filepath.Join(dir, gossipFile)
}

func mustLoad(t *testing.T, dir string, node replica.NodeName) *Identity {
	t.Helper()
	id, err := Load(paths(dir, node))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// wantError fails unless err is there and says each of the texts: a message without file or remedy is a bug.
func wantError(t *testing.T, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one with %q", texts)
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error %q lacks %q", err, s)
		}
	}
}

func TestInitLoad(t *testing.T) {
	dir := initDir(t, "a", "b")
	a, b := mustLoad(t, dir, "a"), mustLoad(t, dir, "b")
	if a.Node != "a" || b.Node != "b" || a.Cluster != b.Cluster || a.Cluster == (replica.ClusterID{}) {
		t.Errorf("identities %v %q, %v %q", a.Cluster, a.Node, b.Cluster, b.Node)
	}
	if len(a.GossipKeys()) != 1 || len(a.GossipKeys()[0]) != 32 || string(a.GossipKeys()[0]) != string(b.GossipKeys()[0]) {
		t.Errorf("gossip keys %x, %x", a.GossipKeys(), b.GossipKeys())
	}
	text, err := os.ReadFile(filepath.Join(dir, clusterFile))
	if err != nil || strings.TrimSpace(string(text)) != a.Cluster.String() {
		t.Errorf("%s holds %q, %v; want %v", clusterFile, text, err, a.Cluster)
	}
	for name, want := range map[string]os.FileMode{".": 0o700, caKeyFile: 0o600, gossipFile: 0o600, "a-key.pem": 0o600} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v; want %04o", name, st.Mode(), err, want)
		}
	}
}

// TestUndoingGoesByTheFolder: what is undone is what was written, though another folder with files of those names lies at the path by then.
func TestUndoingGoesByTheFolder(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir, moved := filepath.Join(base, "pki"), filepath.Join(base, "moved")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := errors.Join(os.Rename(dir, moved), os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, caFile), []byte("another's"), 0o600), os.WriteFile(filepath.Join(moved, "there"), []byte("before"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := writeInto(root, []file{{caFile, 0o644, []byte("new")}, {"there", 0o600, nil}}); err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("%v", err)
	}
	for path, want := range map[string]string{filepath.Join(dir, caFile): "another's", filepath.Join(moved, "there"): "before", filepath.Join(moved, caFile): ""} {
		if b, err := os.ReadFile(path); string(b) != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v, want %q", path, b, err, want)
		}
	}
}

func TestInitRefusesToOverwrite(t *testing.T) {
	dir := initDir(t, "a")
	before := mustLoad(t, dir, "a")
	wantError(t, Init(dir, []replica.NodeName{"b"}, time.Now()), caFile, "not overwritten")
	if after := mustLoad(t, dir, "a"); after.Cluster != before.Cluster {
		t.Error("the refused Init changed the cluster")
	}
	if _, err := os.Stat(filepath.Join(dir, "b.pem")); err == nil {
		t.Error("the refused Init left b.pem behind")
	}
}

func TestAddNodes(t *testing.T) {
	dir := initDir(t, "a")
	if err := AddNodes(dir, []replica.NodeName{"b"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if a, b := mustLoad(t, dir, "a"), mustLoad(t, dir, "b"); a.Cluster != b.Cluster {
		t.Errorf("clusters %v, %v", a.Cluster, b.Cluster)
	}
	wantError(t, AddNodes(dir, []replica.NodeName{"c", "b"}, time.Now()), "b.pem", "not overwritten")
	if _, err := os.Stat(filepath.Join(dir, "c.pem")); err == nil {
		t.Error("a refused AddNodes left c.pem behind")
	}
	wantError(t, AddNodes(dir, []replica.NodeName{"../x"}, time.Now()), "../x")
}

func TestLoadRefuses(t *testing.T) {
	dir, other := initDir(t, "a", "b"), initDir(t, "a")
	ca, cert, key, gossip := paths(dir, "a")
	otherCA, otherCert, otherKey, _ := paths(other, "a")
	_, _, keyB, _ := paths(dir, "b")
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("no credential"), 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		files [4]string
		texts []string
	}{
		"missing CA":     {[4]string{"/nonexistent/ca.pem", cert, key, gossip}, []string{"/nonexistent/ca.pem", "replicad pki init"}},
		"missing cert":   {[4]string{ca, cert + "x", key, gossip}, []string{cert + "x", "replicad pki"}},
		"missing key":    {[4]string{ca, cert, key + "x", gossip}, []string{key + "x", "replicad pki"}},
		"missing gossip": {[4]string{ca, cert, key, gossip + "x"}, []string{gossip + "x", "replicad pki"}},
		"key mismatch":   {[4]string{ca, cert, keyB, gossip}, []string{cert, keyB, "same node"}},
		"wrong cluster":  {[4]string{otherCA, cert, key, gossip}, []string{cert, otherCA, "cluster"}},
		"wrong CA":       {[4]string{ca, otherCert, otherKey, gossip}, []string{otherCert, ca, "cluster"}},
		"CA is a node":   {[4]string{cert, cert, key, gossip}, []string{cert, "not a CA"}},
		"node is the CA": {[4]string{ca, ca, filepath.Join(dir, caKeyFile), gossip}, []string{ca, "not a node's"}},
		"bad CA":         {[4]string{bad, cert, key, gossip}, []string{bad, "PEM"}},
		"bad cert":       {[4]string{ca, bad, key, gossip}, []string{bad}},
		"bad gossip key": {[4]string{ca, cert, key, bad}, []string{bad, "64 hex digits"}},
		"a directory":    {[4]string{dir, cert, key, gossip}, []string{dir, "regular file"}},
		"a named pipe":   {[4]string{pipe, cert, pipe, pipe}, []string{pipe, "regular file"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(c.files[0], c.files[1], c.files[2], c.files[3])
			wantError(t, err, c.texts...)
		})
	}
}

func TestLoadRefusesLaxModes(t *testing.T) {
	dir := initDir(t, "a")
	for _, name := range []string{"a-key.pem", gossipFile} {
		path := filepath.Join(dir, name)
		if err := os.Chmod(path, 0o640); err != nil {
			t.Fatal(err)
		}
		_, err := Load(paths(dir, "a"))
		wantError(t, err, path, "0640", "chmod 600")
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mustLoad(t, dir, "a")
}

// Whoever may change a certificate decides whom this node trusts, and whoever owns a file may change it, whatever its mode is.
func TestLoadRefusesWhatOthersMayChange(t *testing.T) {
	dir := initDir(t, "a")
	for _, name := range []string{"a.pem", caFile} {
		path := filepath.Join(dir, name)
		for _, mode := range []os.FileMode{0o664, 0o646} {
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
			_, err := Load(paths(dir, "a"))
			wantError(t, err, path, fmt.Sprintf("%04o", mode), "chmod go-w")
		}
		if err := os.Chmod(path, 0o444); err != nil {
			t.Fatal(err)
		}
	}
	mustLoad(t, dir, "a")
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file to another user")
	}
	for _, name := range []string{"a.pem", "a-key.pem", caFile, gossipFile} {
		path := filepath.Join(dir, name)
		if err := os.Chown(path, 1002, -1); err != nil {
			t.Fatal(err)
		}
		_, err := Load(paths(dir, "a"))
		wantError(t, err, path, "belongs to user 1002", "runs as user 0", "chown")
		if err := os.Chown(path, 0, -1); err != nil {
			t.Fatal(err)
		}
	}
	mustLoad(t, dir, "a")
}

func TestLoadChecksTime(t *testing.T) {
	dir := initDir(t, "a")
	ca, cert, key, gossip := paths(dir, "a")
	_, err := load(ca, cert, key, gossip, time.Now().Add(nodeLife+time.Hour))
	wantError(t, err, cert, "expired", "replicad pki renew")
	_, err = load(ca, cert, key, gossip, time.Now().Add(caLife+time.Hour))
	wantError(t, err, ca, "expired")
	_, err = load(ca, cert, key, gossip, time.Now().Add(-2*skew))
	wantError(t, err, cert, "clock")
}

// handshake runs one connection between the two configurations and returns each end's error.
func handshake(t *testing.T, client, server *tls.Config) (seen tls.ConnectionState, clientErr, serverErr error) {
	t.Helper()
	c, s := net.Pipe()
	defer c.Close()
	defer s.Close()
	done := make(chan error, 1)
	tc, ts := tls.Client(c, client), tls.Server(s, server)
	go func() {
		err := ts.Handshake()
		if err == nil {
			_, err = ts.Write([]byte{1})
		}
		s.Close()
		done <- err
	}()
	clientErr = tc.Handshake()
	if clientErr == nil { // in TLS 1.3 a server's refusal of the client's certificate arrives after the client's handshake
		_, clientErr = io.ReadFull(tc, make([]byte, 1))
	}
	c.Close()
	serverErr = <-done
	return ts.ConnectionState(), clientErr, serverErr
}

func TestHandshake(t *testing.T) {
	dir := initDir(t, "a", "b")
	a, b := mustLoad(t, dir, "a"), mustLoad(t, dir, "b")
	foreign := mustLoad(t, initDir(t, "a"), "a")

	cs, cErr, sErr := handshake(t, a.ClientTLS("b", "p"), b.ServerTLS("p"))
	if cErr != nil || sErr != nil {
		t.Fatalf("same cluster: client %v, server %v", cErr, sErr)
	}
	if cluster, name, err := PeerName(cs); cluster != a.Cluster || name != "a" || err != nil {
		t.Errorf("the server sees %v %q %v", cluster, name, err)
	}
	if _, cErr, _ := handshake(t, a.ClientTLS("", "p"), b.ServerTLS("p")); cErr != nil {
		t.Errorf("any node wanted: %v", cErr)
	}

	_, cErr, sErr = handshake(t, a.ClientTLS("a", "p"), b.ServerTLS("p"))
	wantError(t, cErr, `node "b"`, `want "a"`)
	wantError(t, sErr)

	_, cErr, sErr = handshake(t, foreign.ClientTLS("b", "p"), b.ServerTLS("p"))
	wantError(t, cErr, b.Cluster.String(), foreign.Cluster.String())
	wantError(t, sErr)
	if !errors.Is(cErr, ErrForeign) {
		t.Errorf("%v is not ErrForeign", cErr)
	}

	// A client that does not mind who the server is, as an attacker would.
	reckless := foreign.ClientTLS("b", "p")
	reckless.VerifyConnection = nil
	_, cErr, sErr = handshake(t, reckless, b.ServerTLS("p"))
	wantError(t, cErr)
	wantError(t, sErr, "unknown authority")

	reckless.GetClientCertificate = nil
	_, cErr, sErr = handshake(t, reckless, b.ServerTLS("p"))
	wantError(t, cErr, "certificate required")
	wantError(t, sErr, "certificate")

	old := a.ClientTLS("b", "p")
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	_, _, sErr = handshake(t, old, b.ServerTLS("p"))
	wantError(t, sErr, "version")
}

// TestForgedCluster: a certificate that the cluster's own CA signed for another cluster's name is refused too.
func TestForgedCluster(t *testing.T) {
	now := time.Now()
	dir := initDir(t, "a")
	a := mustLoad(t, dir, "a")
	ca, err := readCA(filepath.Join(dir, caFile), now)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := os.ReadFile(filepath.Join(dir, caKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	caPEM, err := os.ReadFile(filepath.Join(dir, caFile))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(caPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	files, err := nodeFiles(authority{ca, pair.PrivateKey.(crypto.Signer)}, replica.ClusterID{1}, []replica.NodeName{"a"}, now, first)
	if err != nil {
		t.Fatal(err)
	}
	forged := *a
	pair, err = tls.X509KeyPair(files[0].data, files[1].data)
	forged.cert = new(atomic.Pointer[tls.Certificate])
	forged.cert.Store(&pair)
	if err != nil {
		t.Fatal(err)
	}
	_, cErr, _ := handshake(t, a.ClientTLS("a", "p"), forged.ServerTLS("p"))
	wantError(t, cErr, replica.ClusterID{1}.String())
	_, _, sErr := handshake(t, forged.ClientTLS("a", "p"), a.ServerTLS("p"))
	wantError(t, sErr, replica.ClusterID{1}.String())
}

func FuzzParseName(f *testing.F) {
	for _, s := range []string{
		nodeURI(replica.ClusterID{1, 2}, "n-1").String(), caURI(replica.ClusterID{1}).String(), "", "replicad://", "replicad://x/node/",
		"replicad://01020000-0000-0000-0000-000000000000/node/a/b", "replicad://01020000-0000-0000-0000-000000000000/node/%61",
		"replicad://01020000000000000000000000000000/node/a", "replicad://0102000A-0000-0000-0000-000000000000/node/a",
		"https://01020000-0000-0000-0000-000000000000/node/a", "replicad://u@01020000-0000-0000-0000-000000000000/node/a",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		cluster, name, err := parseName(s)
		if err != nil {
			return
		}
		if err := replica.CheckName(string(name)); err != nil {
			t.Errorf("%q gives the name %q: %v", s, name, err)
		}
		if again := nodeURI(cluster, name).String(); again != s {
			t.Errorf("%q is written %q: two spellings of one identity", s, again)
		}
	})
}
