package catalog

import (
	"errors"
	"fmt"
	"path"

	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
)

// damage is an error that names bytes which are not those that were written.
type damage struct {
	key   string // below the run
	chunk int    // of the part; wholeFile: not one chunk
	what  string
	err   error
}

// wholeFile stands for the number of a chunk where a file is damaged, and no chunk of it is known to be.
const wholeFile = -1

func (d *damage) Error() string { return d.err.Error() }
func (d *damage) Unwrap() error { return d.err }

// Plain says in a few words, for people, why a read failed.
func Plain(err error) string {
	var d *damage
	if !errors.As(err, &d) {
		return err.Error()
	}
	name := d.key
	if format.ParseName(name).Kind == format.ReadKind {
		return d.what // which names the file
	}
	if n := format.ParseName(name); n.OfGeneration() && n.Kind != format.CommitKind {
		name = path.Base(name)
	}
	if d.chunk == wholeFile {
		return fmt.Sprintf("%s: %s", name, d.what)
	}
	return fmt.Sprintf("%s, chunk %d: %s", name, d.chunk, d.what)
}

// IsDamage tells whether an error says that bytes are not those that were written. A store that does not answer, or refuses, says nothing of them.
func IsDamage(err error) bool { return err != nil && fatal(err) == nil }

// unread tells whether the store refused to read one thing, while it answers otherwise.
func unread(err error) bool { return errors.Is(err, store.ErrRefused) }
