package azure

import (
	"cmp"
	"context"
	"crypto/md5" //nolint:gosec // Content-MD5 is what the server checks, against damage on the way
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/remote"
	"github.com/replicad/replicad/internal/durable/store"
)

// version is that of the API that is spoken: all that is asked for here is older.
const version = "2021-12-02"

// Store is a prefix of a container as a store. It is safe for concurrent use.
type Store struct {
	settings Settings
	calls    *remote.Client
	http     *remote.HTTP
	outside  *http.Client // of tokens
	tokens   remote.Tokens
	most     int // names on a page; tests have less
}

var _ store.Store = (*Store)(nil)

// Open makes a client. It asks the server for nothing: store.Probe does.
func Open(settings Settings) (*Store, error) {
	if err := settings.Validate(); err != nil {
		return nil, err
	}
	s := &Store{settings: settings, most: pageSize}
	s.settings.PartBytes = cmp.Or(settings.PartBytes, defaultPart)
	if s.settings.env == nil {
		s.settings.env = os.Getenv
	}
	s.tokens.Fetch = s.fetch
	s.calls = remote.New(remote.Client{URL: s.URL(), Stall: settings.Stall, Patience: settings.Patience, Notice: settings.Notice, Judge: s.judge, Expire: s.tokens.Expire, Renew: s.renew})
	s.http = s.calls.HTTP(s.sign)
	s.outside = &http.Client{Transport: s.calls.Transport(nil)}
	return s, nil
}

// URL names container and prefix.
func (s *Store) URL() string {
	return strings.TrimSuffix("az://"+s.settings.Container+"/"+s.settings.Prefix, "/")
}

// String is the URL: whatever prints a store shows no secret.
func (s *Store) String() string { return s.URL() }

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

// blob is the address of an object.
func (s *Store) blob(key string, query url.Values) string {
	return s.container("/"+(&url.URL{Path: s.root() + key}).EscapedPath(), query)
}

func (s *Store) container(path string, query url.Values) string {
	address := s.settings.Endpoint + "/" + s.settings.Container + path
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	return address
}

// sumOf is a body's MD5 as a header has it.
func sumOf(b []byte) string {
	sum := md5.Sum(b) //nolint:gosec // as above
	return base64.StdEncoding.EncodeToString(sum[:])
}

// versionOf is the ETag of an answer, without the quotes, which listings leave out.
func versionOf(h http.Header) store.Version { return store.Version(strings.Trim(h.Get("ETag"), `"`)) }

// etag is what a version looks like; nothing else is sent as one.
var etag = regexp.MustCompile(`^0x[0-9A-Za-z]{1,64}$`)

// scoped has the server encrypt what a request makes as the settings say.
func (s *Store) scoped(header map[string]string) map[string]string {
	if s.settings.Scope != "" {
		header["X-Ms-Encryption-Scope"] = s.settings.Scope
	}
	return header
}

// write sends a body that makes an object.
func (s *Store) write(ctx context.Context, address string, b []byte, header map[string]string) (store.Version, error) {
	h := s.scoped(map[string]string{"Content-MD5": sumOf(b)})
	for k, v := range header {
		h[k] = v
	}
	got, _, err := s.http.Do(ctx, remote.Request{Method: http.MethodPut, URL: address, Header: h, Body: [][]byte{b}})
	if err == nil && versionOf(got) == "" {
		err = remote.NotTheStores("ETag")
	}
	return versionOf(got), err
}

// blockBlob is the kind of all objects here, and one header more.
func blockBlob(name, value string) map[string]string {
	return map[string]string{"X-Ms-Blob-Type": "BlockBlob", "Content-Type": "application/octet-stream", name: value}
}

// PutNew puts a small object where none is.
func (s *Store) PutNew(ctx context.Context, key string, b []byte) (store.Version, error) {
	if err := remote.CheckSmall(key, b); err != nil {
		return "", err
	}
	return s.put(s.calls.Begin(ctx, "put", key), b, "", blockBlob("If-None-Match", "*"), store.ErrExists)
}

// PutUnchanged puts a small object in place of the version was.
func (s *Store) PutUnchanged(ctx context.Context, key string, b []byte, was store.Version) (store.Version, error) {
	if err := remote.CheckSmall(key, b); err != nil {
		return "", err
	}
	c := s.calls.Begin(ctx, "put", key)
	if !etag.MatchString(string(was)) {
		if f := c.Alive(); f != nil {
			return "", c.Fail(f)
		}
		return "", c.Fail(nil, store.ErrChanged, errors.New("its version is none"))
	}
	return s.put(c, b, was, blockBlob("If-Match", `"`+string(was)+`"`), store.ErrChanged)
}

func (s *Store) put(c *remote.Call, b []byte, was store.Version, header map[string]string, lost error) (store.Version, error) {
	key := c.Trace.Key
	return c.Put(remote.Small{
		Bytes: b, Was: was, Lost: lost,
		Send:  func(ctx context.Context) (store.Version, error) { return s.write(ctx, s.blob(key, nil), b, header) },
		Fetch: func(ctx context.Context) ([]byte, store.Version, error) { return s.whole(ctx, key, store.MaxSmall) },
	})
}

// read asks for an object's bytes.
func (s *Store) read(ctx context.Context, key string, header map[string]string) (*http.Response, error) {
	resp, err := s.http.Open(ctx, remote.Request{Method: http.MethodGet, URL: s.blob(key, nil), Header: header})
	if err == nil && versionOf(resp.Header) == "" {
		_ = resp.Body.Close()
		return nil, remote.NotTheStores("ETag")
	}
	return resp, err
}

// whole reads an object of at most most bytes.
func (s *Store) whole(ctx context.Context, key string, most int64) ([]byte, store.Version, error) {
	resp, err := s.read(ctx, key, nil)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	b, err := remote.Whole(resp.Body, resp.ContentLength, most)
	if err != nil {
		return nil, "", err
	}
	if sum := resp.Header.Get("Content-MD5"); sum != "" && sum != sumOf(b) {
		return nil, "", &remote.Failure{Class: remote.Damaged, Text: "other bytes arrived than the store says it has", Err: store.ErrCorrupt}
	}
	return b, versionOf(resp.Header), nil
}

// Get reads a small object whole.
func (s *Store) Get(ctx context.Context, key string, most int64) (b []byte, v store.Version, err error) {
	if err := store.CheckKey(key); err != nil {
		return nil, "", err
	}
	c := s.calls.Begin(ctx, "get", key)
	f := c.Repeat(func(ctx context.Context) (err error) {
		b, v, err = s.whole(ctx, key, min(most, store.MaxSmall))
		return err
	})
	if f != nil {
		return nil, "", c.Fail(f)
	}
	return b, v, nil
}

// ReadRange fills b from byte off of an object.
func (s *Store) ReadRange(ctx context.Context, key string, off int64, b []byte) error {
	if err := store.CheckKey(key); err != nil {
		return err
	}
	if len(b) == 0 && off >= 0 {
		_, err := s.Stat(ctx, key)
		return err
	}
	return s.calls.Begin(ctx, "read", key).Read(off, b, func(ctx context.Context, off int64, b []byte) (int, error) {
		resp, err := s.read(ctx, key, map[string]string{"Range": remote.Range(off, len(b))})
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		return remote.Fill(resp.Header, resp.Body, off, b)
	})
}

// Stat says what is there.
func (s *Store) Stat(ctx context.Context, key string) (info store.Info, err error) {
	if err := store.CheckKey(key); err != nil {
		return store.Info{}, err
	}
	c := s.calls.Begin(ctx, "stat", key)
	f := c.Repeat(func(ctx context.Context) (err error) {
		info, _, err = s.head(ctx, key)
		return err
	})
	if f != nil {
		return store.Info{}, c.Fail(f)
	}
	return info, nil
}

func (s *Store) head(ctx context.Context, key string) (store.Info, http.Header, error) {
	resp, err := s.http.Open(ctx, remote.Request{Method: http.MethodHead, URL: s.blob(key, nil)})
	if err != nil {
		return store.Info{}, nil, err
	}
	_ = resp.Body.Close()
	if versionOf(resp.Header) == "" {
		return store.Info{}, nil, remote.NotTheStores("ETag")
	}
	at, _ := time.Parse(http.TimeFormat, resp.Header.Get("Last-Modified")) // zero: it says none
	return store.Info{Key: key, Size: resp.ContentLength, Modified: at, Version: versionOf(resp.Header)}, resp.Header, nil
}

// Delete removes an object.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := store.CheckKey(key); err != nil {
		return err
	}
	c := s.calls.Begin(ctx, "delete", key)
	f := c.Repeat(func(ctx context.Context) error { return s.remove(ctx, key, nil) })
	if f != nil && f.Class != remote.Absent {
		return c.Fail(f)
	}
	return nil
}

func (s *Store) remove(ctx context.Context, key string, header map[string]string) error {
	got, _, err := s.http.Do(ctx, remote.Request{Method: http.MethodDelete, URL: s.blob(key, nil), Header: header})
	if err == nil && got.Get("X-Ms-Request-Id") == "" {
		err = remote.NotTheStores("x-ms-request-id")
	}
	return err
}

// unless is nothing where err is of the class.
func unless(c remote.Class, err error) error {
	if f := judge(context.Background(), &remote.Trace{}, err); f != nil && f.Class == c {
		return nil
	}
	return err
}
