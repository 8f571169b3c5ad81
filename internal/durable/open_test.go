package durable

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/remote"
	"github.com/replicad/replicad/internal/durable/store"
)

func TestParse(t *testing.T) {
	for where, want := range map[string]place{
		"file:///mnt/ckpt": {dir: "/mnt/ckpt"}, "file:///mnt/a%20b/": {dir: "/mnt/a b"}, "file://localhost/x": {dir: "/x"}, "/mnt/ckpt": {dir: "/mnt/ckpt"}, "ckpt": {dir: "ckpt"}, "./a/../b": {dir: "b"},
		"s3://b/lm": {bucket: "b", prefix: "lm"}, "s3://b": {bucket: "b"}, "s3://b/": {bucket: "b"}, "s3://b/a/b/": {bucket: "b", prefix: "a/b"},
	} {
		if got, err := parse(where); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", where, got, err, want)
		}
	}
	for _, where := range []string{"", "gs://b/x", "http://h/x", "s3://", "s3:///x", "s3://h:9000/b", "s3://b/../x", "s3://b/a//b", "s3://b/%00", "file://host/x", "file://x", "s3://b/x?endpoint=http://h", "s3://b/x#f", "s3://key:passw0rd@b/x", "a\x00b", "s3://b/ x", "%zz://passw0rd"} {
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
	for _, s := range []string{"s3://b/lm", "file:///x", "/x", "s3://u:p@b/x", "s3://b/..", "s3://b/%2e%2e/x", "file:///%00", "s3://[::1]/x"} {
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
		if s, err := s3Settings(p, Settings{}, func(string) string { return "" }); err != nil || s.Bucket != p.bucket {
			t.Fatalf("%q: %+v, %v", where, s, err)
		}
	})
}
