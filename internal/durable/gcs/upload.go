package gcs

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/replicad/replicad/internal/durable/remote"
	"github.com/replicad/replicad/internal/durable/store"
)

// Objects of an upload lie at ~u/KEY~ID/: begin, parts p-00000, and what 32 of them were composed to, c1-00000. No key has a ~.
const (
	below    = "~u/"
	begun    = "begin"
	together = 32 // that one request composes: what Google allows
	lanes    = 16 // requests at once, of what an upload composes and deletes
	// partClass spares a bucket of a colder class the fee for what is deleted early.
	partClass  = "STANDARD"
	mostUpload = 5 << 40 // bytes of an object: what Google allows
)

var uploadID = regexp.MustCompile(`^[A-Z2-7]{26}$`)

// upload is an upload on its way.
type upload struct {
	s    *Store
	key  string
	at   string // begins the names of its objects
	size int64
	part int64
	n    int

	mu   sync.Mutex
	sums []uint32 // of its parts
}

func (s *Store) uploadAt(key, id string) string { return s.root() + below + key + "~" + id + "/" }

// Upload begins a large object.
func (s *Store) Upload(ctx context.Context, key string, size int64) (store.Upload, error) {
	if err := store.CheckKey(key); err != nil {
		return nil, err
	}
	if size < 0 || size > mostUpload {
		return nil, fmt.Errorf("upload %s: %d bytes, want 0 to %d", key, size, int64(mostUpload))
	}
	c := s.calls.Begin(ctx, "upload", key)
	u := &upload{s: s, key: key, at: s.uploadAt(key, rand.Text()), size: size}
	parts := s.calls.NewUpload(key, size, s.settings.PartBytes, remote.Parts{
		Part: u.put, Join: u.join, Free: u.free, Done: u.free,
		Head: func(ctx context.Context) (store.Info, error) { return s.head(ctx, key) },
	})
	u.n, u.part = parts.Count(), parts.PartBytes()
	u.sums = make([]uint32, u.n)
	f := c.Alive()
	if u.n > 0 {
		f = c.Repeat(func(ctx context.Context) error {
			_, err := s.insert(ctx, u.at+begun, nil, partClass, url.Values{})
			return err
		})
	}
	if f != nil {
		return nil, c.Fail(f)
	}
	return parts, nil
}

func partName(i int) string { return fmt.Sprintf("p-%05d", i) }

func (u *upload) put(ctx context.Context, i int, b []byte) error {
	if _, err := u.s.insert(ctx, u.at+partName(i), b, partClass, url.Values{}); err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sums[i] = crc32.Checksum(b, castagnoli)
	return nil
}

// piece is a part, or several that were composed.
type piece struct {
	name string
	sum  uint32
	size int64
}

// join composes the parts, 32 at once, then what came of that, until one is left.
func (u *upload) join(ctx context.Context) error {
	if u.n == 0 {
		_, err := u.s.insert(ctx, u.s.name(u.key), nil, "", url.Values{})
		return err
	}
	pieces, err := u.parts(ctx)
	if err != nil {
		return err
	}
	for level := 1; len(pieces) > together; level++ {
		groups := slices.Collect(slices.Chunk(pieces, together))
		next := make([]piece, len(groups))
		err := each(len(groups), func(i int) (err error) {
			next[i], err = u.compose(ctx, fmt.Sprintf("%sc%d-%05d", u.at, level, i), groups[i])
			return err
		})
		if err != nil {
			return err
		}
		pieces = next
	}
	_, err = u.compose(ctx, u.s.name(u.key), pieces)
	return err
}

// parts looks whether all of them are still there: somebody may have aborted the upload.
func (u *upload) parts(ctx context.Context) ([]piece, error) {
	there := map[string]properties{}
	if err := u.s.all(ctx, u.at, func(p properties) { there[p.Name] = p }); err != nil {
		return nil, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	list := make([]piece, u.n)
	for i := range list {
		p := piece{u.at + partName(i), u.sums[i], min(u.part, u.size-int64(i)*u.part)}
		switch o, ok := there[p.name]; {
		case !ok:
			return nil, &remote.Failure{Class: remote.NoUpload, Text: fmt.Sprintf("part %d is gone: the upload was aborted", i), Err: errors.New("no part")}
		case o.Size != p.size || o.CRC != "" && o.CRC != textOf(p.sum):
			return nil, &remote.Failure{Class: remote.Refused, Text: fmt.Sprintf("part %d is not the one that was put", i), Err: store.ErrCorrupt}
		}
		list[i] = p
	}
	return list, nil
}

// compose makes one object of several.
func (u *upload) compose(ctx context.Context, name string, of []piece) (piece, error) {
	type source struct {
		Name string `json:"name"`
	}
	q := struct {
		Sources []source `json:"sourceObjects"`
		To      struct {
			Type  string `json:"contentType"`
			Class string `json:"storageClass,omitempty"`
		} `json:"destination"`
	}{}
	q.To.Type = "application/octet-stream"
	if strings.HasPrefix(name, u.at) {
		q.To.Class = partClass
	}
	out := piece{name: name}
	for _, p := range of {
		q.Sources = append(q.Sources, source{p.name})
		out.sum, out.size = joined(out.sum, p.sum, p.size), out.size+p.size
	}
	b, err := json.Marshal(q)
	if err != nil {
		return piece{}, err
	}
	_, text, err := u.s.http.Do(ctx, remote.Request{
		Method: http.MethodPost, URL: u.s.bucket("/o/"+url.QueryEscape(name)+"/compose", u.s.keyed(url.Values{"fields": {fields}})),
		Header: map[string]string{"Content-Type": "application/json"}, Body: [][]byte{b},
	})
	if err != nil {
		return piece{}, u.lost(err)
	}
	p, err := parsed(text)
	if err == nil && (p.CRC != "" && p.CRC != textOf(out.sum) || p.Size != out.size) {
		return piece{}, &remote.Failure{Class: remote.Refused, Text: "the store composed other bytes than its parts have", Err: store.ErrCorrupt}
	}
	return out, err
}

// lost makes a 404 of a composition doubtful: the next attempt looks whether the parts are there.
func (u *upload) lost(err error) error {
	var a *remote.Answer
	if errors.As(err, &a) && a.Status == http.StatusNotFound {
		return &remote.Failure{Class: remote.Doubtful, Text: "HTTP 404 of a part", Status: a.Status, Err: err}
	}
	return err
}

// free deletes what the upload put, but the object.
func (u *upload) free(ctx context.Context) error { return u.s.clear(ctx, u.at) }

// clear deletes all objects whose names begin so, the parts first: what is left of an upload is listed as one.
func (s *Store) clear(ctx context.Context, at string) error {
	var list []string
	if err := s.all(ctx, at, func(p properties) { list = append(list, p.Name) }); err != nil || len(list) == 0 {
		return err
	}
	return each(len(list), func(i int) error { return s.remove(ctx, list[i]) })
}

// all calls each for every name that begins so.
func (s *Store) all(ctx context.Context, prefix string, each func(properties)) error {
	var pages remote.Pages
	for token := ""; ; {
		if f := pages.Next(token); f != nil {
			return f
		}
		n, err := s.page(ctx, prefix, "", token, pageSize)
		if err != nil {
			return err
		}
		for _, p := range n.Items {
			pages.Moved()
			each(p)
		}
		if n.Next == "" {
			return nil
		}
		token = n.Next
	}
}

// each does n things, some at once, and returns the first error.
func each(n int, do func(i int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	free := make(chan struct{}, lanes)
	for i := range n {
		free <- struct{}{}
		wg.Go(func() {
			errs[i] = do(i)
			<-free
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Unfinished lists uploads that were neither completed nor aborted.
func (s *Store) Unfinished(ctx context.Context, prefix string) (list []store.Pending, err error) {
	if err := store.CheckPrefix(prefix); err != nil {
		return nil, err
	}
	c := s.calls.Begin(ctx, "unfinished", prefix)
	f := c.Repeat(func(ctx context.Context) error {
		list = nil
		return s.all(ctx, s.root()+below+prefix, func(p properties) {
			rest := strings.TrimPrefix(p.Name, s.root()+below)
			key, rest, _ := strings.Cut(rest, "~")
			id, _, _ := strings.Cut(rest, "/")
			if store.CheckKey(key) != nil || !uploadID.MatchString(id) {
				return
			}
			if n := len(list) - 1; n >= 0 && list[n].Key == key && list[n].ID == id {
				if p.Updated.After(list[n].Began) {
					list[n].Began = p.Updated // it moves
				}
				return
			}
			list = append(list, store.Pending{Key: key, ID: id, Began: p.Updated})
		})
	})
	if f != nil {
		return nil, c.Fail(f)
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
	if f := c.Repeat(func(ctx context.Context) error { return s.clear(ctx, s.uploadAt(p.Key, p.ID)) }); f != nil {
		return c.Fail(f)
	}
	return nil
}
