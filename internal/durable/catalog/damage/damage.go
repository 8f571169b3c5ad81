// Package damage is the errors that name bytes which are not those that were written, and the questions about errors of a store: whether
// one leaves open what lies there.
package damage

import (
	"errors"
	"fmt"
	"path"

	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/durable/store"
)

// Damage is an error that names bytes which are not those that were written.
type Damage struct {
	Key   string // below the run
	chunk int    // of the part; wholeFile: not one chunk
	what  string
	err   error
}

// WholeFile stands for the number of a chunk where a file is damaged, and no chunk of it is known to be.
const WholeFile = -1

// New is the error for a chunk of the file with a key, or for WholeFile of it; what names the damage in a few words.
func New(key string, chunk int, what string, err error) error {
	return &Damage{Key: key, chunk: chunk, what: what, err: err}
}

func (d *Damage) Error() string { return d.err.Error() }

func (d *Damage) Unwrap() error { return d.err }

// Plain says in a few words, for people, why a read failed.
func Plain(err error) string {
	var d *Damage
	if !errors.As(err, &d) {
		return err.Error()
	}
	name := d.Key
	if format.ParseName(name).Kind == format.ReadKind {
		return d.what // which names the file
	}
	if n := format.ParseName(name); n.OfGeneration() && n.Kind != format.CommitKind {
		name = path.Base(name)
	}
	if d.chunk == WholeFile {
		return fmt.Sprintf("%s: %s", name, d.what)
	}
	return fmt.Sprintf("%s, chunk %d: %s", name, d.chunk, d.what)
}

// Is reports whether an error says that bytes are not those that were written. A store that does not answer, or refuses, says nothing of
// them.
func Is(err error) bool { return err != nil && Fatal(err) == nil }

// Unread reports whether the store refused to read one thing, while it answers otherwise.
func Unread(err error) bool { return errors.Is(err, store.ErrRefused) }

// Fatal returns an error that leaves open what lies in the store; nil for those that say it.
func Fatal(err error) error {
	if err == nil || errors.Is(err, format.ErrCorrupt) || errors.Is(err, format.ErrNewer) || errors.Is(err,
		store.ErrCorrupt) || errors.Is(err, store.ErrAbsent) {
		return nil
	}
	return err
}

// Lying is what is wrong with a file, by what the store says of it without reading it.
func Lying(key string, err error) error {
	switch {
	case errors.Is(err, store.ErrAbsent):
		return New(key, WholeFile, "is missing", fmt.Errorf("%s is missing: %w", key, err))
	case errors.Is(err, store.ErrCorrupt):
		return New(key, WholeFile, err.Error(), fmt.Errorf("%s: %w", key, err))
	}
	return fmt.Errorf("%s: %w", key, err)
}

// CantTell reports whether an error leaves open what lies in the store as a whole. That one object is missing, is damaged or is refused
// does not.
func CantTell(err error) bool { return Fatal(err) != nil && !Unread(err) }

// Corrupted marks what does not decrypt as what differs from its digest is marked.
func Corrupted(err error) error {
	if errors.Is(err, sealed.ErrDamaged) {
		return fmt.Errorf("%w: %w", store.ErrCorrupt, err)
	}
	return err
}
