package node

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/pki"
)

// A daemon whose store has no conditions, by its configuration, puts nothing there to try them, and says once that they are not tried.
func TestConditionsNone(t *testing.T) {
	var puts atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			puts.Add(1)
		}
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.Method != http.MethodGet:
			w.WriteHeader(http.StatusForbidden)
		case strings.Contains(r.URL.Path, "/o/"):
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(w, `{"kind": "storage#objects"}`)
	}))
	defer srv.Close()
	var out bytes.Buffer
	log, err := journal.New(&out, config.Log{Level: "info"}, "n1")
	if err != nil {
		t.Fatal(err)
	}
	c := &config.Config{Node: "n1", Durable: "gs://bucket/ck", Store: config.Store{Endpoint: srv.URL, Conditions: config.NoConditions}}
	d := &daemon{cfg: c, log: log, id: &pki.Identity{}}
	if err := d.openTier(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer d.store.Close()
	if !d.store.Proved() || puts.Load() > 0 {
		t.Errorf("it can be used: %v (%s), after %d puts", d.store.Proved(), d.store.Silent(), puts.Load())
	}
	if n := strings.Count(out.String(), "store.conditions is none"); n != 1 {
		t.Errorf("%d times in the log: %s", n, &out)
	}
	if err := checkBucket(t.Context(), c); err != nil || puts.Load() > 0 {
		t.Errorf("config check: %v, after %d puts", err, puts.Load())
	}
	c.Store.Conditions = ""
	if err := checkBucket(t.Context(), c); err == nil || puts.Load() == 0 {
		t.Errorf("without the setting: %v, after %d puts", err, puts.Load())
	}
}
