package sealed

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"filippo.io/age"
)

// key is one that fuzzing finds again.
const key = "AGE-SECRET-KEY-14DJERCTW8NSV8SU6CMW3VMLCFRYTNRR7DFGXYAFS5VH6HYTRYK4SP6P6C0"

func fixed(t testing.TB) *Keys {
	t.Helper()
	ids, err := ParseIdentities([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	id, _ := ids[0].(*age.X25519Identity)
	k, err := New([]string{id.Recipient().String()}, ids)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// FuzzOpen: of any bytes this package reads what age reads, or nothing.
func FuzzOpen(f *testing.F) {
	k := fixed(f)
	for _, n := range []int{0, 1, 100, chunkBytes, chunkBytes + 1} {
		b, err := k.SealBytes(some(n))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)-1])
	}
	f.Add([]byte("age-encryption.org/v1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var want []byte
		r, wrong := age.Decrypt(bytes.NewReader(b), k.identities...)
		if wrong == nil {
			want, wrong = io.ReadAll(r)
		}
		got, err := k.OpenBytes(bytes.Clone(b))
		if (err == nil) != (wrong == nil) || err == nil && !bytes.Equal(got, want) {
			t.Fatalf("age reads %d bytes (%v), this %d (%v)", len(want), wrong, len(got), err)
		}
		if err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrLocked) {
			t.Fatal(err)
		}
	})
}

// FuzzSizes: sizes lead back and forth, and a range lies in the object.
func FuzzSizes(f *testing.F) {
	f.Add(uint64(0), uint64(200), uint64(0), uint64(1))
	f.Add(uint64(1<<50), uint64(MaxEnvelope), uint64(chunkBytes), uint64(chunkBytes))
	f.Add(^uint64(0), ^uint64(0), uint64(3), uint64(9))
	f.Fuzz(func(t *testing.T, size, envelope, off, n uint64) {
		plain, ok := PlainSize(size, envelope)
		if ok && StoredSize(plain, envelope) != size {
			t.Fatalf("%d behind %d holds %d, which makes %d", size, envelope, plain, StoredSize(plain, envelope))
		}
		size, envelope = size%(1<<50), envelope%MaxEnvelope
		if back, ok := PlainSize(StoredSize(size, envelope), envelope); !ok || back != size {
			t.Fatalf("%d behind %d comes back as %d, %v", size, envelope, back, ok)
		}
		if size == 0 {
			return
		}
		off %= size
		n = 1 + n%(size-off)
		from, length := Span(size, envelope, off, n)
		if from < envelope || from+length > StoredSize(size, envelope) || length < n+tagBytes {
			t.Fatalf("bytes %d to %d of %d: %d from %d on", off, off+n, size, length, from)
		}
	})
}
