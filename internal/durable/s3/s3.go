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
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/replicad/replicad/internal/durable/store"
)

// Store is a prefix of a bucket as a store. It is safe for concurrent use.
type Store struct {
	settings  Settings
	core      *minio.Core
	creds     *credentials.Credentials
	transport *http.Transport
	wait      func(attempts int, c class) time.Duration // waitBefore; tests have less time
	closing   context.Context                           // ends with the store
	end       context.CancelFunc
}

var errClosed = errors.New("the store is closed")

var _ store.Store = (*Store)(nil)

// Open makes a client. It asks the server for nothing: store.Probe does.
func Open(settings Settings) (*Store, error) {
	if err := settings.Validate(); err != nil {
		return nil, err
	}
	s := &Store{settings: settings.withDefaults(), transport: newTransport(), wait: waitBefore}
	s.closing, s.end = context.WithCancel(context.Background())
	s.creds = credentialsOf(s.settings)
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
		Transport:  &watched{next: s.transport, stall: s.settings.Stall, notice: s.settings.Notice, closing: s.closing},
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
	s.end()
	s.transport.CloseIdleConnections()
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

func checkSmall(key string, b []byte) error {
	if err := store.CheckKey(key); err != nil {
		return err
	}
	if len(b) > store.MaxSmall {
		return fmt.Errorf("%s has %d bytes, want at most %d for one put", key, len(b), store.MaxSmall)
	}
	return nil
}

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
	if condition != nil {
		condition(&opts)
	}
	info, err := s.core.PutObject(ctx, s.settings.Bucket, s.name(key), bytes.NewReader(b), int64(len(b)), d.md5, d.hex, opts)
	return store.Version(info.ETag), err
}

// PutNew puts a small object where none is.
func (s *Store) PutNew(ctx context.Context, key string, b []byte) (store.Version, error) {
	if err := checkSmall(key, b); err != nil {
		return "", err
	}
	c := s.begin(ctx, "put", key)
	return c.put(b, "", func(o *minio.PutObjectOptions) { o.SetMatchETagExcept("*") }, store.ErrExists)
}

// PutUnchanged puts a small object in place of the version was.
func (s *Store) PutUnchanged(ctx context.Context, key string, b []byte, was store.Version) (store.Version, error) {
	if err := checkSmall(key, b); err != nil {
		return "", err
	}
	c := s.begin(ctx, "put", key)
	if was == "" || strings.ContainsAny(string(was), "\"*,\r\n") { // "*" would match whatever is there
		return "", c.fail(nil, store.ErrChanged, errors.New("its version is none"))
	}
	return c.put(b, was, func(o *minio.PutObjectOptions) { o.SetMatchETag(string(was)) }, store.ErrChanged)
}

// put makes a conditional put. was is the version that it replaces; empty: there must be none. After an answer that leaves it in doubt it
// reads back before it goes on: its own bytes there are its success, and what was there before lets it try again. A request that is still on
// its way can do no harm then, since at most one of two holds its condition.
func (c *call) put(b []byte, was store.Version, condition func(*minio.PutObjectOptions), lost error) (store.Version, error) {
	doubt := false
	for {
		var v store.Version
		f := c.once(func(ctx context.Context) (err error) {
			v, err = c.s.send(ctx, c.trace.key, b, condition)
			return err
		})
		switch {
		case f == nil:
			return v, nil
		case !doubt && (f.class == exists || f.class == absent):
			return "", c.fail(f, lost)
		case f.class == doubtful, f.class == contended, f.class == exists, f.class == absent:
			doubt = doubt || f.class == doubtful
			v, settled, err := c.readBack(b, was, doubt, lost)
			if settled {
				return v, err
			}
			if f.class == exists || f.class == absent {
				f = &failure{class: contended, text: f.text, err: f.err} // what was there has gone again: that is no answer for good
			}
		}
		if !c.again(f) {
			if doubt && f.class != over {
				return "", c.fail(f, store.ErrDoubtful)
			}
			if doubt {
				return "", fmt.Errorf("%w: %w", store.ErrDoubtful, c.fail(f))
			}
			return "", c.fail(f)
		}
	}
}

// readBack tells what a put in doubt has come to, if that can be told.
func (c *call) readBack(b []byte, was store.Version, doubt bool, lost error) (v store.Version, settled bool, err error) {
	var got []byte
	f := c.repeat(func(ctx context.Context) (err error) {
		got, v, err = c.s.fetch(ctx, c.trace.key, store.MaxSmall)
		return err
	})
	there := f == nil
	switch {
	case f != nil && f.class != absent:
		return "", false, nil // the put is told about, not this
	case there && doubt && bytes.Equal(got, b):
		return v, true, nil
	case there && v == was, !there && was == "":
		return "", false, nil // as before: it was not carried out, or not yet
	case doubt && was != "":
		return "", true, c.fail(nil, store.ErrDoubtful, errors.New("a third content is there")) // ours may have been there in between
	}
	return "", true, c.fail(nil, lost)
}

// errTooLarge is the refusal of an object that is larger than its reader wants.
type errTooLarge struct{ size, most int64 }

func (e errTooLarge) Error() string {
	return fmt.Sprintf("it has %d bytes, want at most %d", e.size, e.most)
}

// fetch reads an object whole.
func (s *Store) fetch(ctx context.Context, key string, most int64) ([]byte, store.Version, error) {
	body, info, header, err := s.core.GetObject(ctx, s.settings.Bucket, s.name(key), minio.GetObjectOptions{Checksum: s.settings.Checksum == "sha256"})
	if err != nil {
		return nil, "", err
	}
	defer body.Close()
	if info.Size < 0 || info.Size > most {
		e := errTooLarge{info.Size, most}
		return nil, "", &failure{class: refused, text: e.Error(), err: e}
	}
	b := make([]byte, info.Size)
	if _, err := io.ReadFull(body, b); err != nil {
		return nil, "", fmt.Errorf("the answer ends early: %w", err)
	}
	if sum := header.Get(shaHeader); sum != "" && !strings.Contains(sum, "-") { // that of an upload is one of its parts' digests
		if d := sha256.Sum256(b); sum != base64.StdEncoding.EncodeToString(d[:]) {
			return nil, "", &failure{class: damaged, text: "other bytes arrived than the store says it has", err: store.ErrCorrupt}
		}
	}
	return b, store.Version(info.ETag), nil
}

// Get reads a small object whole.
func (s *Store) Get(ctx context.Context, key string, most int64) (b []byte, v store.Version, err error) {
	if err := store.CheckKey(key); err != nil {
		return nil, "", err
	}
	c := s.begin(ctx, "get", key)
	f := c.repeat(func(ctx context.Context) (err error) {
		b, v, err = s.fetch(ctx, key, min(most, store.MaxSmall))
		return err
	})
	if f != nil {
		return nil, "", c.fail(f)
	}
	return b, v, nil
}

// ReadRange fills b from byte off of an object. An answer that breaks off is gone on with where it did.
func (s *Store) ReadRange(ctx context.Context, key string, off int64, b []byte) error {
	if err := store.CheckKey(key); err != nil {
		return err
	}
	c := s.begin(ctx, "read", key)
	if off < 0 {
		return c.fail(nil, store.ErrRefused, fmt.Errorf("from byte %d", off))
	}
	if len(b) == 0 {
		_, err := s.Stat(ctx, key)
		return err
	}
	for {
		n := 0
		f := c.once(func(ctx context.Context) (err error) {
			n, err = s.readSome(ctx, key, off, b)
			return err
		})
		if f == nil {
			return nil
		}
		if b, off = b[n:], off+int64(n); n > 0 {
			c.until = time.Now().Add(s.settings.Patience) // it moves
		}
		if !c.again(f) {
			return c.fail(f)
		}
	}
}

// readSome reads as much of a range as arrives. A server that answers with other bytes than were asked for is found out by what it says of them.
func (s *Store) readSome(ctx context.Context, key string, off int64, b []byte) (int, error) {
	var opts minio.GetObjectOptions
	opts.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+int64(len(b))-1))
	body, _, header, err := s.core.GetObject(ctx, s.settings.Bucket, s.name(key), opts)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	if got, want := header.Get("Content-Range"), fmt.Sprintf("bytes %d-%d/", off, off+int64(len(b))-1); !strings.HasPrefix(got, want) {
		text := fmt.Sprintf("bytes %d to %d are wanted, the answer has %q", off, off+int64(len(b)), oneLine(got))
		return 0, &failure{class: refused, text: text, err: store.ErrRefused}
	}
	n, err := io.ReadFull(body, b)
	if err != nil {
		err = fmt.Errorf("the answer ends early: %w", err)
	}
	return n, err
}

// Stat says what is there.
func (s *Store) Stat(ctx context.Context, key string) (info store.Info, err error) {
	if err := store.CheckKey(key); err != nil {
		return store.Info{}, err
	}
	c := s.begin(ctx, "stat", key)
	f := c.repeat(func(ctx context.Context) (err error) {
		info, err = s.head(ctx, key)
		return err
	})
	if f != nil {
		return store.Info{}, c.fail(f)
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
			return store.Info{}, &failure{class: doubtful, text: "it is there, and its headers are not", err: err}
		}
		return store.Info{}, gerr
	}
	if err != nil {
		return store.Info{}, err
	}
	return store.Info{Key: key, Size: info.Size, Modified: info.LastModified, Version: store.Version(info.ETag), Checksum: wholeSum(info.ChecksumSHA256)}, nil
}

// wholeSum is a checksum of a whole object as the store's callers have it.
func wholeSum(base string) string {
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
	c := s.begin(ctx, "delete", key)
	f := c.repeat(func(ctx context.Context) error {
		return s.core.RemoveObject(ctx, s.settings.Bucket, s.name(key), minio.RemoveObjectOptions{})
	})
	if f != nil && f.class == absent {
		f = nil
	}
	return c.fail(f)
}
