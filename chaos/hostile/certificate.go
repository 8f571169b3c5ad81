package hostile

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/replicad/replicad/chaos/cluster"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/replica"
)

func foreignCA(ctx context.Context, a *attack) error {
	parent, err := os.MkdirTemp(a.Dir, "foreign-")
	if err != nil {
		return err
	}
	dir := filepath.Join(parent, "pki")
	if err := pki.Init(dir, []replica.NodeName{mallory}, time.Now()); err != nil {
		return err
	}
	files := cluster.Identity(dir, mallory)
	cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return err
	}
	return a.refusedWith(ctx, &cert)
}

// expired makes the certificate that mallory would have had: only who has the CA's key could.
func expired(ctx context.Context, a *attack) error {
	old, err := tls.LoadX509KeyPair(a.own.PKI.Cert, a.own.PKI.Key)
	if err != nil {
		return err
	}
	ca, err := tls.LoadX509KeyPair(a.own.PKI.CA, filepath.Join(filepath.Dir(a.own.PKI.CA), "ca-key.pem"))
	if err != nil {
		return err
	}
	caCert, err := x509.ParseCertificate(ca.Certificate[0])
	if err != nil {
		return err
	}
	leaf, err := x509.ParseCertificate(old.Certificate[0])
	if err != nil {
		return err
	}
	leaf.NotBefore, leaf.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, caCert, key.Public(), ca.PrivateKey.(crypto.Signer))
	if err != nil {
		return fmt.Errorf("an expired certificate: %w", err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pkcs, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	cert, err := tls.X509KeyPair(text, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs}))
	if err != nil {
		return err
	}
	return a.refusedWith(ctx, &cert)
}
