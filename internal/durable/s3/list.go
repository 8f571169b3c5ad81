package s3

import (
	"context"
	"fmt"
	"strings"

	"github.com/minio/minio-go/v7"

	"github.com/replicad/replicad/internal/durable/remote"
	"github.com/replicad/replicad/internal/durable/store"
)

// page is how many names one request lists: what S3 allows.
const page = 1000

// List calls each for every object whose key begins with prefix. A listing that breaks off goes on after the last key that it has seen.
func (s *Store) List(ctx context.Context, prefix, after string, each func(store.Info) error) error {
	if err := store.CheckPrefix(prefix); err != nil {
		return err
	}
	c := s.calls.Begin(ctx, "list", prefix)
	l := listing{s: s, prefix: s.name(prefix), after: after, each: each, pages: c.Pages()}
	for {
		before := l.after
		f := c.Once(l.run)
		if l.theirs != nil {
			return l.theirs
		}
		if f == nil {
			return nil
		}
		if l.after != before {
			c.Moves()
		}
		if !c.Again(f) {
			return c.Fail(f)
		}
	}
}

type listing struct {
	s      *Store
	prefix string // with the root
	after  string // the last key that was seen, or where to begin
	each   func(store.Info) error
	theirs error // each's own, which is no answer of the store
	pages  remote.Pages
}

func (l *listing) run(ctx context.Context) error {
	owner := false
	opts := minio.ListObjectsOptions{Prefix: l.prefix, Recursive: true, MaxKeys: page, FetchOwner: &owner}
	if l.after != "" {
		opts.StartAfter = l.s.name(l.after)
	}
	l.pages.Anew()
	ctx = context.WithValue(ctx, pagesKey{}, &l.pages) // the library goes from page to page by itself
	for o := range l.s.core.ListObjectsIter(ctx, l.s.settings.Bucket, opts) {
		if o.Err != nil {
			return o.Err
		}
		l.pages.Moved()
		key, ok := strings.CutPrefix(o.Key, l.s.root())
		if !ok || !strings.HasPrefix(o.Key, l.prefix) {
			return unlisted("it lists %q below %q", o.Key, l.prefix)
		}
		if store.CheckKey(key) != nil {
			continue
		}
		if key <= l.after {
			return unlisted("it lists %q after %q: such a store cannot be gone through", key, l.after)
		}
		l.after = key
		if l.theirs = l.each(store.Info{Key: key, Size: o.Size, Modified: o.LastModified, Version: store.Version(o.ETag)}); l.theirs != nil {
			return nil
		}
	}
	return ctx.Err() // the library ends a listing without an error then
}

// pagesKey finds the pages of a listing in the context of its requests.
type pagesKey struct{}

func unlisted(format string, args ...any) error {
	return &remote.Failure{Class: remote.Refused, Text: remote.OneLine(fmt.Sprintf(format, args...)), Err: store.ErrRefused}
}

// maxUnfinished is how many unfinished uploads are listed: those of a server that lists one key's for ever have an end.
const maxUnfinished = 1 << 20

// Unfinished lists uploads that were neither completed nor aborted.
func (s *Store) Unfinished(ctx context.Context, prefix string) (list []store.Pending, err error) {
	if err := store.CheckPrefix(prefix); err != nil {
		return nil, err
	}
	c := s.calls.Begin(ctx, "unfinished", prefix)
	keyMarker, idMarker := "", ""
	pages := c.Pages()
	for {
		token := ""
		if keyMarker != "" || idMarker != "" {
			token = keyMarker + " " + idMarker
		}
		if f := pages.Next(token); f != nil {
			return nil, c.Fail(f)
		}
		var r minio.ListMultipartUploadsResult
		f := c.Repeat(func(ctx context.Context) (err error) {
			r, err = s.core.ListMultipartUploads(ctx, s.settings.Bucket, s.name(prefix), keyMarker, idMarker, "", page)
			return err
		})
		if f != nil {
			return nil, c.Fail(f)
		}
		for _, u := range r.Uploads {
			pages.Moved()
			if key, ok := strings.CutPrefix(u.Key, s.root()); ok && strings.HasPrefix(u.Key, s.name(prefix)) && store.CheckKey(key) == nil {
				list = append(list, store.Pending{Key: key, ID: u.UploadID, Began: u.Initiated})
			}
		}
		if !r.IsTruncated {
			return list, nil
		}
		if r.NextKeyMarker < keyMarker || r.NextKeyMarker == keyMarker && r.NextUploadIDMarker == idMarker || len(list) > maxUnfinished {
			return nil, c.Fail(judge(ctx, c.Trace, unlisted("after %d unfinished uploads it goes on at %q, which is not after %q", len(list), r.NextKeyMarker, keyMarker)))
		}
		keyMarker, idMarker = r.NextKeyMarker, r.NextUploadIDMarker
		c.Moves()
	}
}

// maxAborts bounds the aborts of one upload. A part that was on its way during one may be kept, and paid for, until the next.
const maxAborts = 5

// AbortPending ends somebody's unfinished upload.
func (s *Store) AbortPending(ctx context.Context, p store.Pending) error {
	if err := store.CheckKey(p.Key); err != nil {
		return err
	}
	c := s.calls.Begin(ctx, "abort", p.Key)
	if p.ID == "" {
		return c.Fail(nil, store.ErrRefused, fmt.Errorf("the upload has no ID"))
	}
	for range maxAborts {
		f := c.Repeat(func(ctx context.Context) error {
			return s.core.AbortMultipartUpload(ctx, s.settings.Bucket, s.name(p.Key), p.ID)
		})
		if f != nil {
			return unlessGone(c, f)
		}
		f = c.Repeat(func(ctx context.Context) error {
			_, err := s.core.ListObjectParts(ctx, s.settings.Bucket, s.name(p.Key), p.ID, 0, 1)
			return err
		})
		if f != nil {
			return unlessGone(c, f)
		}
	}
	return c.Fail(nil, store.ErrDoubtful, fmt.Errorf("its parts are listed after %d aborts", maxAborts))
}

func unlessGone(c *remote.Call, f *remote.Failure) error {
	if f.Class == remote.NoUpload || f.Class == remote.Absent {
		return nil
	}
	return c.Fail(f)
}
