package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The URL of the durable tier takes the place of durable_dir, and holds no secret.
func TestDurable(t *testing.T) {
	for _, tc := range []struct {
		durable, dir string
		store        Store
		fault        string // empty: none
		is           string // DurableDir, with defaults
	}{
		{"", "", Store{}, "", "/var/lib/replicad/durable"},
		{"", "/mnt/ck", Store{}, "", "/mnt/ck"},
		{"file:///mnt/ck", "", Store{}, "", "/mnt/ck"},
		{"s3://bucket/ck", "", Store{Endpoint: "http://h:9000", Addressing: "path", Checksum: "md5"}, "", ""},
		{"s3://bucket", "", Store{}, "", ""},
		{"s3://bucket/ck", "/mnt/ck", Store{}, "no durable_dir beside it", "/mnt/ck"},
		{"file:///mnt/ck", "/mnt/other", Store{}, "no durable_dir beside it", "/mnt/other"},
		{"file://mnt/ck", "", Store{}, "a whole path", "mnt/ck"},
		{"s3:///ck", "", Store{}, "s3://BUCKET/PREFIX", ""},
		{"gs://bucket/ck", "", Store{Endpoint: "http://h:4443", Credentials: "/etc/keys"}, "", ""},
		{"az://container/ck", "", Store{Endpoint: "https://a.blob.core.windows.net"}, "", ""},
		{"gs://bucket/ck", "/mnt/ck", Store{}, "no durable_dir beside it", "/mnt/ck"},
		{"gs://bucket", "", Store{Region: "eu-west-1"}, "where durable is no s3:// URL", ""},
		{"az://container", "", Store{Checksum: "md5"}, "where durable is no s3:// URL", ""},
		{"az:///ck", "", Store{}, "az://CONTAINER/PREFIX", ""},
		{"gcs://bucket", "", Store{}, "gs://BUCKET/PREFIX", "/var/lib/replicad/durable"},
		{"s3://key:hunter2@bucket/ck", "", Store{}, "without user", ""},
		{"s3://bucket/ck?token=hunter2", "", Store{}, "without user", ""},
		{"", "/mnt/ck", Store{Region: "eu-west-1"}, "where durable is no bucket's URL", "/mnt/ck"},
		{"s3://bucket", "", Store{Addressing: "dns"}, "path or virtual", ""},
		{"gs://bucket", "", Store{Conditions: "none"}, "", ""},
		{"s3://bucket", "", Store{Conditions: "weak"}, "store.conditions", ""},
		{"", "/mnt/ck", Store{Conditions: "none"}, "where durable is no bucket's URL", "/mnt/ck"},
		{"s3://bucket", "", Store{Checksum: "crc32"}, "sha256, md5 or none", ""},
	} {
		c, err := Load("../../docs/replicad.yaml")
		if err != nil {
			t.Fatal(err)
		}
		c.Durable, c.DurableDir, c.Store = tc.durable, tc.dir, tc.store
		c = c.WithDefaults()
		err = c.Validate()
		if (err == nil) != (tc.fault == "") || err != nil && (!strings.Contains(err.Error(), tc.fault) || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%q beside %q: %v, want %q", tc.durable, tc.dir, err, tc.fault)
		}
		if c.DurableDir != tc.is {
			t.Errorf("%q beside %q: the directory is %q, want %q", tc.durable, tc.dir, c.DurableDir, tc.is)
		}
		if tier := c.HasTier(); tier != (tc.durable != "" && !strings.HasPrefix(tc.durable, "gcs") || tc.dir != "") {
			t.Errorf("%q beside %q: has a tier: %v", tc.durable, tc.dir, tier)
		}
	}
}

// What is written of a store is read back.
func TestStoreIsWrittenAndRead(t *testing.T) {
	for _, s := range []Store{{}, {Endpoint: "http://h:9000", Region: "us-east-1", Credentials: "/etc/keys"}, {Conditions: "none"}} {
		c, err := Load("../../docs/replicad.yaml")
		if err != nil {
			t.Fatal(err)
		}
		c.Durable, c.DurableDir, c.Store = "s3://bucket/ck", "", s
		file := filepath.Join(t.TempDir(), "c.yaml")
		if err := c.Write(file); err != nil {
			t.Fatal(err)
		}
		got, err := Load(file)
		if err != nil || got.Durable != c.Durable || got.Store != s || got.DurableDir != "" {
			t.Errorf("read back %q, %+v, directory %q: %v", got.Durable, got.Store, got.DurableDir, err)
		}
	}
}

// Who is to be encrypted to is said whole, or not at all: nothing is written in plain text because a line was left empty.
func TestKeysOfTheTier(t *testing.T) {
	example, err := os.ReadFile("../../docs/replicad.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const to = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"
	for lines, want := range map[string]string{
		"durable_recipients: [" + to + "]\ndurable_identities: /etc/key":                             "",
		"durable_recipients:\n  - " + to + "\ndurable_identities_command: [/usr/bin/pass, show, ck]": "",
		"durable_identities: key.txt":                                                     "",
		"durable_recipients: [" + to + "]":                                                "durable_identities or durable_identities_command beside it",
		"durable_recipients: []\ndurable_identities: /etc/key":                            "a list, or no such line",
		"durable_recipients:\ndurable_identities: /etc/key":                               "a list, or no such line",
		"durable_recipients: " + to:                                                       "a list",
		"durable_identities_command: []":                                                  "a list, or no such line",
		"durable_identities:":                                                             "a value, or no such line",
		"durable_identities_command: [pass, show]":                                        "the program's whole path",
		"durable_identities: /etc/key\ndurable_identities_command: [/usr/bin/pass, show]": "one of durable_identities and durable_identities_command",
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "c.yaml")
		if err := os.WriteFile(path, append(slices.Clone(example), "\n"+lines+"\n"...), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load(path)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", lines, err, want)
		}
		if err == nil && (len(c.Warnings()) > 0) != !strings.Contains(lines, "recipients") {
			t.Errorf("%s: warnings %v", lines, c.Warnings())
		}
		if err == nil && c.DurableIdentities == filepath.Join(dir, "key.txt") != strings.Contains(lines, "key.txt") {
			t.Errorf("%s: %s", lines, c.DurableIdentities)
		}
		if err != nil {
			continue
		}
		again := filepath.Join(dir, "again.yaml")
		if err := c.Write(again); err != nil {
			t.Fatal(err)
		}
		if got, err := Load(again); err != nil || !slices.Equal(got.DurableRecipients, c.DurableRecipients) || got.DurableIdentities != c.DurableIdentities || !slices.Equal(got.DurableIdentitiesCommand, c.DurableIdentitiesCommand) {
			t.Errorf("%s: read back %+v: %v", lines, got, err)
		}
	}
}
