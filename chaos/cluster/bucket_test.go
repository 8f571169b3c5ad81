package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/config"
)

// A store that nobody can serve is refused with the remedy, and a server that ends with its last words.
func TestOpenStoreSaysWhatIsMissing(t *testing.T) {
	t.Setenv("AWS_ENDPOINT_URL_S3", "")
	t.Setenv("AWS_ENDPOINT_URL", "")
	s := NewSpawner()
	defer s.Close()
	dir, tools := t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "logs"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(t.Context(), s, "s3://b/ck", dir, tools); err == nil || !strings.Contains(err.Error(), "make store-server") || !strings.Contains(err.Error(), "AWS_ENDPOINT_URL_S3") {
		t.Errorf("without a server: %v", err)
	}
	if err := os.WriteFile(filepath.Join(tools, "stores"), []byte("#!/bin/sh\necho no port\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(t.Context(), s, "s3://b/ck", dir, tools); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("with one that ends: %v", err)
	}
}

// A directory is made, and daemons write there alone; of a bucket on a server that the environment names nothing is started.
func TestOpenStoreOfOthers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	for _, where := range []string{dir, "file://" + dir} {
		s, err := OpenStore(t.Context(), nil, where, "", "")
		if err != nil {
			t.Fatal(err)
		}
		c := config.Config{DurableDir: "/elsewhere"}
		if s.Use(&c); c.Durable != "file://"+dir || c.DurableDir != "" {
			t.Errorf("of %s: %q, %q", where, c.Durable, c.DurableDir)
		}
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
	if s, err := OpenStore(t.Context(), nil, "s3://b/ck", "", ""); err != nil || s.URL != "s3://b/ck" || s.Kind != "" || s.Settings != (config.Store{}) {
		t.Errorf("%+v, %v", s, err)
	}
}
