// Package journaltest makes journals for the tests of other packages.
package journaltest

import (
	"io"
	"testing"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/journal"
)

// New is a log of everything, of node n1, in lines of JSON.
func New(t testing.TB, w io.Writer) *journal.Journal {
	t.Helper()
	j, err := journal.New(w, config.Log{Level: "debug"}, "n1")
	if err != nil {
		t.Fatal(err)
	}
	return j
}
