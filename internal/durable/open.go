// Package durable is the durable tier: what is kept on directories and object stores, and outlives the job. Open finds the store of a URL;
// what a store is, package store says.
package durable

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/replicad/replicad/internal/durable/azure"
	"github.com/replicad/replicad/internal/durable/directory"
	"github.com/replicad/replicad/internal/durable/gcs"
	"github.com/replicad/replicad/internal/durable/remote"
	"github.com/replicad/replicad/internal/durable/s3"
	"github.com/replicad/replicad/internal/durable/store"
)

// Settings are what a URL does not say. The zero value takes all of it from the environment, as the vendor's own tools do.
type Settings struct {
	// Endpoint of a server that is not the vendor's: http://HOST:PORT or https://HOST; of Azure the account's. Empty: of S3 AWS_ENDPOINT_URL_S3 or
	// AWS_ENDPOINT_URL, of Google STORAGE_EMULATOR_HOST, of Azure what AZURE_STORAGE_CONNECTION_STRING or AZURE_STORAGE_ACCOUNT say; then the vendor's.
	Endpoint string
	// Region, Addressing, keys and Checksum are S3's alone. Region is where the bucket is. Empty: AWS_REGION, AWS_DEFAULT_REGION, or us-east-1. The server refuses a wrong one and names its own.
	Region string
	// Addressing is "path" (http://HOST/BUCKET/KEY) or "virtual" (http://BUCKET.HOST/KEY). Empty: path where there is an endpoint.
	Addressing string
	// AccessKey, SecretKey and SessionToken. Empty: AWS_ACCESS_KEY_ID and its like, ~/.aws, or the machine's or container's role.
	AccessKey    string
	SecretKey    remote.Secret
	SessionToken remote.Secret
	// Credentials is a file in place of all of those: of S3 as ~/.aws/credentials, of Google as GOOGLE_APPLICATION_CREDENTIALS names one, of Azure with
	// a connection string.
	Credentials string
	// Checksum is "sha256", "md5" or "none": see docs/stores.md. Empty: sha256.
	Checksum string
	// Key has the server encrypt what is written: of S3 a key of KMS, of Google a key's whole name, of Azure an encryption scope. Empty: as the bucket says.
	Key string
	// PartBytes is the least size of an upload's parts. 0: 16 MiB.
	PartBytes int64
	// Notice is told of requests that fail and will be repeated, or do not move. It must not block.
	Notice func(remote.Notice)
}

// Open opens the store that a URL names (wanted has the forms). It asks a server for nothing: store.Probe does.
func Open(ctx context.Context, where string, settings Settings) (store.Store, error) {
	p, err := parse(where)
	if err != nil {
		return nil, err
	}
	if p.bucket == "" && settings.Key != "" {
		return nil, errors.New("a key is a setting of buckets: a directory's file system encrypts, or does not")
	}
	if p.bucket == "" {
		return directory.Open(ctx, p.dir)
	}
	opened, err := openBucket(p, settings, os.Getenv)
	if err != nil {
		return nil, fmt.Errorf("%s://%s/%s: %w", p.scheme, p.bucket, p.prefix, err)
	}
	return opened, nil
}

func openBucket(p place, settings Settings, env func(string) string) (store.Store, error) {
	if p.scheme == "s3" {
		s, err := s3Settings(p, settings, env)
		if err != nil {
			return nil, err
		}
		return s3.Open(s)
	}
	if settings.Region != "" || settings.Addressing != "" || settings.Checksum != "" || settings.AccessKey != "" {
		return nil, errors.New("region, addressing, checksum and access keys are settings of s3:// stores alone: leave them out")
	}
	if p.scheme == "gs" {
		return gcs.Open(gcsSettings(p, settings, env))
	}
	s, err := azureSettings(p, settings, env)
	if err != nil {
		return nil, err
	}
	return azure.Open(s)
}

// gcsSettings joins what a URL, the settings and the environment say.
func gcsSettings(p place, s Settings, env func(string) string) gcs.Settings {
	endpoint := s.Endpoint
	if emulator := env("STORAGE_EMULATOR_HOST"); endpoint == "" && emulator != "" {
		if endpoint = emulator; !strings.Contains(endpoint, "://") {
			endpoint = "http://" + endpoint
		}
	}
	return gcs.Settings{Bucket: p.bucket, Prefix: p.prefix, Endpoint: endpoint, Credentials: s.Credentials, Key: s.Key, PartBytes: s.PartBytes, Notice: s.Notice}
}

// azureSettings joins what a URL, the settings and the environment say.
func azureSettings(p place, s Settings, env func(string) string) (azure.Settings, error) {
	out := azure.Settings{Container: p.bucket, Prefix: p.prefix, Endpoint: s.Endpoint, Scope: s.Key, PartBytes: s.PartBytes, Notice: s.Notice}
	return out.Told(s.Credentials, env)
}

// wanted are the forms of a store's name.
const wanted = "want file:///DIRECTORY, a path, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"

// place is what a URL says.
type place struct {
	dir                    string
	scheme, bucket, prefix string // of one that is no directory
}

// parse reads a URL or a path. No error shows more of a URL than its scheme, since people write passwords into them.
func parse(where string) (place, error) {
	scheme, _, isURL := strings.Cut(where, "://")
	switch {
	case where == "":
		return place{}, errors.New("the store has no name: " + wanted)
	case strings.ContainsRune(where, 0):
		return place{}, errors.New("the store's name has a NUL in it")
	case !isURL:
		return place{dir: filepath.Clean(where)}, nil
	}
	u, err := url.Parse(where)
	if err != nil {
		return place{}, fmt.Errorf("the store's URL (%.10q://...) cannot be parsed", scheme)
	}
	if u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return place{}, fmt.Errorf("the store's URL (%.10q://...) has more than a place: keys, tokens and regions are settings, or come from the environment", scheme)
	}
	switch u.Scheme {
	case "file":
		if u.Host != "" && u.Host != "localhost" || !filepath.IsAbs(u.Path) || strings.ContainsRune(u.Path, 0) {
			return place{}, errors.New("the store's URL names a file of another host, or no whole path: want file:///DIRECTORY")
		}
		return place{dir: filepath.Clean(u.Path)}, nil
	case "s3", "gs", "az":
		return parseBucket(u)
	}
	return place{}, fmt.Errorf("stores of the scheme %.10q are not known: %s", scheme, wanted)
}

func parseBucket(u *url.URL) (place, error) {
	p := place{scheme: u.Scheme, bucket: u.Host, prefix: strings.Trim(u.Path, "/")}
	if p.bucket == "" || u.Port() != "" {
		return place{}, fmt.Errorf("the store's URL names no bucket: want %s://BUCKET/PREFIX; the server's address is the setting endpoint", u.Scheme)
	}
	if p.prefix != "" {
		if err := store.CheckKey(p.prefix); err != nil {
			return place{}, fmt.Errorf("the store's prefix: %w", err)
		}
	}
	return p, nil
}

// s3Settings joins what a URL, the settings and the environment say.
func s3Settings(p place, s Settings, env func(string) string) (s3.Settings, error) {
	first := func(list ...string) string {
		for _, x := range list {
			if x != "" {
				return x
			}
		}
		return ""
	}
	out := s3.Settings{
		Bucket: p.bucket, Prefix: p.prefix,
		Endpoint:  strings.TrimSuffix(first(s.Endpoint, env("AWS_ENDPOINT_URL_S3"), env("AWS_ENDPOINT_URL")), "/"),
		Region:    first(s.Region, env("AWS_REGION"), env("AWS_DEFAULT_REGION")),
		Checksum:  s.Checksum,
		Key:       s.Key,
		PartBytes: s.PartBytes,
		AccessKey: s.AccessKey, SecretKey: s.SecretKey, SessionToken: s.SessionToken, Credentials: s.Credentials,
		Notice: s.Notice,
	}
	switch s.Addressing {
	case "", "path":
	case "virtual":
		out.VirtualHost = true
	default:
		return s3.Settings{}, fmt.Errorf("addressing %q: want path or virtual", s.Addressing)
	}
	if s.Addressing == "path" && out.Endpoint == "" {
		return s3.Settings{}, errors.New("addressing by path needs an endpoint: Amazon's buckets are named by their hosts")
	}
	return out, nil
}
