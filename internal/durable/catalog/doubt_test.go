package catalog

import (
	"context"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/read"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/durable/store"
)

// composite is a store that says of each object that was uploaded the digest of something else than all of its bytes, as some servers do of what was put in parts.
type composite struct{ *memory.Store }

func (s composite) Stat(ctx context.Context, key string) (store.Info, error) {
	info, err := s.Store.Stat(ctx, key)
	return other(info), err
}

func (s composite) List(ctx context.Context, prefix, after string, each func(store.Info) error) error {
	return s.Store.List(ctx, prefix, after, func(info store.Info) error { return each(other(info)) })
}

func other(info store.Info) store.Info {
	if strings.HasSuffix(info.Key, ".safetensors") {
		info.Checksum = strings.Repeat("b5", 32)
	}
	return info
}

// TestAnotherChecksumIsADoubt: where the store has another checksum of a file, its bytes decide.
func TestAnotherChecksumIsADoubt(t *testing.T) {
	m := memory.New()
	c := New(composite{m}, Options{Who: "me"})
	if _, err := wrote(t.Context(), c, gen(2), 1, 1); err != nil {
		t.Fatal(err)
	}
	found, skipped, err := c.Find(t.Context(), find0(t, c)[0].Job, find0(t, c)[0].Commit.Run)
	if err != nil || len(found) != 1 || len(skipped) != 0 {
		t.Fatalf("found %d, skipped %+v, %v", len(found), skipped, err)
	}
	f := found[0]
	if err := c.ReadBackNew(t.Context(), f.Run, f.Generation); err != nil || stateIn(t, c, f) != find.Good {
		t.Errorf("it is %s, %v", stateIn(t, c, f), err)
	}
	m.Bend(f.Run.Under(f.Index.Files[0].Key), func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	if err := c.ReadBack(t.Context(), f.Run, f.Generation, read.How{Back: true}, nil); !damage.Is(err) && f.Index.Files[0].Twin == "" {
		t.Errorf("a flipped byte reads with %v", err)
	}
	// What the store has the very checksum of is not read.
	reads := 0
	m.Before = func(call memory.Call) error {
		if call.Verb == "ReadRange" {
			reads++
		}
		return nil
	}
	plain := over(m, 1)
	if err := plain.ReadBack(t.Context(), f.Run, f.Generation, read.How{Back: true}, nil); err != nil || reads != 0 {
		t.Errorf("%d reads, %v", reads, err)
	}
}
