package holding

import "github.com/replicad/replicad/internal/invariant"

// Check holds an arena's account of its readers against itself. In builds that do not check it does nothing.
func (a *Arena) Check() {
	if !invariant.On || a.closed && a.users == 0 {
		return
	}
	readers := 0
	for p, n := range a.held {
		readers += n
		invariant.Holds(n > 0, "%v of arena %s is held by %d", p, a.key, n)
	}
	invariant.Holds(a.users >= readers, "arena %s has %d users, and %d readers", a.key, a.users, readers)
}
