package sealed

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"filippo.io/age"
)

// pair is a key and keys that seal to it and open with it.
func pair(t testing.TB) (*age.X25519Identity, *Keys) {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	k, err := New([]string{id.Recipient().String()}, []age.Identity{id})
	if err != nil {
		t.Fatal(err)
	}
	return id, k
}

func some(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = r.Read(b) // it returns no error
	return b
}

// object encrypts b, which is asked for in steps that fit no chunk.
func object(t testing.TB, k *Keys, b []byte, step int) []byte {
	t.Helper()
	left := b
	s, err := k.Seal(uint64(len(b)), func(to []byte) error {
		left = left[copy(to, left):]
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	out := make([]byte, s.Size)
	for at := 0; at < len(out); at += step {
		if err := s.Fill(out[at:min(at+step, len(out))]); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Fill(make([]byte, 1)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("behind the end: %v", err)
	}
	return out
}

var sizes = []int{0, 1, 15, 16, chunkBytes - 1, chunkBytes, chunkBytes + 1, 2 * chunkBytes, 5*chunkBytes + 77}

// Objects are age's own: what is encrypted here age decrypts, and the other way round. Their sizes follow from what lies in them.
func TestObjectsAreAges(t *testing.T) {
	id, k := pair(t)
	for _, n := range sizes {
		b := some(n)
		o := object(t, k, b, 1000)
		r, err := age.Decrypt(bytes.NewReader(o), id)
		if err != nil {
			t.Fatal(n, err)
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, b) {
			t.Errorf("%d bytes: age reads %d others: %v", n, len(got), err)
		}
		small, err := k.SealBytes(b)
		if err != nil || len(small) != len(o) {
			t.Errorf("%d bytes: %d, %d, %v", n, len(small), len(o), err)
		}
		if got, err := k.OpenBytes(small); err != nil || !bytes.Equal(got, b) {
			t.Errorf("%d bytes: %v", n, err)
		}
		f, err := k.Open(o[:min(len(o), 300)], uint64(len(o)))
		if err != nil || f.Size() != uint64(n) || StoredSize(f.Size(), f.Envelope()) != uint64(len(o)) {
			t.Errorf("%d bytes: %+v, %v", n, f, err)
		}
	}
}

// Each range is read out of one range of the object, and is what was put there.
func TestRanges(t *testing.T) {
	_, k := pair(t)
	for _, n := range sizes[1:] {
		b := some(n)
		o := object(t, k, b, 1<<20)
		f, err := k.Open(o, uint64(len(o)))
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(1, uint64(n)))
		for i := range 60 {
			off := r.IntN(n)
			size := 1 + r.IntN(n-off)
			switch i {
			case 0:
				off, size = 0, n
			case 1:
				off, size = n-1, 1
			}
			from, length := f.Span(uint64(off), uint64(size))
			got := make([]byte, size)
			if err := f.Decrypt(got, uint64(off), bytes.Clone(o[from:from+length])); err != nil || !bytes.Equal(got, b[off:off+size]) {
				t.Fatalf("bytes %d to %d of %d: %v", off, off+size, n, err)
			}
			if least := uint64(size + tagBytes); length < least || length > uint64(size)+2*(chunkBytes+tagBytes)+uint64(size)/chunkBytes*tagBytes {
				t.Errorf("bytes %d to %d of %d: %d are read", off, off+size, n, length)
			}
		}
		at := 0
		next := f.Stream(func(to []byte) error { at += copy(to, o[at:]); return nil })
		got := make([]byte, n)
		for i := 0; i < n; i += 999 {
			if err := next(got[i:min(i+999, n)]); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(got, b) || at != len(o) {
			t.Errorf("a stream of %d bytes gives others, or leaves %d", n, len(o)-at)
		}
		if err := next(make([]byte, 1)); !errors.Is(err, ErrDamaged) {
			t.Errorf("behind the end: %v", err)
		}
	}
}

// What was changed, cut, moved or put in another's place is found, named with its place, and nothing of it is handed on.
func TestDamage(t *testing.T) {
	_, k := pair(t)
	b := some(3*chunkBytes + 500)
	o := object(t, k, b, 1<<20)
	f, err := k.Open(o, uint64(len(o)))
	if err != nil {
		t.Fatal(err)
	}
	const c = chunkBytes + tagBytes
	head := int(f.envelope)
	other := object(t, k, b, 1<<20)
	for name, bad := range map[string]func(o []byte) []byte{
		"a bit of a chunk": func(o []byte) []byte { o[head+c+5] ^= 1; return o },
		"a bit of a tag":   func(o []byte) []byte { o[head+2*c-1] ^= 1; return o },
		"two chunks change places": func(o []byte) []byte {
			x := bytes.Clone(o[head : head+c])
			copy(o[head:], o[head+c:head+2*c])
			copy(o[head+c:], x)
			return o
		},
		"a chunk of another file": func(o []byte) []byte { copy(o[head+c:head+2*c], other[head+c:]); return o },
		"a chunk is missing":      func(o []byte) []byte { return append(o[:head+c], o[head+2*c:]...) },
		"the last one is missing": func(o []byte) []byte { return o[:head+3*c] },
		"one more behind the end": func(o []byte) []byte { return append(o, o[head:head+c]...) },
		"cut in a chunk":          func(o []byte) []byte { return o[:head+2*c+100] },
		"cut in a tag":            func(o []byte) []byte { return o[:head+2*c+5] },
		"a bit of the header":     func(o []byte) []byte { o[60] ^= 1; return o },
		"a bit of the nonce":      func(o []byte) []byte { o[head-3] ^= 1; return o },
	} {
		o := bad(bytes.Clone(o))
		got, err := k.OpenBytes(o)
		if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrLocked) || bytes.ContainsFunc(got, func(r rune) bool { return r != 0 }) {
			t.Errorf("%s: %v, and %d bytes are handed on", name, err, len(got))
		}
	}
	got := bytes.Repeat([]byte{7}, 2*chunkBytes)
	from, n := f.Span(0, uint64(len(got)))
	o[head+c+9] ^= 1
	if err := f.Decrypt(got, 0, o[from:from+n]); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), fmt.Sprintf("chunk 1, at byte %d of the object", head+c)) {
		t.Error(err)
	}
	if bytes.ContainsFunc(got, func(r rune) bool { return r != 0 }) {
		t.Error("what lies before the damage is handed on")
	}
	if err := f.Decrypt(got, 0, o[from:from+c]); !errors.Is(err, ErrDamaged) {
		t.Errorf("fewer bytes than asked for: %v", err)
	}
}

// One key of several opens; another one does not, and neither does none.
func TestKeys(t *testing.T) {
	a, first := pair(t)
	b, second := pair(t)
	both, err := New([]string{a.Recipient().String(), b.Recipient().String()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	turned, err := New([]string{b.Recipient().String(), a.Recipient().String()}, nil)
	if err != nil || turned.Tag() != both.Tag() || turned.Tag() == first.Tag() || len(both.Tag()) != 8 {
		t.Error(turned.Tag(), both.Tag(), first.Tag(), err)
	}
	o := object(t, both, some(100), 64)
	for i, k := range []*Keys{first, second} {
		if _, err := k.OpenBytes(o); err != nil {
			t.Errorf("key %d: %v", i, err)
		}
		if err := k.Check(); err != nil {
			t.Error(err)
		}
	}
	_, stranger := pair(t)
	for name, k := range map[string]*Keys{"another": stranger, "none": both, "no keys at all": nil} {
		if _, err := k.OpenBytes(o); !errors.Is(err, ErrLocked) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := both.Check(); !errors.Is(err, ErrLocked) {
		t.Error(err)
	}
	hybrid, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	k, err := New([]string{hybrid.Recipient().String()}, []age.Identity{a, hybrid})
	if err != nil || k.Check() != nil {
		t.Error(err, k.Check())
	}
	if _, err := New([]string{hybrid.Recipient().String(), a.Recipient().String()}, nil); err == nil || !strings.Contains(err.Error(), "can't mix") {
		t.Error(err)
	}
	many := make([]string, MaxRecipients)
	for i := range many {
		h, err := age.GenerateHybridIdentity()
		if err != nil {
			t.Fatal(err)
		}
		many[i] = h.Recipient().String()
	}
	k, err = New(many, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := k.Seal(1, nil); err != nil || s.Envelope > MaxEnvelope {
		t.Errorf("the largest envelope has %d bytes: %v", s.Envelope, err)
	}
}

// A recipient that is none is refused with its text, a key in its place without.
func TestBadRecipients(t *testing.T) {
	id, _ := pair(t)
	for text, want := range map[string]string{
		"age1nonsense": `recipient "age1nonsense": want age1...`,
		"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHsKLqeplhpW+uObz5dvMgjz1OxfM/XXUB+VHtZ6isGN": "ssh keys and plugins are not taken",
		"age1yubikey1q2w7u3vpya839jxxuq8g0sedh3d740d4xvn639sqhr95ejj8vu3hyfumptt":          "ssh keys and plugins are not taken",
		"": `recipient ""`, id.Recipient().String() + "\n" + id.Recipient().String(): "want age1...", id.String(): "is a secret key (not shown)",
	} {
		_, err := New([]string{text}, nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), id.String()[16:]) {
			t.Errorf("%.30q: %v", text, err)
		}
	}
	if _, err := New([]string{id.Recipient().String(), id.Recipient().String()}, nil); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Error(err)
	}
	if _, err := New(make([]string, MaxRecipients+1), nil); err == nil || !strings.Contains(err.Error(), "at most 32") {
		t.Error(err)
	}
	for _, b := range []string{"", "# nothing\n", id.String()[:40], "AGE-PLUGIN-X-1AAAA"} {
		if _, err := ParseIdentities([]byte(b)); err == nil || !strings.Contains(err.Error(), "want keys as age-keygen writes them") || len(b) > 20 && strings.Contains(err.Error(), b[16:]) {
			t.Errorf("%.20q: %v", b, err)
		}
	}
	list, err := ParseIdentities([]byte("# created\n\n" + id.String() + "\n"))
	if err != nil || len(list) != 1 {
		t.Error(list, err)
	}
}

// An error of what is encrypted ends the object.
func TestSealGivesUp(t *testing.T) {
	_, k := pair(t)
	broken := errors.New("broken")
	s, err := k.Seal(10, func([]byte) error { return broken })
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Fill(make([]byte, s.Size)); !errors.Is(err, broken) {
		t.Error(err)
	}
}
