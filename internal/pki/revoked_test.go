package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

func leafOf(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(b)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Epochs of a name rise whatever the clock does, and what was revoked up to is passed.
func TestEpochsRise(t *testing.T) {
	dir, now := t.TempDir(), time.Unix(1_800_000_000, 0)
	if err := Init(dir, []replica.NodeName{"a"}, now); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		at          time.Time
		after, want replica.CertEpoch
	}{{now, 0, 1_800_000_001}, {now.Add(-time.Hour), 0, 1_800_000_002}, {now.Add(time.Minute), 0, 1_800_000_060}, {now, 1_800_086_399, 1_800_086_400}} {
		if err := Renew(dir, []replica.NodeName{"a"}, step.at, step.after); err != nil {
			t.Fatal(err)
		}
		if e, err := epochOf(leafOf(t, dir, "a.pem")); e != step.want || err != nil {
			t.Errorf("at %v after %d: epoch %d, %v; want %d", step.at, step.after, e, err, step.want)
		}
	}
	if err := AddOperator(dir, "eve", now, 1_800_086_399); err != nil {
		t.Fatal(err)
	}
	if e, err := epochOf(leafOf(t, dir, "operator-eve.pem")); e != 1_800_086_400 || err != nil {
		t.Errorf("operator: %d, %v", e, err)
	}
	for _, bad := range []string{"0", "01", "-1", "+1", "x", "99999999999999999999"} {
		c := leafOf(t, dir, "a.pem")
		c.Subject.SerialNumber = bad
		if e, err := epochOf(c); err == nil {
			t.Errorf("%q is epoch %d", bad, e)
		}
	}
	c := leafOf(t, dir, "a.pem")
	c.Subject.SerialNumber = "" // of a release before
	if e, err := epochOf(c); e != 0 || err != nil {
		t.Errorf("without one: %d, %v", e, err)
	}
}

// No certificate is issued that a revocation would not reach: what a slip of the keyboard or a wrong clock asks for changes no file.
func TestEpochsFarAheadAreNotIssued(t *testing.T) {
	dir, now := t.TempDir(), time.Unix(1_800_000_000, 0)
	if err := Init(dir, []replica.NodeName{"a"}, now); err != nil {
		t.Fatal(err)
	}
	before := leafOf(t, dir, "a.pem")
	for _, after := range []replica.CertEpoch{1_800_086_400, 18_000_000_000, 1 << 40, 1 << 62, 1<<64 - 1} {
		wantError(t, Renew(dir, []replica.NodeName{"a"}, now, after), `node "a"`, fmt.Sprint(after), "--after", "clock")
		wantError(t, AddOperator(dir, "eve", now, after), `operator "eve"`, fmt.Sprint(after), "--after", "clock")
	}
	wantError(t, Renew(dir, []replica.NodeName{"a"}, now.Add(-48*time.Hour), 0), "1800000000", "clock") // of the file that is replaced
	if !leafOf(t, dir, "a.pem").Equal(before) {
		t.Error("the certificate was replaced")
	}
	if _, err := os.Stat(filepath.Join(dir, "operator-eve.pem")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an operator's was written: %v", err)
	}
}

// issueFar makes a certificate as releases did whose epoch nothing bounded.
func issueFar(t *testing.T, dir, file, subject string, uri func(replica.ClusterID) *url.URL, epoch replica.CertEpoch, usage ...x509.ExtKeyUsage) {
	t.Helper()
	ca, cluster, err := openCA(dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	files, err := ca.issue(file, subject, uri(cluster), time.Now(), epoch, usage...)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(dir, f.name), f.data, f.mode); err != nil {
			t.Fatal(err)
		}
	}
}

// A certificate whose epoch lies beyond what a revocation reaches is refused wherever it turns up, though the CA signed it; a renewal replaces it.
func TestEpochsFarAheadAreRefused(t *testing.T) {
	dir := initDir(t, "a", "b")
	a, b := mustLoad(t, dir, "a"), mustLoad(t, dir, "b")
	far := replica.CertEpoch(time.Now().Add(2 * epochAhead).Unix())
	uri := func(c replica.ClusterID) *url.URL { return nodeURI(c, "b") }
	for _, epoch := range []replica.CertEpoch{far, 17_954_582_951, 1<<62 + 1} {
		issueFar(t, dir, "b", "b", uri, epoch, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
		_, err := Load(filepath.Join(dir, "ca.pem"), filepath.Join(dir, "b.pem"), filepath.Join(dir, "b-key.pem"), filepath.Join(dir, "gossip.key"))
		wantError(t, err, "b.pem", fmt.Sprint(epoch), "pki renew")
		if changed, err := b.Reload(time.Now()); changed || err == nil {
			t.Errorf("epoch %d: a running daemon takes it: %v, %v", epoch, changed, err)
		}
		err = a.CheckRevoked(tls.ConnectionState{PeerCertificates: []*x509.Certificate{leafOf(t, dir, "b.pem")}})
		wantError(t, err, fmt.Sprint(epoch), "pki renew")
		if len(err.Error()) > 256 || a.Newest(replica.NodeRole, "b") != 0 {
			t.Errorf("%d bytes, seen %d: %v", len(err.Error()), a.Newest(replica.NodeRole, "b"), err)
		}
		if err := Renew(dir, []replica.NodeName{"b"}, time.Now(), 0); err != nil {
			t.Fatal(err)
		}
		if b := mustLoad(t, dir, "b"); b.Epoch() >= far {
			t.Errorf("renewed: epoch %d", b.Epoch())
		}
	}
	issueFar(t, dir, "operator-eve", "operator eve", func(c replica.ClusterID) *url.URL { return operatorURI(c, "eve") }, far, x509.ExtKeyUsageClientAuth)
	certificate, signature := mustSign(t, mustLoadOperator(t, dir, "operator-eve.pem"), "drain b")
	_, _, err := a.CheckOperator(certificate, []byte("drain b"), signature, time.Now())
	wantError(t, err, fmt.Sprint(far), "pki operator")
}

// What is revoked is a name's certificates up to an epoch: neither a later one, nor another name's, nor those of the other role.
func TestRevokedUpToAnEpoch(t *testing.T) {
	dir := initDir(t, "a", "b")
	a, b := mustLoad(t, dir, "a"), mustLoad(t, dir, "b")
	peer := func(id *Identity) tls.ConnectionState {
		return tls.ConnectionState{PeerCertificates: []*x509.Certificate{id.cert.Load().Leaf}}
	}
	revoke := func(role replica.Role, name string, e replica.CertEpoch) bool {
		return a.Revoke(replica.Revocation{Role: role, Name: name, Epoch: e})
	}
	if err := a.CheckRevoked(peer(b)); err != nil || a.Newest(replica.NodeRole, "b") != b.Epoch() {
		t.Errorf("%v; seen %d", err, a.Newest(replica.NodeRole, "b"))
	}
	if !revoke(replica.OperatorRole, "b", b.Epoch()) || !revoke(replica.NodeRole, "c", b.Epoch()) || !revoke(replica.NodeRole, "b", b.Epoch()-1) {
		t.Error("no news")
	}
	if err := a.CheckRevoked(peer(b)); err != nil {
		t.Error(err)
	}
	if !revoke(replica.NodeRole, "b", b.Epoch()) || revoke(replica.NodeRole, "b", b.Epoch()) || revoke(replica.NodeRole, "b", 1) {
		t.Error("news are what goes further")
	}
	err := a.CheckRevoked(peer(b))
	wantError(t, err, "node b", "pki renew b --after")
	if !errors.Is(err, ErrRevoked) || len(err.Error()) > 256 {
		t.Errorf("%d bytes: %v", len(err.Error()), err)
	}
	if list := a.Revoked(); len(list) != 3 || list[0].Name != "b" || list[0].Epoch != b.Epoch() || list[2].Role != replica.OperatorRole {
		t.Errorf("%+v", list)
	}
	longest := revokedError(replica.OperatorRole, string(make([]byte, replica.MaxNameBytes)), 1<<40, 1<<40).Error()
	if len(longest) > 320 {
		t.Errorf("%d bytes", len(longest))
	}
	if err := Renew(dir, []replica.NodeName{"b"}, time.Now(), b.Epoch()); err != nil {
		t.Fatal(err)
	}
	if changed, err := b.Reload(time.Now()); !changed || err != nil {
		t.Fatal(changed, err)
	}
	if err := a.CheckRevoked(peer(b)); err != nil {
		t.Errorf("renewed: %v", err)
	}
	if a.OwnRevoked() != nil || !revoke(replica.NodeRole, "a", a.Epoch()) || a.OwnRevoked() == nil {
		t.Error("its own")
	}
}

// An operator's signature under a revocation counts for ever, under anything else until its certificate is over or revoked.
func TestRevokedOperator(t *testing.T) {
	dir := initDir(t, "a")
	a := mustLoad(t, dir, "a")
	certificate, signature := mustSign(t, mustLoadOperator(t, dir, "operator.pem"), "revoke b")
	message := []byte("revoke b")
	name, epoch, err := a.CheckOperator(certificate, message, signature, time.Now())
	if name != "operator" || epoch == 0 || err != nil {
		t.Fatalf("%q, %d, %v", name, epoch, err)
	}
	a.Revoke(replica.Revocation{Role: replica.OperatorRole, Name: name, Epoch: epoch})
	_, _, err = a.CheckOperator(certificate, message, signature, time.Now())
	wantError(t, err, "certificate revoked", "operator operator", "pki operator operator --after")
	if name, err := a.CheckRevoker(certificate, message, signature); name != "operator" || err != nil {
		t.Errorf("what it signed before: %q, %v", name, err)
	}
	if _, err := a.CheckRevoker(certificate, []byte("revoke c"), signature); err == nil {
		t.Error("another order passes")
	}
	b := initDir(t, "a")
	if _, err := mustLoad(t, b, "a").CheckRevoker(certificate, message, signature); !errors.Is(err, ErrForeign) {
		t.Errorf("another cluster: %v", err)
	}
	node := a.cert.Load().Leaf.Raw
	if _, err := a.CheckRevoker(node, message, signature); err == nil {
		t.Error("a node's certificate revokes")
	}
}

// A gossip key is added, used and dropped, each time in a file that is whole, and a file that would cut the node off changes nothing.
func TestGossipKeysRotate(t *testing.T) {
	dir := initDir(t, "a")
	a := mustLoad(t, dir, "a")
	reload := func(want string) {
		t.Helper()
		changed, err := a.ReloadGossip()
		if got := Fingerprints(a.GossipKeys()); !changed || err != nil || got != want {
			t.Errorf("changed %v, %v: %s, want %s", changed, err, got, want)
		}
		if again, err := a.ReloadGossip(); again || err != nil {
			t.Errorf("again: %v, %v", again, err)
		}
		if st, err := os.Stat(filepath.Join(dir, "gossip.key")); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("the file: %v, %v", st.Mode(), err)
		}
	}
	old := Fingerprint(a.GossipKeys()[0])
	if err := os.WriteFile(filepath.Join(dir, "gossip.key.new"), []byte("half"), 0o644); err != nil { // of one that was killed
		t.Fatal(err)
	}
	if _, err := UseGossipKey(dir); err == nil {
		t.Error("one key is used, of one")
	}
	if _, err := DropGossipKeys(dir); err == nil {
		t.Error("the only key is dropped")
	}
	keys, err := AddGossipKey(dir)
	if err != nil || len(keys) != 2 {
		t.Fatal(keys, err)
	}
	fresh := Fingerprint(keys[1])
	if fresh == old || len(fresh) != 8 {
		t.Errorf("fingerprints %s, %s", old, fresh)
	}
	reload(old + ", " + fresh)
	if _, err := AddGossipKey(dir); err == nil {
		t.Error("a third key is added")
	}
	if _, err := UseGossipKey(dir); err != nil {
		t.Fatal(err)
	}
	reload(fresh + ", " + old)
	if _, err := DropGossipKeys(dir); err != nil {
		t.Fatal(err)
	}
	reload(fresh)

	for _, bad := range []string{"", "zz\n", string(gossipText([][]byte{a.GossipKeys()[0], a.GossipKeys()[0]})), string(gossipText([][]byte{newGossipKey()})),
		string(gossipText([][]byte{a.GossipKeys()[0], newGossipKey(), newGossipKey(), newGossipKey(), newGossipKey()}))} {
		if err := os.WriteFile(filepath.Join(dir, "gossip.key"), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if changed, err := a.ReloadGossip(); changed || err == nil || Fingerprints(a.GossipKeys()) != fresh {
			t.Errorf("%.20q: changed %v, %v", bad, changed, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*.new")); err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}
