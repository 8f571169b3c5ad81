package s3

import (
	"bytes"
	"context"
	"crypto/md5" //nolint:gosec // Content-MD5 is what some servers check, against damage on the way
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/encrypt"

	"github.com/replicad/replicad/internal/durable/remote"
	"github.com/replicad/replicad/internal/durable/store"
)

// Store is a prefix of a bucket as a store. It is safe for concurrent use.
type Store struct {
	settings Settings
	core     *minio.Core
	creds    *credentials.Credentials
	calls    *remote.Client

	encryption encrypt.ServerSide // nil: as the bucket says
}

var _ store.Store = (*Store)(nil)

// Open makes a client. It asks the server for nothing: store.Probe does.
func Open(settings Settings) (*Store, error) {
	if err := settings.Validate(); err != nil {
		return nil, err
	}
	s := &Store{settings: settings.withDefaults()}
	if settings.Key != "" {
		sse, err := encrypt.NewSSEKMS(settings.Key, nil)
		if err != nil {
			return nil, fmt.Errorf("key: %w", err)
		}
		s.encryption = sse
	}
	creds, renew := credentialsOf(s.settings)
	s.creds = creds
	s.calls = remote.New(remote.Client{URL: s.URL(), Stall: settings.Stall, Patience: settings.Patience, Notice: settings.Notice, Judge: judge, Expire: s.creds.Expire, Renew: renew})
	endpoint, secure := "s3."+s.settings.Region+".amazonaws.com", true
	if s.settings.Endpoint != "" {
		u, err := url.Parse(s.settings.Endpoint)
		if err != nil {
			return nil, errors.New("endpoint: it cannot be parsed")
		}
		endpoint, secure = u.Host, u.Scheme == "https"
	}
	lookup := minio.BucketLookupPath
	if s.settings.VirtualHost || s.settings.Endpoint == "" {
		lookup = minio.BucketLookupDNS
	}
	var err error
	s.core, err = minio.NewCore(endpoint, &minio.Options{
		Creds: s.creds, Secure: secure, Region: s.settings.Region, BucketLookup: lookup,
		Transport:  s.calls.Transport(inspected),
		MaxRetries: 1,
	})
	if err != nil {
		return nil, fmt.Errorf("s3://%s: %w", s.settings.Bucket, err)
	}
	s.core.SetAppInfo("replicad", "1")
	return s, nil
}

// URL names bucket and prefix.
func (s *Store) URL() string {
	return strings.TrimSuffix("s3://"+s.settings.Bucket+"/"+s.settings.Prefix, "/")
}

// String is the URL: whatever prints a store shows no secret.
func (s *Store) String() string { return s.URL() }

// GoString is the URL.
func (s *Store) GoString() string { return s.URL() }

// Format prints the URL, whatever is asked for.
func (s *Store) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.URL()) }

// Close ends the calls under way, and closes the connections.
func (s *Store) Close() error {
	s.calls.Close()
	return nil
}

// root begins the names of all objects.
func (s *Store) root() string {
	if s.settings.Prefix == "" {
		return ""
	}
	return s.settings.Prefix + "/"
}

func (s *Store) name(key string) string { return s.root() + key }

// digests are what goes with a body as headers.
type digests struct {
	sha    [sha256.Size]byte
	hex    string // of the signature
	md5    string // empty: none is sent
	header map[string]string
}

const shaHeader = "X-Amz-Checksum-Sha256"

func (s *Store) digestsOf(b []byte) digests {
	d := digests{sha: sha256.Sum256(b), header: map[string]string{}}
	d.hex = hex.EncodeToString(d.sha[:])
	switch s.settings.Checksum {
	case "sha256":
		d.header[shaHeader] = base64.StdEncoding.EncodeToString(d.sha[:])
	case "md5":
		sum := md5.Sum(b) //nolint:gosec // as above
		d.md5 = base64.StdEncoding.EncodeToString(sum[:])
	}
	return d
}

// send puts an object in one request.
func (s *Store) send(ctx context.Context, key string, b []byte, condition func(*minio.PutObjectOptions)) (store.Version, error) {
	d := s.digestsOf(b)
	opts := minio.PutObjectOptions{DisableContentSha256: true, UserMetadata: d.header} // the signature has the digest: no signature in pieces
	opts.ServerSideEncryption = s.encryption
	if condition != nil {
		condition(&opts)
	}
	info, err := s.core.PutObject(ctx, s.settings.Bucket, s.name(key), bytes.NewReader(b), int64(len(b)), d.md5, d.hex, opts)
	return store.Version(info.ETag), err
}

// PutNew puts a small object where none is.
func (s *Store) PutNew(ctx context.Context, key string, b []byte) (store.Version, error) {
	if err := remote.CheckSmall(key, b); err != nil {
		return "", err
	}
	c := s.calls.Begin(ctx, "put", key)
	return c.Put(s.small(key, b, "", func(o *minio.PutObjectOptions) { o.SetMatchETagExcept("*") }, store.ErrExists))
}

// PutUnchanged puts a small object in place of the version was.
func (s *Store) PutUnchanged(ctx context.Context, key string, b []byte, was store.Version) (store.Version, error) {
	if err := remote.CheckSmall(key, b); err != nil {
		return "", err
	}
	c := s.calls.Begin(ctx, "put", key)
	if was == "" || strings.ContainsAny(string(was), "\"*,\r\n") { // "*" would match whatever is there
		return "", c.Fail(nil, store.ErrChanged, errors.New("its version is none"))
	}
	return c.Put(s.small(key, b, was, func(o *minio.PutObjectOptions) { o.SetMatchETag(string(was)) }, store.ErrChanged))
}

// small is a conditional put of a small object.
func (s *Store) small(key string, b []byte, was store.Version, condition func(*minio.PutObjectOptions), lost error) remote.Small {
	return remote.Small{
		Bytes: b, Was: was, Lost: lost,
		Send:  func(ctx context.Context) (store.Version, error) { return s.send(ctx, key, b, condition) },
		Fetch: func(ctx context.Context) ([]byte, store.Version, error) { return s.fetch(ctx, key, store.MaxSmall) },
	}
}

// fetch reads an object whole.
func (s *Store) fetch(ctx context.Context, key string, most int64) ([]byte, store.Version, error) {
	body, info, _, err := s.core.GetObject(ctx, s.settings.Bucket, s.name(key), minio.GetObjectOptions{Checksum: s.settings.Checksum == "sha256"})
	if err != nil {
		return nil, "", err
	}
	defer body.Close()
	b, err := remote.Whole(body, info.Size, most)
	if err != nil {
		return nil, "", err
	}
	if d := sha256.Sum256(b); wholeSum(info) != "" && wholeSum(info) != hex.EncodeToString(d[:]) {
		return nil, "", &remote.Failure{Class: remote.Damaged, Text: "other bytes arrived than the store says it has", Err: store.ErrCorrupt}
	}
	return b, store.Version(info.ETag), nil
}

// Get reads a small object whole.
func (s *Store) Get(ctx context.Context, key string, most int64) (b []byte, v store.Version, err error) {
	if err := store.CheckKey(key); err != nil {
		return nil, "", err
	}
	c := s.calls.Begin(ctx, "get", key)
	f := c.Repeat(func(ctx context.Context) (err error) {
		b, v, err = s.fetch(ctx, key, min(most, store.MaxSmall))
		return err
	})
	if f != nil {
		return nil, "", c.Fail(f)
	}
	return b, v, nil
}

// ReadRange fills b from byte off of an object. An answer that breaks off is gone on with where it did.
func (s *Store) ReadRange(ctx context.Context, key string, off int64, b []byte) error {
	if err := store.CheckKey(key); err != nil {
		return err
	}
	if len(b) == 0 && off >= 0 {
		_, err := s.Stat(ctx, key)
		return err
	}
	return s.calls.Begin(ctx, "read", key).Read(off, b, func(ctx context.Context, off int64, b []byte) (int, error) { return s.readSome(ctx, key, off, b) })
}

// readSome reads as much of a range as arrives.
func (s *Store) readSome(ctx context.Context, key string, off int64, b []byte) (int, error) {
	var opts minio.GetObjectOptions
	opts.Set("Range", remote.Range(off, len(b)))
	body, _, header, err := s.core.GetObject(ctx, s.settings.Bucket, s.name(key), opts)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	return remote.Fill(header, body, off, b)
}

// Stat says what is there.
func (s *Store) Stat(ctx context.Context, key string) (info store.Info, err error) {
	if err := store.CheckKey(key); err != nil {
		return store.Info{}, err
	}
	c := s.calls.Begin(ctx, "stat", key)
	f := c.Repeat(func(ctx context.Context) (err error) {
		info, err = s.head(ctx, key)
		return err
	})
	if f != nil {
		return store.Info{}, c.Fail(f)
	}
	return info, nil
}

// head asks for an object's headers. An error to such a request has no body: whether the object, the bucket or the permission is missing is
// asked by a second one.
func (s *Store) head(ctx context.Context, key string) (store.Info, error) {
	info, err := s.core.StatObject(ctx, s.settings.Bucket, s.name(key), minio.StatObjectOptions{Checksum: s.settings.Checksum == "sha256"})
	var r minio.ErrorResponse
	if errors.As(err, &r) && r.StatusCode >= 400 && r.StatusCode < 500 {
		var opts minio.GetObjectOptions
		opts.Set("Range", "bytes=0-0")
		body, _, _, gerr := s.core.GetObject(ctx, s.settings.Bucket, s.name(key), opts)
		if gerr == nil {
			_ = body.Close() // it came to be meanwhile: the caller asks again
			return store.Info{}, &remote.Failure{Class: remote.Doubtful, Text: "it is there, and its headers are not", Err: err}
		}
		return store.Info{}, gerr
	}
	if err != nil {
		return store.Info{}, err
	}
	return store.Info{Key: key, Size: info.Size, Modified: info.LastModified, Version: store.Version(info.ETag), Checksum: wholeSum(info)}, nil
}

// wholeSum is the SHA-256 of a whole object, as far as the store has it: of what was put in parts it is the digest of the parts' digests, unless the store
// says otherwise. Some servers leave out that it is one, and the number of parts behind it.
func wholeSum(info minio.ObjectInfo) string {
	if strings.Contains(info.ETag, "-") && info.ChecksumMode != minio.ChecksumFullObjectMode.String() {
		return ""
	}
	return sumOf(info.ChecksumSHA256)
}

// sumOf is a SHA-256 as the store's callers have it.
func sumOf(base string) string {
	b, err := base64.StdEncoding.DecodeString(base)
	if err != nil || len(b) != sha256.Size { // "...-3" is a digest of three parts' digests
		return ""
	}
	return hex.EncodeToString(b)
}

// Delete removes an object.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := store.CheckKey(key); err != nil {
		return err
	}
	c := s.calls.Begin(ctx, "delete", key)
	f := c.Repeat(func(ctx context.Context) error {
		return s.core.RemoveObject(ctx, s.settings.Bucket, s.name(key), minio.RemoveObjectOptions{})
	})
	if f != nil && f.Class == remote.Absent {
		f = nil
	}
	return c.Fail(f)
}
