package storetest

import (
	"context"
	"crypto/sha256"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/replicad/replicad/internal/durable/store"
)

// Writes does what a store is written by, over a server that keeps what it was asked: small objects, one of them changed, and an upload of some parts. It returns
// the requests that have made something.
func Writes(t testing.TB, server string, open func(endpoint string) store.Store, size int64) (made []*http.Request) {
	t.Helper()
	to, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex // guards made
	proxy := httputil.NewSingleHostReverseProxy(to)
	seen := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut || r.Method == http.MethodPost {
			mu.Lock()
			made = append(made, r.Clone(context.WithoutCancel(r.Context())))
			mu.Unlock()
		}
		proxy.ServeHTTP(w, r)
	}))
	defer seen.Close()
	st := open(seen.URL)
	ctx := t.Context()
	v, err := st.PutNew(ctx, "small", []byte("a"))
	if err == nil {
		_, err = st.PutUnchanged(ctx, "small", []byte("b"), v)
	}
	if err != nil {
		t.Fatal(err)
	}
	u, err := st.Upload(ctx, "large", size)
	if err != nil {
		t.Fatal(err)
	}
	all := []byte(strings.Repeat("x", int(size)))
	for i, off := 0, int64(0); off < size; i, off = i+1, off+u.PartBytes() {
		if err := u.Part(ctx, i, all[off:min(size, off+u.PartBytes())]); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := u.Complete(ctx, sha256.Sum256(all)); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	return made
}
