// Package storetest is the contract of package store as a suite: each row is one case, and every store passes all of them.
//
// A row gets a Bed of its own: a root that nothing else uses, on a server or file system that others use as well. Rows start goroutines,
// and end them before they return. The package is imported by tests alone.
package storetest

import (
	"cmp"
	"testing"

	"github.com/replicad/replicad/internal/durable/store"
)

// Bed is one root in one store, and what a test can do to it from outside.
type Bed struct {
	// Open is another client of the root, as another process would be. It is closed at the end of the test.
	Open func(t testing.TB) store.Store
	// Raw puts an object below the root without asking the store, also under a key that the store refuses.
	Raw func(t testing.TB, key string, b []byte)
	// Outside puts an object beside the root, whose name begins as the root's does, and returns a function that tells what lies outside.
	Outside func(t testing.TB) func() map[string]string
	// LoseAnswer lets the next write of a key (a put, or the completion of an upload) be carried out, and its answer be lost. nil: it cannot be done here.
	LoseAnswer func(t testing.TB, key string)
	// LoseRequest lets the next write of a key be lost on its way, and its sender not know. nil: it cannot be done here.
	LoseRequest func(t testing.TB, key string)
	// Stall lets the store answer nothing until the function that it returns is called. nil: it cannot be done here.
	Stall func(t testing.TB) (end func())
	// Plant puts what is no object under a key: "symlink" to a file outside, "symlinked directory", "fifo", "directory". nil: there are none.
	Plant func(t testing.TB, kind, key string)
	// KeepsDeleted: a known fault of this server. A key that was deleted is there to its conditions.
	KeepsDeleted bool
	// Secret is what no error and no URL may hold; empty: there is none.
	Secret string

	says *string // what a row has to say in the table, besides ok
}

// Row is one case of the suite.
type Row struct {
	Name string
	Test func(t *testing.T, b Bed)
}

// Results are the outcomes by row: "ok", "no" where a known fault of the server was seen, "-" where it does not apply, "fails".
type Results map[string]string

// Run runs the whole suite. fresh makes a bed.
func Run(t *testing.T, fresh func(t *testing.T) Bed) Results {
	results := Results{}
	for _, row := range Rows() {
		says := ""
		ok := t.Run(row.Name, func(t *testing.T) {
			defer func() {
				if t.Skipped() {
					results[row.Name] = "-"
				}
			}()
			b := fresh(t)
			b.says = &says
			row.Test(t, b)
		})
		switch {
		case !ok:
			results[row.Name] = "fails"
		case results[row.Name] == "":
			results[row.Name] = cmp.Or(says, "ok")
		}
	}
	return results
}
