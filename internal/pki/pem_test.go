package pki

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// pemOf is a credential file whose first block holds der, so that a fuzzer changes what is below the base64 too.
func pemOf(like, der []byte) []byte {
	if block, _ := pem.Decode(like); block != nil {
		return pem.EncodeToMemory(&pem.Block{Type: block.Type, Headers: block.Headers, Bytes: der})
	}
	return like
}

func derOf(file []byte) []byte {
	block, _ := pem.Decode(file)
	return block.Bytes
}

// FuzzPEM: whatever the credential files hold, nothing panics. A node that loads has credentials that belong together now.
func FuzzPEM(f *testing.F) {
	dir := filepath.Join(f.TempDir(), "pki")
	now := time.Now()
	if err := Init(dir, []replica.NodeName{"a"}, now); err != nil {
		f.Fatal(err)
	}
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	good := [][]byte{read(caFile), read("a.pem"), read("a-key.pem"), read(gossipFile)}
	operator := [][]byte{read("operator.pem"), read("operator-key.pem")}
	// The third argument picks the file that the fuzzer's bytes replace. The fourth tells whether they are DER or the whole file.
	for i, b := range good[:3] {
		f.Add(derOf(b), uint8(i), true)
		f.Add(b, uint8(i), false)
		f.Add(append(bytes.Clone(b), good[0]...), uint8(i), false)
	}
	f.Add(good[3], uint8(3), false)
	old := filepath.Join(f.TempDir(), "pki") // expired, and of another cluster
	if err := Init(old, []replica.NodeName{"a"}, now.AddDate(-30, 0, 0)); err != nil {
		f.Fatal(err)
	}
	for i, name := range []string{caFile, "a.pem", "a-key.pem"} {
		b, err := os.ReadFile(filepath.Join(old, name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(derOf(b), uint8(i), true)
	}
	for i, b := range operator {
		f.Add(derOf(b), uint8(4+i), true)
		f.Add(b, uint8(4+i), false)
	}
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nProc-Type: 4,ENCRYPTED\n\n-----END CERTIFICATE-----\n"), uint8(1), false)
	names := files{ca: "ca.pem", cert: "a.pem", key: "a-key.pem"}
	f.Fuzz(func(t *testing.T, b []byte, which uint8, der bool) {
		given := append(append([][]byte(nil), good...), operator...)
		which %= uint8(len(given))
		if der {
			b = pemOf(given[which], b)
		}
		given[which] = b
		if o, err := parseOperatorPEM("operator.pem", "operator-key.pem", given[4], given[5]); err == nil {
			if _, _, err := o.Sign([]byte("drain b")); err != nil || replica.CheckName(o.Name) != nil {
				t.Errorf("operator %q loads and can't sign: %v", o.Name, err)
			}
		}
		if keys, err := parseGossipKeys("gossip.key", given[3]); err == nil {
			if again, err := parseGossipKeys("gossip.key", gossipText(keys)); err != nil || !slices.EqualFunc(again, keys, bytes.Equal) {
				t.Errorf("%d gossip keys are written as %d: %v", len(keys), len(again), err)
			}
		}
		id, err := parse(names, given[0], given[1], given[2], now)
		if err != nil {
			if id != nil {
				t.Errorf("%+v beside an error", id)
			}
			return
		}
		if err := replica.CheckName(string(id.Node)); err != nil || now.After(id.NotAfter()) {
			t.Errorf("node %q loads, its certificate good until %v: %v", id.Node, id.NotAfter(), err)
		}
		if _, err := id.cert.Load().Leaf.Verify(x509.VerifyOptions{Roots: id.roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
			t.Errorf("node %q loads, and nobody believes it: %v", id.Node, err)
		}
	})
}
