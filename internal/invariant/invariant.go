// Package invariant checks, in builds with the race detector or the tag invariants, what must hold between any two events: a test that breaks one ends there and not
// where the harm shows (the model is pebble's invariants). Elsewhere a check costs nothing.
package invariant

import "fmt"

// Holds ends the program in a build that checks, where ok is false. Its arguments are evaluated in every build: keep them cheap, or ask On first.
func Holds(ok bool, format string, args ...any) {
	if On && !ok {
		panic("invariant: " + fmt.Sprintf(format, args...))
	}
}
