package sealed

import "testing"

const benched = 64 << 20

func BenchmarkSeal(b *testing.B) {
	_, k := pair(b)
	in, out := some(benched), make([]byte, 1<<20)
	b.SetBytes(benched)
	b.ReportAllocs()
	for b.Loop() {
		left := in
		s, err := k.Seal(benched, func(to []byte) error { left = left[copy(to, left):]; return nil })
		if err != nil {
			b.Fatal(err)
		}
		for n := s.Size; n > 0; n -= min(n, uint64(len(out))) {
			if err := s.Fill(out[:min(n, uint64(len(out)))]); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkDecrypt(b *testing.B) {
	_, k := pair(b)
	o := object(b, k, some(benched), 1<<20)
	f, err := k.Open(o, uint64(len(o)))
	if err != nil {
		b.Fatal(err)
	}
	out, span := make([]byte, benched), make([]byte, len(o))
	b.SetBytes(benched)
	b.ReportAllocs()
	for b.Loop() {
		copy(span, o)
		if err := f.Decrypt(out, 0, span[f.envelope:]); err != nil {
			b.Fatal(err)
		}
	}
}
