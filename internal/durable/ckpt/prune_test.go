package ckpt

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/catalogtest"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/replicad/replicad/replica"
)

// TestPruneOfWhatIsRead: what somebody reads since it was judged stays, and is no failure.
func TestPruneOfWhatIsRead(t *testing.T) {
	dir := t.TempDir()
	for _, step := range []replica.Step{10, 20, 30} {
		catalogtest.Write(t, dir, step, 0)
	}
	st, err := place.OpenStore(t.Context(), dir, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	cat := catalog.New(st, catalog.Options{Who: "ada"})
	list, err := cat.List(t.Context(), durabletest.JobName)
	if err != nil || len(list) != 3 {
		t.Fatal(list, err)
	}
	if _, err := cat.Lease(t.Context(), list[1].Run, list[1].Generation, "ckpt verify"); err != nil {
		t.Fatal(err)
	}
	row := PruneRow{Reason: "newer ones are good"}
	if err := row.goes(t.Context(), cat, list[1]); err != nil || !row.Kept || !strings.Contains(row.Reason, "reader-ada-") || !strings.Contains(row.Reason, "ckpt verify") {
		t.Errorf("of what is read meanwhile: %v, %+v", err, row)
	}
	if kept, until, open := catalog.KeptBy(nil); kept || open || !until.Before(time.Now()) {
		t.Error(kept, until, open)
	}
}
