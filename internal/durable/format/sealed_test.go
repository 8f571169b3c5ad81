package format

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/replica"
)

const (
	before    = 200
	recipient = "age1xe3u8f485cqjdcugkl2xtknsjmqna4hm2qr6t90tqykfpyemdedqxlnyqg"
)

// encrypted is generation's as it lies in a store that is encrypted: with other sizes and digests.
func encrypted(t testing.TB) (*Index, *Commit) {
	t.Helper()
	x, _, com, _ := generation(t)
	c := *com
	c.Bytes, c.Frozen = 0, nil
	for i := range x.Files {
		f := &x.Files[i]
		f.Sealed, f.Bytes = before, sealed.StoredSize(f.Bytes, before)
		c.Bytes += f.Bytes
		if f.Twin != "" {
			n := ParseName(f.Key)
			n.Seal = "0123456789abcdef"
			f.Key, n.Twin = n.String(), 'b'
			f.Twin = n.String()
			c.Frozen = append(c.Frozen, f.Key, f.Twin)
		}
	}
	c.Sealed = &Sealing{Recipients: []string{recipient}, Files: slices.Clone(x.Files)}
	return x, &c
}

// upside stands for a cipher.
func upside(b []byte) ([]byte, error) {
	out := bytes.Clone(b)
	for i := range out {
		out[i] ^= 0xff
	}
	return out, nil
}

// store puts the index that an encrypted COMMIT names.
func store(t *testing.T, x *Index, c *Commit) []byte {
	t.Helper()
	b, err := x.Seal()
	if err != nil {
		t.Fatal(err)
	}
	b, _ = upside(b)
	c.Index.Bytes, c.Index.SHA256 = uint64(len(b)), Sum(b)
	return b
}

// The commit of an encrypted generation lists its files, whose bytes are those that lie there; the index is read once it was decrypted.
func TestEncryptedGeneration(t *testing.T) {
	x, c := encrypted(t)
	b := store(t, x, c)
	raw, err := c.Seal()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseCommit(raw, place, durabletest.Job, gen)
	if err != nil || !reflect.DeepEqual(got, c) || !got.Row().Sealed {
		t.Fatalf("%+v, %v", got, err)
	}
	y, err := ParseIndex(b, got, upside)
	if err != nil || mustJSON(t, y) != mustJSON(t, x) {
		t.Fatal(err)
	}
	if f := y.Files[0]; f.Plain() == 0 || f.Plain() >= f.Bytes {
		t.Errorf("%+v holds %d bytes", f, f.Plain())
	}
	locked := errors.New("locked")
	if _, err := ParseIndex(b, got, func([]byte) ([]byte, error) { return nil, locked }); !errors.Is(err, locked) || errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	if err := CheckIndex(b, got); err != nil {
		t.Error(err)
	}
	b[5] ^= 1
	if err := CheckIndex(b, got); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
}

// What is said of encrypted files and cannot be is refused.
func TestForeignEncrypted(t *testing.T) {
	for name, change := range map[string]func(c *Commit){
		"no recipients":     func(c *Commit) { c.Sealed.Recipients = nil },
		"a recipient":       func(c *Commit) { c.Sealed.Recipients[0] = "age1" },
		"many recipients":   func(c *Commit) { c.Sealed.Recipients = slices.Repeat(c.Sealed.Recipients, sealed.MaxRecipients+1) },
		"no files":          func(c *Commit) { c.Sealed.Files = nil },
		"a file outside":    func(c *Commit) { c.Sealed.Files[0].Key = "../x" },
		"a plain file":      func(c *Commit) { c.Sealed.Files[0].Sealed = 0 },
		"too long a header": func(c *Commit) { c.Sealed.Files[0].Sealed = sealed.MaxEnvelope + 1 },
		"sizes of no file":  func(c *Commit) { c.Sealed.Files[0].Sealed = c.Sealed.Files[0].Bytes - 3 },
		"another twin":      func(c *Commit) { c.Sealed.Files[1].Twin = c.Sealed.Files[3].Twin },
	} {
		x, c := encrypted(t)
		store(t, x, c)
		change(c)
		raw, err := c.Seal()
		if err == nil {
			_, err = ParseCommit(raw, place, durabletest.Job, gen)
		}
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(x *Index, c *Commit){
		"other files than the commit's": func(x *Index, _ *Commit) { x.Files[0].SHA256 = x.Files[1].SHA256 },
		"a piece behind what lies there": func(x *Index, _ *Commit) {
			p := &x.Tensors[0].Pieces[0]
			p.From = x.Files[p.File].Plain() - p.Bytes + 1
		},
		"encrypted files of a plain commit": func(_ *Index, c *Commit) { c.Sealed = nil },
	} {
		x, c := encrypted(t)
		change(x, c)
		b := store(t, x, c)
		open := upside
		if c.Sealed == nil {
			b, _ = upside(b)
			c.Index.SHA256 = Sum(b)
		}
		if _, err := ParseIndex(b, c, open); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Encrypted frozen parts have names of their own, which say for whom.
func TestSealedNames(t *testing.T) {
	n := Name{Kind: SharedKind, Group: 1, Root: replica.Digest{9}, Seal: NewSeal("01234567"), Twin: 'b'}
	if got := ParseName(n.String()); got != n || !got.SealedFor("01234567") || got.SealedFor("76543210") {
		t.Errorf("%s: %+v", n, got)
	}
	if other := NewSeal("01234567"); other == n.Seal || len(other) != 16 {
		t.Errorf("%s, %s", other, n.Seal)
	}
	n.Seal = ""
	if ParseName(n.String()) != n || n.SealedFor("") {
		t.Errorf("%+v", n)
	}
	for _, bad := range []string{"frozen/group-1-09000000000000000000000000000000.0123.b.safetensors", "frozen/group-1-09000000000000000000000000000000.0123456789ABCDEF.b.safetensors"} {
		if n := ParseName(bad); n != (Name{}) {
			t.Errorf("%s: %+v", bad, n)
		}
	}
}
