package durable

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/remote"
	"github.com/replicad/replicad/internal/durable/store"
)

func TestParse(t *testing.T) {
	for where, want := range map[string]place{
		"file:///mnt/ckpt": {dir: "/mnt/ckpt"}, "file:///mnt/a%20b/": {dir: "/mnt/a b"}, "file://localhost/x": {dir: "/x"}, "/mnt/ckpt": {dir: "/mnt/ckpt"}, "ckpt": {dir: "ckpt"}, "./a/../b": {dir: "b"},
		"s3://b/lm": {scheme: "s3", bucket: "b", prefix: "lm"}, "s3://b": {scheme: "s3", bucket: "b"}, "s3://b/": {scheme: "s3", bucket: "b"}, "s3://b/a/b/": {scheme: "s3", bucket: "b", prefix: "a/b"},
		"gs://b/lm": {scheme: "gs", bucket: "b", prefix: "lm"}, "az://c/": {scheme: "az", bucket: "c"},
	} {
		if got, err := parse(where); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", where, got, err, want)
		}
	}
	for _, where := range []string{"", "gcs://b/x", "abfs://c@a/x", "gs://", "az:///x", "gs://h:1/b", "http://h/x", "s3://", "s3:///x", "s3://h:9000/b", "s3://b/../x", "s3://b/a//b", "s3://b/%00", "file://host/x", "file://x", "s3://b/x?endpoint=http://h", "s3://b/x#f", "s3://key:passw0rd@b/x", "a\x00b", "s3://b/ x", "%zz://passw0rd"} {
		got, err := parse(where)
		if err == nil {
			t.Errorf("%q is taken for %+v", where, got)
		} else if strings.Contains(err.Error(), "passw0rd") {
			t.Errorf("%v shows a password", err)
		}
	}
}

func TestSettingsAndEnvironment(t *testing.T) {
	env := map[string]string{"AWS_ENDPOINT_URL": "http://all:1", "AWS_ENDPOINT_URL_S3": "http://s3:2/", "AWS_DEFAULT_REGION": "eu-south-1"}
	get := func(k string) string { return env[k] }
	p := place{bucket: "bucket", prefix: "lm"}
	got, err := s3Settings(p, Settings{}, get)
	if err != nil || got.Endpoint != "http://s3:2" || got.Region != "eu-south-1" || got.VirtualHost || got.Bucket != "bucket" || got.Prefix != "lm" {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = s3Settings(p, Settings{Endpoint: "https://mine", Region: "r-1", Addressing: "virtual", AccessKey: "a", SecretKey: "passw0rd", SessionToken: "t0ken"}, get)
	if err != nil || got.Endpoint != "https://mine" || got.Region != "r-1" || !got.VirtualHost || got.SecretKey != "passw0rd" {
		t.Errorf("%+v, %v", got, err)
	}
	if text := fmt.Sprintf("%v %+v %#v", got, got, got); strings.Contains(text, "passw0rd") || strings.Contains(text, "t0ken") {
		t.Errorf("%s shows a secret", text)
	}
	if _, err := s3Settings(p, Settings{Addressing: "path"}, func(string) string { return "" }); err == nil {
		t.Error("path addressing without an endpoint is taken")
	}
	if _, err := s3Settings(p, Settings{Addressing: "x"}, get); err == nil {
		t.Error("addressing x is taken")
	}
}

// TestSettingsOfClouds: what is not said comes from where the vendors' own tools have it.
func TestSettingsOfClouds(t *testing.T) {
	env := func(pairs ...string) func(string) string {
		return func(k string) string {
			for i := 0; i+1 < len(pairs); i += 2 {
				if pairs[i] == k {
					return pairs[i+1]
				}
			}
			return ""
		}
	}
	p := place{scheme: "gs", bucket: "bucket", prefix: "lm"}
	for want, got := range map[string]string{
		"":            gcsSettings(p, Settings{}, env()).Endpoint,
		"http://h:1":  gcsSettings(p, Settings{}, env("STORAGE_EMULATOR_HOST", "h:1")).Endpoint,
		"http://h:2":  gcsSettings(p, Settings{}, env("STORAGE_EMULATOR_HOST", "http://h:2")).Endpoint,
		"https://own": gcsSettings(p, Settings{Endpoint: "https://own"}, env("STORAGE_EMULATOR_HOST", "h:1")).Endpoint,
	} {
		if got != want {
			t.Errorf("endpoint %q, want %q", got, want)
		}
	}
	file := filepath.Join(t.TempDir(), "azure")
	if err := os.WriteFile(file, []byte("AccountName=filed;AccountKey=cGFzc3cwcmQ=\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const connection = "DefaultEndpointsProtocol=https;AccountName=acc;AccountKey=cGFzc3cwcmQ=;EndpointSuffix=core.example.net"
	for i, tc := range []struct {
		s                  Settings
		env                func(string) string
		endpoint, account  string
		hasKey, hasSAS, ok bool
	}{
		{Settings{}, env(), "", "", false, false, false},
		{Settings{}, env("AZURE_STORAGE_ACCOUNT", "acc"), "https://acc.blob.core.windows.net", "acc", false, false, true},
		{Settings{}, env("AZURE_STORAGE_ACCOUNT", "acc", "AZURE_STORAGE_KEY", "cGFzc3cwcmQ="), "https://acc.blob.core.windows.net", "acc", true, false, true},
		{Settings{}, env("AZURE_STORAGE_ACCOUNT", "acc", "AZURE_STORAGE_KEY", "passw0rd"), "https://acc.blob.core.windows.net", "acc", true, false, true},
		{Settings{}, env("AZURE_STORAGE_ACCOUNT", "acc", "AZURE_STORAGE_KEY", "passw0rd!"), "https://acc.blob.core.windows.net", "acc", true, false, false},
		{Settings{}, env("AZURE_STORAGE_ACCOUNT", "acc", "AZURE_STORAGE_SAS_TOKEN", "?sv=1&sig=passw0rd"), "https://acc.blob.core.windows.net", "acc", false, true, true},
		{Settings{}, env("AZURE_STORAGE_CONNECTION_STRING", connection), "https://acc.blob.core.example.net", "acc", true, false, true},
		{Settings{Endpoint: "http://127.0.0.1:1/dev1"}, env("AZURE_STORAGE_KEY", "cGFzc3cwcmQ="), "http://127.0.0.1:1/dev1", "dev1", true, false, true},
		{Settings{Endpoint: "http://127.0.0.1:1/dev1"}, env(), "http://127.0.0.1:1/dev1", "dev1", false, false, false}, // a token would lie open
		{Settings{Endpoint: "https://mine.blob.core.windows.net"}, env(), "https://mine.blob.core.windows.net", "mine", false, false, true},
		{Settings{Credentials: file}, env("AZURE_STORAGE_SAS_TOKEN", "sv=1"), "https://filed.blob.core.windows.net", "filed", true, false, true},
	} {
		got, err := azureSettings(place{scheme: "az", bucket: "container"}, tc.s, tc.env)
		if err != nil || got.Endpoint != tc.endpoint || got.Account != tc.account || (got.Key != "") != tc.hasKey || (got.SAS != "") != tc.hasSAS {
			t.Errorf("%d: %q of %q, %v", i, got.Endpoint, got.Account, err)
		}
		if err := got.Validate(); (err == nil) != tc.ok || err != nil && strings.Contains(err.Error(), "passw0rd") {
			t.Errorf("%d: %v", i, err)
		}
		if text := fmt.Sprintf("%v %+v %#v", got.Key, got.SAS, []any{got.Key, got.SAS}); strings.Contains(text, "passw0rd") || strings.Contains(text, "cGFz") {
			t.Errorf("%s shows a secret", text)
		}
	}
	if _, err := azureSettings(place{}, Settings{Credentials: filepath.Join(t.TempDir(), "none")}, env()); err == nil || !strings.Contains(err.Error(), "credentials") {
		t.Errorf("a file that is not there: %v", err)
	}
	for _, where := range []string{"gs://bucket/lm", "az://container/lm"} {
		if _, err := Open(t.Context(), where, Settings{Endpoint: "https://h.example", Region: "eu-west-1"}); err == nil || !strings.Contains(err.Error(), "region") {
			t.Errorf("%s in a region: %v", where, err)
		}
		s, err := Open(t.Context(), where, Settings{Endpoint: "https://acc.example.net"})
		if err != nil || s.URL() != where {
			t.Errorf("%s: %v, %v", where, s, err)
		}
	}
	if _, err := Open(t.Context(), "gs://No_/lm", Settings{}); err == nil || !strings.Contains(err.Error(), "bucket") {
		t.Errorf("a bad bucket: %v", err)
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	for _, where := range []string{dir, "file://" + dir} {
		s, err := Open(t.Context(), where, Settings{})
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Probe(t.Context(), s); err != nil || s.URL() != "file://"+dir {
			t.Errorf("%s: %v", s.URL(), err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if s, err := Open(t.Context(), filepath.Join(dir, "none"), Settings{}); err == nil || !strings.Contains(err.Error(), "make the directory") {
		t.Errorf("a directory that is not there: %v, %v", s, err)
	}
	s, err := Open(t.Context(), "s3://bucket/lm", Settings{Endpoint: "http://127.0.0.1:1", AccessKey: "k", SecretKey: "passw0rd"})
	if err != nil || s.URL() != "s3://bucket/lm" {
		t.Errorf("%v, %v", s, err)
	}
	if _, err := Open(t.Context(), "s3://B_/lm", Settings{SecretKey: remote.Secret("passw0rd")}); err == nil || strings.Contains(err.Error(), "passw0rd") {
		t.Errorf("a bad bucket: %v", err)
	}
}

// FuzzParse: what is taken for a place names one, below which nothing leads out.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"s3://b/lm", "file:///x", "/x", "s3://u:p@b/x", "s3://b/..", "s3://b/%2e%2e/x", "file:///%00", "s3://[::1]/x", "gs://b/lm", "az://c/lm"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, where string) {
		p, err := parse(where)
		if err != nil {
			if len(err.Error()) > 1000 {
				t.Fatalf("%q: %d bytes of error", where, len(err.Error()))
			}
			return
		}
		if (p.dir == "") == (p.bucket == "") || strings.ContainsRune(p.dir, 0) {
			t.Fatalf("%q: %+v", where, p)
		}
		if p.prefix != "" && store.CheckKey(p.prefix) != nil {
			t.Fatalf("%q: prefix %q", where, p.prefix)
		}
		if (p.scheme == "") != (p.bucket == "") {
			t.Fatalf("%q: %+v", where, p)
		}
		if s, err := s3Settings(p, Settings{}, func(string) string { return "" }); err != nil || s.Bucket != p.bucket {
			t.Fatalf("%q: %+v, %v", where, s, err)
		}
	})
}
