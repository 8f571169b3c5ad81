package s3

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"

	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/durable/storetest"
)

// saying is a server that says another checksum of what was uploaded: in the answer to the completion, and in those to HEAD and GET. flip: its answers to GET have
// another byte.
func saying(t *testing.T, srv *storetest.Server, sum string, flip bool, reads *int) *httptest.Server {
	t.Helper()
	to, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host
	}, Transport: transport}
	proxy.ModifyResponse = func(resp *http.Response) error {
		r := resp.Request
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		switch {
		case r.Method == http.MethodPost && r.URL.Query().Has("uploadId"):
			b = bytes.Replace(b, []byte("</CompleteMultipartUploadResult>"), []byte("<ChecksumSHA256>"+sum+"</ChecksumSHA256></CompleteMultipartUploadResult>"), 1)
			resp.Header.Set("Content-Length", fmt.Sprint(len(b)))
			resp.ContentLength = int64(len(b))
		case r.Method == http.MethodGet || r.Method == http.MethodHead:
			resp.Header.Set(shaHeader, sum)
			if r.Method == http.MethodGet {
				*reads++
			}
			if flip && len(b) > 0 {
				b[0] ^= 1
			}
		}
		resp.Body = io.NopCloser(bytes.NewReader(b))
		return nil
	}
	s := httptest.NewServer(proxy)
	t.Cleanup(func() { s.Close(); transport.CloseIdleConnections() })
	return s
}

// TestAnotherChecksumIsADoubt: the store's own checksum of an upload is compared with that of its parts and that of the whole. Where it is neither, the bytes decide.
func TestAnotherChecksumIsADoubt(t *testing.T) {
	srv := storetest.Start(t)
	text := bytes.Repeat([]byte("replicad"), 100)
	whole := sha256.Sum256(text)
	parts := sha256.Sum256(whole[:])
	text64 := func(d [32]byte) string { return base64.StdEncoding.EncodeToString(d[:]) }
	none := base64.StdEncoding.EncodeToString(make([]byte, 32))
	for _, c := range []struct {
		what, sum string
		flip      bool
		reads     bool
		err       error
	}{
		{"of the parts, said to be", text64(parts) + "-1", false, false, nil},
		{"of the parts, not said to be", text64(parts), false, false, nil},
		{"of the whole", text64(whole), false, false, nil},
		{"another", none, false, true, nil},
		{"another, of parts", none + "-1", false, true, nil},
		{"another, and other bytes", none, true, true, store.ErrCorrupt},
	} {
		t.Run(c.what, func(t *testing.T) {
			reads := 0
			proxy := saying(t, srv, c.sum, c.flip, &reads)
			s := client(t, srv, fmt.Sprintf("sums-%x", sha256.Sum256([]byte(c.what))), func(settings *Settings) { settings.Endpoint = proxy.URL })
			u, err := s.Upload(t.Context(), "k", int64(len(text)))
			if err != nil {
				t.Fatal(err)
			}
			if err := u.Part(t.Context(), 0, text); err != nil {
				t.Fatal(err)
			}
			info, err := u.Complete(t.Context(), whole)
			if !errors.Is(err, c.err) || c.err == nil && (err != nil || info.Checksum != "" && info.Checksum != hex.EncodeToString(whole[:])) || reads > 0 != c.reads {
				t.Fatalf("completed as %+v, %v, after %d reads", info, err, reads)
			}
		})
	}
}
