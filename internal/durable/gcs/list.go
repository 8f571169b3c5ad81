package gcs

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"github.com/replicad/replicad/internal/durable/remote"
	"github.com/replicad/replicad/internal/durable/store"
)

// pageSize is how many names one request lists: what Google allows.
const pageSize = 1000

// names is an answer to a listing.
type names struct {
	Kind  string       `json:"kind"`
	Items []properties `json:"items"`
	Next  string       `json:"nextPageToken"`
}

// page lists names that begin with prefix, from the name from on, or from a token of the last page.
func (s *Store) page(ctx context.Context, prefix, from, token string, most int) (names, error) {
	q := url.Values{"prefix": {prefix}, "maxResults": {strconv.Itoa(most)}, "fields": {"kind,nextPageToken,items(" + fields + ")"}}
	switch {
	case token != "":
		q.Set("pageToken", token)
	case from != "":
		q.Set("startOffset", from)
	}
	_, text, err := s.http.Do(ctx, remote.Request{Method: http.MethodGet, URL: s.bucket("/o", q)})
	if err != nil {
		return names{}, err
	}
	return parseNames(text)
}

// parseNames reads an answer to a listing.
func parseNames(text []byte) (n names, err error) {
	if err := json.Unmarshal(text, &n); err != nil || n.Kind != "storage#objects" {
		return names{}, remote.NotTheStores("list of objects")
	}
	return n, nil
}

// objects are those that it names.
func (n names) objects() remote.Page {
	p := remote.Page{Next: n.Next}
	for _, o := range n.Items {
		p.Objects = append(p.Objects, o.info(o.Name))
	}
	return p
}

// List calls each for every object whose key begins with prefix.
func (s *Store) List(ctx context.Context, prefix, after string, each func(store.Info) error) error {
	if err := store.CheckPrefix(prefix); err != nil {
		return err
	}
	from := ""
	if after != "" {
		from = s.name(after)
	}
	return s.calls.Begin(ctx, "list", prefix).ListPages(s.root(), prefix, after, each, func(ctx context.Context, next string) (remote.Page, error) {
		n, err := s.page(ctx, s.name(prefix), from, next, pageSize)
		return n.objects(), err
	})
}
