package directory

import (
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/durable/store"
)

// TestAListBesideADeletion: what was put before a deletion beside the list is in it, if it comes later by key: a job that commits one generation and
// deletes the last is not seen without any.
func TestAListBesideADeletion(t *testing.T) {
	for _, below := range []string{"", "/x"} {
		s := opened(t, t.TempDir(), newFaults())
		put := func(n string) {
			t.Helper()
			if _, err := s.PutNew(t.Context(), "d/"+n+below, []byte{1}); err != nil {
				t.Fatal(err)
			}
		}
		put("1")
		put("2")
		var got []string
		err := s.List(t.Context(), "d/", "", func(i store.Info) error {
			if got = append(got, i.Key); len(got) == 1 {
				put("3")
				put("4")
				if err := s.Delete(t.Context(), "d/2"+below); err != nil {
					t.Error(err)
				}
			}
			return nil
		})
		if want := []string{"d/1" + below, "d/3" + below, "d/4" + below}; err != nil || !slices.Equal(got, want) {
			t.Errorf("%v, %v, want %v", got, err, want)
		}
	}
}
