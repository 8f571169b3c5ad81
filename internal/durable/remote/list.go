package remote

import (
	"context"
	"strings"

	"github.com/replicad/replicad/internal/durable/store"
)

// Page is one answer to a listing: objects by their whole names.
type Page struct {
	Objects []store.Info
	Next    string // empty: it is the last
}

// ListPages is store.Store's List, by pages. get asks for a page: of names that begin with root and prefix, from after (a key; empty: from the
// first) where it can, and from next on where that is not empty. A page that breaks off is asked for again.
func (c *Call) ListPages(root, prefix, after string, each func(store.Info) error, get func(ctx context.Context, next string) (Page, error)) error {
	last, next := "", ""
	pages := c.Pages()
	for {
		if f := pages.Next(next); f != nil {
			return c.Fail(f)
		}
		var p Page
		f := c.Repeat(func(ctx context.Context) (err error) {
			p, err = get(ctx, next)
			return err
		})
		if f != nil {
			return c.Fail(f)
		}
		for _, o := range p.Objects {
			pages.Moved()
			key, ok := strings.CutPrefix(o.Key, root)
			if !ok || !strings.HasPrefix(key, prefix) {
				return c.unlisted("it lists %q below %q", o.Key, root+prefix)
			}
			if store.CheckKey(key) != nil {
				continue
			}
			if key <= last {
				return c.unlisted("it lists %q after %q: such a store cannot be gone through", key, last)
			}
			last, o.Key = key, key
			if key <= after {
				continue
			}
			if err := each(o); err != nil {
				return err
			}
		}
		if p.Next == "" {
			return nil
		}
		next = p.Next
		c.Moves()
	}
}

func (c *Call) unlisted(format string, args ...any) error {
	return c.Fail(unordered(format, args...))
}
