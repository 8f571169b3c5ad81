// Package usage marks errors of whoever asked: wrong flags or arguments, a request that cannot be meant. Nothing was tried then, and
// trying again changes nothing.
package usage

import "errors"

// Error is such an error. Its text is that of the error inside.
type Error struct{ error }

// Unwrap is the error inside.
func (e Error) Unwrap() error { return e.error }

// Wrong marks an error; nil stays nil.
func Wrong(err error) error {
	if err == nil {
		return nil
	}
	return Error{err}
}

// Is reports whether an error is marked.
func Is(err error) bool { return errors.As(err, new(Error)) }
