package endpoint

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// TestAHandshakeIsShort: a client that says who it is with a chain of certificates as long as TLS lets it be is cut off at shakingBytes, before it has
// sent the chain, and no larger buffer than that is made for it.
func TestAHandshakeIsShort(t *testing.T) {
	c := newCluster(t, "a", "b")
	near, far := net.Pipe()
	defer near.Close()
	_ = near.SetDeadline(time.Now().Add(patience))
	_ = far.SetDeadline(time.Now().Add(patience))
	ended := make(chan error, 1)
	go func() {
		config := c.identity("b").ClientTLS("a", string(Bulk))
		own := config.GetClientCertificate
		config.GetClientCertificate = func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			cert, err := own(r)
			if err != nil {
				return nil, err
			}
			long := *cert
			long.Certificate = append(bytesOf(cert.Certificate), make([]byte, 200<<10))
			return &long, nil
		}
		ended <- tls.Client(far, config).Handshake()
		far.Close()
	}()
	records := newRecordConn(near)
	err := tls.Server(records, c.identity("a").ServerTLS(string(Bulk))).Handshake()
	if err == nil || !strings.Contains(err.Error(), "a handshake of more than") {
		t.Errorf("the server says %v", err)
	}
	if records.unknown != 0 || records.r.Size() > shakingBytes {
		t.Errorf("%d bytes more would have been read, with a buffer of %d", records.unknown, records.r.Size())
	}
	near.Close()
	if err := <-ended; err == nil {
		t.Error("the client's handshake succeeded")
	}
}

func bytesOf(chain [][]byte) [][]byte { return append([][]byte(nil), chain...) }

// TestWhatCameAheadIsRead: what came with the last bytes of a handshake is there once the other end is known, and so is what comes later.
func TestWhatCameAheadIsRead(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<13)
	go func() {
		_, _ = far.Write(want)
		far.Close()
	}()
	records := newRecordConn(near)
	records.exact = false
	first := make([]byte, 3)
	if _, err := io.ReadFull(records, first); err != nil {
		t.Fatal(err)
	}
	records.known()
	rest, err := io.ReadAll(records)
	if err != nil || !bytes.Equal(append(first, rest...), want) {
		t.Errorf("%d of %d bytes: %v", len(rest)+len(first), len(want), err)
	}
}
