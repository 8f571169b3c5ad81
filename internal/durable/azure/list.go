package azure

import (
	"context"
	"encoding/xml"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/remote"
	"github.com/replicad/replicad/internal/durable/store"
)

// pageSize is how many names one request lists: what Azure allows.
const pageSize = 5000

// names is an answer to a listing.
type names struct {
	XMLName xml.Name `xml:"EnumerationResults"`
	Blobs   struct {
		Blob []struct {
			Name struct {
				Text    string `xml:",chardata"`
				Encoded bool   `xml:"Encoded,attr"` // it has characters that XML has not
			}
			Properties struct {
				Size     int64  `xml:"Content-Length"`
				Modified string `xml:"Last-Modified"`
				Etag     string
				Kind     string `xml:"ResourceType"`
			}
		}
	}
	NextMarker string
}

// page lists objects whose names begin with a prefix. include is what else is listed; empty: nothing.
func (s *Store) page(ctx context.Context, prefix, next, include string) (remote.Page, error) {
	q := url.Values{"restype": {"container"}, "comp": {"list"}, "prefix": {prefix}, "maxresults": {strconv.Itoa(s.most)}}
	if prefix == "" {
		q.Del("prefix")
	}
	if next != "" {
		q.Set("marker", next)
	}
	if include != "" {
		q.Set("include", include)
	}
	_, text, err := s.http.Do(ctx, remote.Request{Method: http.MethodGet, URL: s.container("", q)})
	if err != nil {
		return remote.Page{}, err
	}
	return parsePage(text)
}

// parsePage reads an answer to a listing.
func parsePage(text []byte) (remote.Page, error) {
	var n names
	if err := xml.Unmarshal(bare(text), &n); err != nil {
		return remote.Page{}, remote.NotTheStores("list of objects")
	}
	p := remote.Page{Next: n.NextMarker}
	for _, b := range n.Blobs.Blob {
		if b.Properties.Kind == "directory" { // of an account with a hierarchical namespace
			continue
		}
		name := b.Name.Text
		if b.Name.Encoded {
			var err error
			if name, err = url.PathUnescape(name); err != nil {
				return remote.Page{}, remote.NotTheStores("list of objects")
			}
		}
		at, _ := time.Parse(http.TimeFormat, b.Properties.Modified) // zero: it says none
		p.Objects = append(p.Objects, store.Info{Key: name, Size: b.Properties.Size, Modified: at, Version: store.Version(strings.Trim(b.Properties.Etag, `"`))})
	}
	return p, nil
}

// List calls each for every object whose key begins with prefix. The server lists from the first name of a prefix on.
func (s *Store) List(ctx context.Context, prefix, after string, each func(store.Info) error) error {
	if err := store.CheckPrefix(prefix); err != nil {
		return err
	}
	return s.calls.Begin(ctx, "list", prefix).ListPages(s.root(), prefix, after, each, func(ctx context.Context, next string) (remote.Page, error) {
		return s.page(ctx, s.root()+prefix, next, "")
	})
}
