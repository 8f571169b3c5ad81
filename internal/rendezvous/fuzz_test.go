package rendezvous

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math"
	"testing"

	"github.com/replicad/replicad/replica"
)

// entry is one restored write or barrier as a fuzzer's bytes name it: 8 bytes, and a value.
const entryBytes = 8

// entries decodes what a node brings. Each write has a place of its own in the order, because one leader gave it.
func entries(b []byte) (list []taken) {
	for len(b) >= entryBytes && len(list) < 64 {
		head := b[:entryBytes]
		b = b[entryBytes:]
		n := min(int(head[7]&15), len(b))
		w := Write{Op: Op(1 + head[0]%4), Key: string("abc"[head[1]%3]), Value: b[:n], Delta: int64(int8(head[2])), By: Token{replica.Rank(head[3] % 3), uint64(head[4] % 2), uint32(head[5])}}
		if head[7]&16 != 0 {
			w.Delta *= math.MaxInt64 / 127
		}
		if head[7]&32 != 0 {
			w.Key = string(bytes.Repeat([]byte{'k'}, int(head[1])*2))
		}
		b = b[n:]
		list = append(list, taken{w, Result{Seq: uint64(head[6]%8)<<32 | uint64(len(list)+1), Total: int64(head[2])}})
	}
	return list
}

// FuzzRestore: nodes bring a new leader what they keep, in any order and more than once. The leader comes to the same values, counts the
// bytes that it holds, and keeps nothing of an epoch that has passed.
func FuzzRestore(f *testing.F) {
	line := func(op, key, delta, rank, nonce, once, term, flags byte, value string) []byte {
		return append([]byte{op, key, delta, rank, nonce, once, term, flags | byte(len(value))}, value...)
	}
	f.Add(line(0, 0, 0, 1, 1, 1, 1, 0, "41"), uint64(1))
	f.Add(append(append(line(0, 0, 0, 1, 1, 1, 1, 0, "41"), line(1, 0, 1, 2, 1, 1, 2, 0, "")...), line(3, 0, 0, 0, 0, 0, 2, 0, "")...), uint64(2))
	f.Add(append(line(1, 0, 127, 2, 1, 1, 2, 16, ""), line(1, 0, 127, 2, 1, 2, 2, 16, "")...), uint64(3))
	f.Add(append(line(2, 1, 1, 2, 1, 1, 2, 0, "no number"), line(1, 1, 1, 2, 1, 2, 3, 0, "")...), uint64(4))
	f.Fuzz(func(t *testing.T, b []byte, order uint64) {
		list := entries(b)
		one, other := New(7, 0), New(7, 0)
		for _, s := range []*Store{one, other} {
			bring := list
			if s == other { // in another order, and some of them twice
				bring = shuffled(list, order)
			}
			for _, k := range bring {
				err := s.Restore(jobA, 1, k.w, k.r)
				if err != nil && len(k.w.Key) > 0 && len(k.w.Key) <= MaxKeyBytes {
					t.Fatalf("%+v: %v", k, err)
				}
			}
			if j := s.jobs[jobA]; j != nil && j.scopes[1] != nil && j.scopes[1].bytes != bytesOf(j.scopes[1]) {
				t.Fatalf("%d bytes are accounted for, %d are there", j.scopes[1].bytes, bytesOf(j.scopes[1]))
			}
		}
		for _, k := range list {
			first, ok := one.Get(jobA, 1, k.w.Key)
			second, also := other.Get(jobA, 1, k.w.Key)
			if ok != also || !bytes.Equal(first, second) {
				t.Fatalf("key %q is %q (%v) in one order, %q (%v) in another", k.w.Key, first, ok, second, also)
			}
		}
		if a, b := callsOf(one), callsOf(other); !maps.Equal(a, b) {
			t.Fatalf("the newest calls are %v in one order, %v in another", a, b)
		}
		one.Advance(jobA, 2)
		for _, k := range list {
			if _, ok := one.Get(jobA, 1, k.w.Key); ok {
				t.Fatalf("key %q outlives its epoch", k.w.Key)
			}
		}
	})
}

// callsOf are a store's newest calls; none where all that it was brought is of its own term.
func callsOf(s *Store) map[replica.Rank]call {
	if j := s.jobs[jobA]; j != nil && j.scopes[1] != nil {
		return j.scopes[1].calls
	}
	return nil
}

// shuffled is the list in another order; each eighth comes twice.
func shuffled(list []taken, order uint64) []taken {
	out := make([]taken, 0, 2*len(list))
	var seed [8]byte
	for i, k := range list {
		binary.LittleEndian.PutUint64(seed[:], (order+uint64(i))*0x9e3779b97f4a7c15)
		at := int(seed[7]) % (len(out) + 1)
		out = append(out[:at], append([]taken{k}, out[at:]...)...)
		if seed[6]%8 == 0 {
			out = append(out, k)
		}
	}
	return out
}
