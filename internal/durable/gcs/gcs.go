package gcs

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/remote"
	"github.com/replicad/replicad/internal/durable/store"
)

// Store is a prefix of a bucket as a store. It is safe for concurrent use.
type Store struct {
	settings Settings
	base     string // of the server
	calls    *remote.Client
	http     *remote.HTTP
	tokens   *remote.Tokens // nil: requests go without
}

var _ store.Store = (*Store)(nil)

// Open makes a client. It asks the server for nothing: store.Probe does.
func Open(settings Settings) (*Store, error) {
	if err := settings.Validate(); err != nil {
		return nil, err
	}
	s := &Store{settings: settings, base: cmp.Or(strings.TrimSuffix(settings.Endpoint, "/"), theirs)}
	s.settings.PartBytes = cmp.Or(settings.PartBytes, defaultPart)
	c := remote.Client{URL: s.URL(), Stall: settings.Stall, Patience: settings.Patience, Notice: settings.Notice, Judge: s.judge, Renew: s.renew}
	if !settings.open() {
		s.tokens = &remote.Tokens{Fetch: s.fetch}
		c.Expire = s.tokens.Expire
	}
	s.calls = remote.New(c)
	s.http = s.calls.HTTP(s.sign)
	return s, nil
}

func (s *Store) sign(r *http.Request) error {
	if s.tokens == nil {
		return nil
	}
	t, err := s.tokens.Get(r.Context())
	if err == nil {
		r.Header.Set("Authorization", "Bearer "+string(t))
	}
	return err
}

// URL names bucket and prefix.
func (s *Store) URL() string {
	return strings.TrimSuffix("gs://"+s.settings.Bucket+"/"+s.settings.Prefix, "/")
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

func (s *Store) name(key string) string { return s.root() + key }

// object is the address of an object's properties.
func (s *Store) object(name string, query url.Values) string {
	return s.bucket("/o/"+url.QueryEscape(name), query) // no name has a space
}

func (s *Store) bucket(path string, query url.Values) string {
	return s.base + "/storage/v1/b/" + s.settings.Bucket + path + "?" + query.Encode()
}

// properties are what the server says of an object.
type properties struct {
	Name       string    `json:"name"`
	Size       int64     `json:"size,string"`
	Generation string    `json:"generation"`
	Updated    time.Time `json:"updated"`
	CRC        string    `json:"crc32c"`
}

const fields = "name,size,generation,updated,crc32c"

func (p properties) info(key string) store.Info {
	return store.Info{Key: key, Size: p.Size, Modified: p.Updated, Version: store.Version(p.Generation)}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// textOf is a CRC32C as the server writes it.
func textOf(crc uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc))
}

// insert puts an object in one request. more is what the address says besides, and class the class of storage; empty: the bucket's.
// keyed has the server encrypt what a request makes with the key of the settings.
func (s *Store) keyed(q url.Values) url.Values {
	if s.settings.Key != "" {
		q.Set("kmsKeyName", s.settings.Key)
	}
	return q
}

func (s *Store) insert(ctx context.Context, name string, b []byte, class string, more url.Values) (properties, error) {
	crc := textOf(crc32.Checksum(b, castagnoli))
	about, err := json.Marshal(struct {
		Name  string `json:"name"`
		Type  string `json:"contentType"`
		CRC   string `json:"crc32c"`
		Class string `json:"storageClass,omitempty"`
	}{name, "application/octet-stream", crc, class})
	if err != nil {
		return properties{}, err
	}
	border := rand.Text() // 128 bits: no body has it
	more.Set("uploadType", "multipart")
	more.Set("name", name) // again, for the logs of servers and proxies
	more.Set("fields", fields)
	s.keyed(more)
	head := "--" + border + "\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n" + string(about) + "\r\n--" + border + "\r\nContent-Type: application/octet-stream\r\n\r\n"
	_, text, err := s.http.Do(ctx, remote.Request{
		Method: http.MethodPost, URL: s.base + "/upload/storage/v1/b/" + s.settings.Bucket + "/o?" + more.Encode(),
		Header: map[string]string{"Content-Type": "multipart/related; boundary=" + border},
		Body:   [][]byte{[]byte(head), b, []byte("\r\n--" + border + "--\r\n")},
	})
	if err != nil {
		return properties{}, err
	}
	p, err := parsed(text)
	if err == nil && p.CRC != "" && p.CRC != crc {
		return properties{}, &remote.Failure{Class: remote.Refused, Text: "the store has another checksum of it", Err: store.ErrCorrupt}
	}
	return p, err
}

func parsed(text []byte) (p properties, err error) {
	if err := json.Unmarshal(text, &p); err != nil || p.Generation == "" {
		return properties{}, remote.NotTheStores("generation")
	}
	return p, nil
}

// PutNew puts a small object where none is.
func (s *Store) PutNew(ctx context.Context, key string, b []byte) (store.Version, error) {
	if err := remote.CheckSmall(key, b); err != nil {
		return "", err
	}
	return s.put(s.calls.Begin(ctx, "put", key), b, "", "0", store.ErrExists)
}

// PutUnchanged puts a small object in place of the version was.
func (s *Store) PutUnchanged(ctx context.Context, key string, b []byte, was store.Version) (store.Version, error) {
	if err := remote.CheckSmall(key, b); err != nil {
		return "", err
	}
	c := s.calls.Begin(ctx, "put", key)
	if n, err := strconv.ParseUint(string(was), 10, 63); err != nil || n == 0 { // 0 would match where nothing is
		if f := c.Alive(); f != nil {
			return "", c.Fail(f)
		}
		return "", c.Fail(nil, store.ErrChanged, errors.New("its version is none"))
	}
	return s.put(c, b, was, string(was), store.ErrChanged)
}

func (s *Store) put(c *remote.Call, b []byte, was store.Version, generation string, lost error) (store.Version, error) {
	name := s.name(c.Trace.Key)
	return c.Put(remote.Small{
		Bytes: b, Was: was, Lost: lost,
		Send: func(ctx context.Context) (store.Version, error) {
			p, err := s.insert(ctx, name, b, "", url.Values{"ifGenerationMatch": {generation}})
			return store.Version(p.Generation), err
		},
		Fetch: func(ctx context.Context) ([]byte, store.Version, error) { return s.whole(ctx, name, store.MaxSmall) },
	})
}

// of makes a 404 of an object's what it means. Only a listing, which is consistent here, tells whether the object is absent.
func (s *Store) of(ctx context.Context, name string, err error) error {
	var a *remote.Answer
	if !errors.As(err, &a) || a.Status != http.StatusNotFound {
		return err
	}
	p, lerr := s.page(ctx, name, "", "", 1) // the first name of those that begin so is the name itself
	if lerr != nil {
		return lerr
	}
	if len(p.Items) > 0 && p.Items[0].Name == name {
		return &remote.Failure{Class: remote.Doubtful, Text: "it is listed, and the answer is 404", Err: err}
	}
	return &remote.Failure{Class: remote.Absent, Text: "HTTP 404: it is not listed either", Status: a.Status, Err: err}
}

// whole reads an object of at most most bytes.
func (s *Store) whole(ctx context.Context, name string, most int64) ([]byte, store.Version, error) {
	resp, err := s.media(ctx, name, nil)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	b, err := remote.Whole(resp.Body, resp.ContentLength, most)
	if err != nil {
		return nil, "", err
	}
	if sum := crcOf(resp.Header); sum != "" && sum != textOf(crc32.Checksum(b, castagnoli)) {
		return nil, "", &remote.Failure{Class: remote.Damaged, Text: "other bytes arrived than the store says it has", Err: store.ErrCorrupt}
	}
	return b, store.Version(resp.Header.Get("X-Goog-Generation")), nil
}

// media asks for an object's bytes.
func (s *Store) media(ctx context.Context, name string, header map[string]string) (*http.Response, error) {
	resp, err := s.http.Open(ctx, remote.Request{Method: http.MethodGet, URL: s.object(name, url.Values{"alt": {"media"}}), Header: header})
	if err != nil {
		return nil, s.of(ctx, name, err)
	}
	if resp.Header.Get("X-Goog-Generation") == "" {
		_ = resp.Body.Close()
		return nil, remote.NotTheStores("generation")
	}
	return resp, nil
}

// crcOf finds the CRC32C among an answer's digests.
func crcOf(h http.Header) string {
	for _, line := range h.Values("X-Goog-Hash") {
		for part := range strings.SplitSeq(line, ",") {
			if sum, ok := strings.CutPrefix(strings.TrimSpace(part), "crc32c="); ok {
				return sum
			}
		}
	}
	return ""
}

// Get reads a small object whole.
func (s *Store) Get(ctx context.Context, key string, most int64) (b []byte, v store.Version, err error) {
	if err := store.CheckKey(key); err != nil {
		return nil, "", err
	}
	c := s.calls.Begin(ctx, "get", key)
	f := c.Repeat(func(ctx context.Context) (err error) {
		b, v, err = s.whole(ctx, s.name(key), min(most, store.MaxSmall))
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
		resp, err := s.media(ctx, s.name(key), map[string]string{"Range": remote.Range(off, len(b))})
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
		info, err = s.head(ctx, key)
		return err
	})
	if f != nil {
		return store.Info{}, c.Fail(f)
	}
	return info, nil
}

func (s *Store) head(ctx context.Context, key string) (store.Info, error) {
	_, text, err := s.http.Do(ctx, remote.Request{Method: http.MethodGet, URL: s.object(s.name(key), url.Values{"fields": {fields}})})
	if err != nil {
		return store.Info{}, s.of(ctx, s.name(key), err)
	}
	p, err := parsed(text)
	return p.info(key), err
}

// Delete removes an object.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := store.CheckKey(key); err != nil {
		return err
	}
	c := s.calls.Begin(ctx, "delete", key)
	f := c.Repeat(func(ctx context.Context) error { return s.remove(ctx, s.name(key)) })
	if f != nil {
		return c.Fail(f)
	}
	return nil
}

// remove removes an object by its name; one that is not there is no error.
func (s *Store) remove(ctx context.Context, name string) error {
	_, _, err := s.http.Do(ctx, remote.Request{Method: http.MethodDelete, URL: s.object(name, nil)})
	if err == nil {
		return nil
	}
	err = s.of(ctx, name, err)
	var f *remote.Failure
	if errors.As(err, &f) && f.Class == remote.Absent {
		return nil
	}
	return err
}
