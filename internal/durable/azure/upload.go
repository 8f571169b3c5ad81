package azure

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"time"

	"github.com/replicad/replicad/internal/durable/remote"
	"github.com/replicad/replicad/internal/durable/store"
)

var uploadID = regexp.MustCompile(`^[A-Z2-7]{26}$`)

// The name of a block is the upload's ID and ten digits: of the first when the upload began, in seconds since 1970, of the others their number.
// All blocks of an object have names of one length.
func blockName(id string, n int64) string {
	return base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%s%010d", id, n))
}

const firstTime = 1_000_000_000 // no part has such a number

// parseBlock reads a block's name; false: it is none of an upload of ours.
func parseBlock(name string) (id string, n int64, ok bool) {
	b, err := base64.StdEncoding.DecodeString(name)
	if err != nil || len(b) != 36 || !uploadID.Match(b[:26]) {
		return "", 0, false
	}
	n, err = strconv.ParseInt(string(b[26:]), 10, 64)
	return string(b[:26]), n, err == nil
}

// upload is an upload on its way.
type upload struct {
	s   *Store
	key string
	id  string
	n   int
}

// Upload begins a large object.
func (s *Store) Upload(ctx context.Context, key string, size int64) (store.Upload, error) {
	if err := store.CheckKey(key); err != nil {
		return nil, err
	}
	if size < 0 || size > mostUpload || remote.PartFor(size, 1) > mostPart {
		return nil, fmt.Errorf("upload %s: %d bytes, want 0 to %d", key, size, int64(remote.MaxParts*mostPart))
	}
	c := s.calls.Begin(ctx, "upload", key)
	u := &upload{s: s, key: key, id: rand.Text()}
	parts := s.calls.NewUpload(key, size, s.settings.PartBytes, remote.Parts{
		Part: func(ctx context.Context, i int, b []byte) error { return u.stage(ctx, int64(i), b) },
		Join: u.join,
		Head: func(ctx context.Context) (store.Info, error) { info, _, err := s.head(ctx, key); return info, err },
		Free: func(ctx context.Context) error { return s.discard(ctx, key) },
	})
	u.n = parts.Count()
	f := c.Alive()
	if u.n > 0 {
		f = c.Repeat(func(ctx context.Context) error { return u.stage(ctx, max(time.Now().Unix(), firstTime), []byte{0}) })
	}
	if f != nil {
		return nil, c.Fail(f)
	}
	return parts, nil
}

// stage puts a block.
func (u *upload) stage(ctx context.Context, n int64, b []byte) error {
	got, _, err := u.s.http.Do(ctx, remote.Request{
		Method: http.MethodPut, URL: u.s.blob(u.key, url.Values{"comp": {"block"}, "blockid": {blockName(u.id, n)}}),
		Header: u.s.scoped(map[string]string{"Content-MD5": sumOf(b), "Content-Type": "application/octet-stream"}), Body: [][]byte{b},
	})
	if err == nil && got.Get("X-Ms-Request-Id") == "" {
		err = remote.NotTheStores("x-ms-request-id")
	}
	return err
}

// join makes the object of its blocks.
func (u *upload) join(ctx context.Context) error {
	if u.n == 0 {
		_, err := u.s.write(ctx, u.s.blob(u.key, nil), nil, blockBlob("X-Ms-Version", version))
		return err
	}
	var blocks []string
	for i := range u.n {
		blocks = append(blocks, blockName(u.id, int64(i)))
	}
	_, err := u.s.commit(ctx, u.key, blocks, nil)
	return err
}

// commit makes an object of blocks. The server frees those that are not among them.
func (s *Store) commit(ctx context.Context, key string, blocks []string, header map[string]string) (store.Version, error) {
	b, err := xml.Marshal(struct {
		XMLName     xml.Name `xml:"BlockList"`
		Uncommitted []string
	}{Uncommitted: blocks})
	if err != nil {
		return "", err
	}
	h := map[string]string{"Content-Type": "application/xml", "X-Ms-Blob-Content-Type": "application/octet-stream"}
	for k, v := range header {
		h[k] = v
	}
	return s.write(ctx, s.blob(key, url.Values{"comp": {"blocklist"}}), append([]byte(xml.Header), b...), h)
}

// aborted marks the empty object that frees what was staged.
const aborted = "X-Ms-Meta-Replicadaborted"

// discard frees what was staged under a key: the server does it when an object is made there of other blocks, or of none. An object that is there already was completed.
func (s *Store) discard(ctx context.Context, key string) error {
	v, err := s.commit(ctx, key, nil, map[string]string{"If-None-Match": "*", aborted: "1"})
	if err != nil {
		if unless(remote.Exists, err) != nil {
			return err
		}
		info, header, err := s.head(ctx, key)
		if err != nil {
			return unless(remote.Absent, err)
		}
		if header.Get(aborted) == "" {
			return nil
		}
		v = info.Version // an abort that was cut off, perhaps this one
	}
	err = s.remove(ctx, key, map[string]string{"If-Match": `"` + string(v) + `"`})
	return unless(remote.Exists, unless(remote.Absent, err)) // somebody else's by now
}

// staged are the uploads that have blocks under a key, and when they began.
func (s *Store) staged(ctx context.Context, key string) (map[string]time.Time, error) {
	_, text, err := s.http.Do(ctx, remote.Request{Method: http.MethodGet, URL: s.blob(key, url.Values{"comp": {"blocklist"}, "blocklisttype": {"uncommitted"}})})
	if err != nil {
		return nil, unless(remote.Absent, err)
	}
	var list struct {
		XMLName           xml.Name `xml:"BlockList"`
		UncommittedBlocks struct {
			Block []struct{ Name string }
		}
	}
	if err := xml.Unmarshal(bare(text), &list); err != nil {
		return nil, remote.NotTheStores("list of blocks")
	}
	found := map[string]time.Time{}
	for _, b := range list.UncommittedBlocks.Block {
		id, n, ok := parseBlock(b.Name)
		if !ok {
			continue
		}
		if _, seen := found[id]; !seen {
			found[id] = time.Now() // until its first block is seen: it may have been freed meanwhile
		}
		if n >= firstTime {
			found[id] = time.Unix(n, 0)
		}
	}
	return found, nil
}

// Unfinished lists uploads that were neither completed nor aborted.
func (s *Store) Unfinished(ctx context.Context, prefix string) (list []store.Pending, err error) {
	if err := store.CheckPrefix(prefix); err != nil {
		return nil, err
	}
	c := s.calls.Begin(ctx, "unfinished", prefix)
	var keys []string
	err = c.ListPages(s.root(), prefix, "", func(o store.Info) error {
		if o.Size == 0 || o.Version == "" { // what is staged alone has neither
			keys = append(keys, o.Key)
		}
		return nil
	}, func(ctx context.Context, next string) (remote.Page, error) {
		return s.page(ctx, s.root()+prefix, next, "uncommittedblobs")
	})
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		var found map[string]time.Time
		f := c.Repeat(func(ctx context.Context) (err error) {
			found, err = s.staged(ctx, key)
			return err
		})
		if f != nil {
			return nil, c.Fail(f)
		}
		for id, began := range found {
			list = append(list, store.Pending{Key: key, ID: id, Began: began})
		}
		c.Moves()
	}
	return list, nil
}

// AbortPending ends somebody's unfinished upload.
func (s *Store) AbortPending(ctx context.Context, p store.Pending) error {
	if err := store.CheckKey(p.Key); err != nil {
		return err
	}
	c := s.calls.Begin(ctx, "abort", p.Key)
	if !uploadID.MatchString(p.ID) {
		return c.Fail(nil, store.ErrRefused, errors.New("it is no upload's ID"))
	}
	f := c.Repeat(func(ctx context.Context) error {
		found, err := s.staged(ctx, p.Key)
		if _, there := found[p.ID]; err != nil || !there {
			return err
		}
		return s.discard(ctx, p.Key)
	})
	if f != nil {
		return c.Fail(f)
	}
	return nil
}
