package rng

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/big"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func golden(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var vectors = []string{"python.bin", "plain.bin", "full.bin", "seeds.bin"}

func parsed(t testing.TB, b []byte) States {
	t.Helper()
	s, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestGoldenVectors(t *testing.T) {
	for _, name := range vectors {
		b := golden(t, name)
		again, err := parsed(t, b).Append([]byte("before"))
		if err != nil || string(again) != "before"+string(b) {
			t.Errorf("%s: encoding what was parsed gives %d bytes, %v; want the %d of the file", name, len(again), err, len(b))
		}
	}
	full := parsed(t, golden(t, "full.bin"))
	var names []string
	layouts := map[Layout]int{}
	for _, r := range full {
		names = append(names, r.String())
		layouts[r.State.Layout()]++
	}
	for _, want := range []string{"python's generator", "numpy's global generator", "torch's CPU generator", "the generator of CUDA device 10", "Megatron's generator 'model-parallel-rng'", "the generator 'PCG64'"} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s in %q", want, names)
		}
	}
	for l := LayoutPython; l <= LayoutTorchCUDA; l++ {
		if layouts[l] == 0 {
			t.Errorf("no state of layout %v in full.bin", l)
		}
	}
	torch := full[2].State.(TorchCPU)
	if torch.Seed != 3 || !torch.Normal.Waits || !torch.Float.Waits {
		t.Errorf("torch's generator: seed %d, samples %v and %v; want seed 3 and both samples", torch.Seed, torch.Normal, torch.Float)
	}
	if fresh := parsed(t, golden(t, "plain.bin"))[2].State.(TorchCPU); fresh.Seed != 1<<63 || fresh.Left != 1 || fresh.Next != 0 {
		t.Errorf("a freshly seeded generator of torch: seed %d, left %d, next %d", fresh.Seed, fresh.Left, fresh.Next)
	}
}

// TestRefusals: what refused.txt does to full.bin is refused, for the reason it gives, which python's test reads too.
func TestRefusals(t *testing.T) {
	full := golden(t, "full.bin")
	lines := strings.Split(strings.TrimSpace(string(golden(t, "refused.txt"))), "\n")
	if len(lines) < 50 {
		t.Fatalf("%d lines", len(lines))
	}
	for _, line := range lines {
		f := strings.SplitN(line, " ", 3)
		at, err := strconv.Atoi(f[0])
		if err != nil {
			t.Fatal(err)
		}
		body, zeros, _ := strings.Cut(f[1], "+")
		patch, err := hex.DecodeString(body)
		if err != nil {
			t.Fatal(err)
		}
		if zeros != "" {
			n, err := strconv.Atoi(zeros)
			if err != nil {
				t.Fatal(err)
			}
			patch = append(patch, make([]byte, n)...)
		}
		b := slices.Clone(full)
		copy(b[at:], patch)
		if _, err := Parse(b); !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), f[2]) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestSeedSequences(t *testing.T) {
	b := golden(t, "seeds.bin")
	s := parsed(t, b)
	got := map[string]SeedSequence{}
	for _, r := range s {
		if q, ok := r.State.(SeedSequence); ok {
			got[r.Name] = q
		}
	}
	number := got["number"]
	if len(got) != 5 || number.Entropy.Number.Int64() != 5 || number.Spawned.Int64() != 4 || number.PoolSize.Int64() != 4 || len(number.SpawnKey) != 0 {
		t.Errorf("%d seed sequences, that of the number 5 is %+v", len(got), number)
	}
	if child := got["child"]; len(child.SpawnKey) != 1 || child.SpawnKey[0].Int64() != 2 || child.Spawned.Int64() != 1 {
		t.Errorf("the third child's is %+v", child)
	}
	if list := got["list"].Entropy; list.Number != nil || len(list.List) != 3 || list.List[1].String() != "1180591620717411303424" {
		t.Errorf("that of [1, 2**70, 0] is %+v", list)
	}
	last := s[len(s)-1]
	head := b[:len(b)-len(last.State.append(nil))]
	lines := strings.Split(strings.Trim(string(golden(t, "seeds-refused.txt")), "\n"), "\n")
	if len(lines) < 30 {
		t.Fatalf("%d lines", len(lines))
	}
	for _, line := range lines {
		text, reason, _ := strings.Cut(line, " ")
		payload, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		other := slices.Concat(head, payload)
		binary.LittleEndian.PutUint32(other[len(head)-len(last.Name)-4:], uint32(len(payload)))
		if _, err := Parse(other); !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), reason) {
			t.Errorf("%.100q: %v, want %s", payload, err, reason)
		}
	}
	for name, wrong := range map[string]States{
		"of nobody":             append(slices.Clone(s), Record{Seeds, "x", number}),
		"of torch's":            append(slices.Clone(s[:1]), Record{Named, "a", TorchCUDA{}}, Record{Seeds, "a", number}),
		"before its generator":  append(slices.Clone(s[:1]), Record{Seeds, "a", number}, Record{Named, "a", SFC64{}}),
		"in a generator's room": append(slices.Clone(s[:1]), Record{Named, "a", number}),
		"empty":                 append(slices.Clone(s[:len(s)-1]), Record{Seeds, last.Name, SeedSequence{}}),
		"too long": append(slices.Clone(s[:len(s)-1]), Record{Seeds, last.Name, SeedSequence{
			Entropy: Entropy{Number: new(big.Int).Lsh(big.NewInt(1), 20000)}, Spawned: number.Spawned, PoolSize: number.PoolSize, SpawnKey: number.SpawnKey,
		}}),
		"with two entropies": append(slices.Clone(s[:len(s)-1]), Record{Seeds, last.Name, SeedSequence{
			Entropy: Entropy{number.Entropy.Number, number.SpawnKey}, Spawned: number.Spawned, PoolSize: number.PoolSize, SpawnKey: number.SpawnKey,
		}}),
	} {
		if _, err := wrong.Append(nil); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPrefixesAndTailsAreRefused(t *testing.T) {
	for _, name := range vectors {
		b := golden(t, name)
		for n := 0; n < len(b); n++ {
			if n > 3000 && n < len(b)-300 {
				n += 16 // within words; a step that meets each place in a word
			}
			if _, err := Parse(b[:n:n]); !errors.Is(err, ErrMalformed) {
				t.Fatalf("%s: the first %d of %d bytes: %v", name, n, len(b), err)
			}
		}
		if _, err := Parse(append(slices.Clone(b), 0)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s and a zero: %v", name, err)
		}
	}
}

// places are the bytes of each record's head, and those of b that are no twister's words; heads of the file count too.
func places(t *testing.T, b []byte) (heads, fields []int) {
	add := func(list *[]int, from, to int) {
		for at := from; at < to; at++ {
			*list = append(*list, at)
		}
	}
	add(&heads, 0, headBytes)
	at := headBytes
	for _, r := range parsed(t, b) {
		add(&heads, at, at+recordBytes)
		payload := at + recordBytes + len(r.Name)
		at = payload + r.State.Layout().Size()
		switch r.State.(type) {
		case Python3, RandomState, MT19937:
			add(&fields, payload+4*Words, at)
		case TorchCPU:
			add(&fields, payload, payload+24)
			add(&fields, payload+24+8*Words, at)
		default:
			add(&fields, payload-len(r.Name), at)
		}
	}
	return heads, append(fields, heads...)
}

// TestEveryByteCounts: a changed bit is refused, or makes another state with that encoding.
func TestEveryByteCounts(t *testing.T) {
	b := golden(t, "full.bin")
	check := func(at int, mask byte) bool {
		b[at] ^= mask
		defer func() { b[at] ^= mask }()
		s, err := Parse(b)
		if err != nil {
			return false
		}
		if again, err := s.Append(nil); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("byte %d changed by %#x is taken, and encodes differently (%v)", at, mask, err)
		}
		return true
	}
	_, fields := places(t, b)
	var taken, refused int
	for _, at := range fields {
		for bit := range 8 {
			if check(at, 1<<bit) {
				taken++
			} else {
				refused++
			}
		}
	}
	for at := 0; at < len(b); at += 7 {
		check(at, 0xff)
	}
	if taken < 1000 || refused < 1000 {
		t.Errorf("of %d changed bits in fields %d were taken and %d refused: does this test anything?", 8*len(fields), taken, refused)
	}
}

// TestStructureFlips: a changed bit in a head is refused, but for the five that make another state of what is there.
func TestStructureFlips(t *testing.T) {
	b := golden(t, "full.bin")
	before := parsed(t, b)
	heads, _ := places(t, b)
	var taken []string
	for _, at := range heads {
		for bit := range 8 {
			b[at] ^= 1 << bit
			s, err := Parse(b)
			b[at] ^= 1 << bit
			for i := range s {
				if old := before[i]; old.String() != s[i].String() || old.State.Layout() != s[i].State.Layout() {
					taken = append(taken, fmt.Sprintf("%v, %v: %v, %v", old, old.State.Layout(), s[i], s[i].State.Layout()))
				}
			}
			if err != nil && !errors.Is(err, ErrMalformed) {
				t.Errorf("bit %d of byte %d flipped: %v", bit, at, err)
			}
		}
	}
	want := []string{
		"the generator of CUDA device 10, torch CUDA: Megatron's generator '10', torch CUDA",
		"the generator 'PCG64', PCG64: the generator 'PCG64', PCG64DXSM",
		"the generator 'PCG64DXSM', PCG64DXSM: the generator 'PCG64DXSM', PCG64",
		"the generator 'PCG64DXSM', PCG64DXSM: the generator 'PCG64DXSM', SFC64",
		"the generator 'SFC64', SFC64: the generator 'SFC64', PCG64DXSM",
	}
	if !slices.Equal(taken, want) {
		t.Errorf("taken:\n%s\nwant:\n%s", strings.Join(taken, "\n"), strings.Join(want, "\n"))
	}
}

// TestCapsComeFirst: what the head claims is not allocated.
func TestCapsComeFirst(t *testing.T) {
	for _, count := range []uint32{0, MaxRecords, MaxRecords + 1, math.MaxUint32} {
		b := binary.LittleEndian.AppendUint32([]byte(magic), count)
		b = append(b, make([]byte, recordBytes*2)...)
		allocated := testing.AllocsPerRun(10, func() {
			if _, err := Parse(b); !errors.Is(err, ErrMalformed) {
				t.Fatalf("%d records: %v", count, err)
			}
		})
		if allocated > 20 {
			t.Errorf("%d records in %d bytes cost %v allocations", count, len(b), allocated)
		}
	}
}

// TestUnsoundStatesHaveNoEncoding: Append refuses what Parse would.
func TestUnsoundStatesHaveNoEncoding(t *testing.T) {
	good := func() States { return parsed(t, golden(t, "full.bin")) }
	cuda := Record{CUDA, "0", TorchCUDA{}}
	for name, s := range map[string]States{
		"nothing":                 nil,
		"no python":               good()[1:],
		"python twice":            append(good()[:1], good()[0]),
		"out of order":            append(good()[:1], Record{Named, "b", SFC64{}}, Record{Named, "a", SFC64{}}),
		"twice":                   append(good()[:1], Record{Named, "a", SFC64{}}, Record{Named, "a", PCG64{Increment: Uint128{Low: 1}}}),
		"a gap of devices":        append(good()[:1], cuda, Record{CUDA, "2", TorchCUDA{}}),
		"a device too late":       append(good()[:1], Record{Megatron, "m", TorchCUDA{}}, cuda),
		"device 00":               append(good()[:1], Record{CUDA, "00", TorchCUDA{}}),
		"a named torch":           append(good()[:1], Record{Torch, "x", good()[2].State}),
		"no name":                 append(good()[:1], Record{Named, "", SFC64{}}),
		"a long name":             append(good()[:1], Record{Named, strings.Repeat("x", MaxName+1), SFC64{}}),
		"a name that is no UTF-8": append(good()[:1], Record{Named, "\xff", SFC64{}}),
		"no state":                append(good()[:1], Record{Place: Named, Name: "x"}),
		"no place":                append(good()[:1], Record{Name: "x", State: SFC64{}}),
		"the wrong layout":        append(good()[:1], Record{NumPy, "", good()[0].State}),
		"a NaN":                   append(good()[:1], Record{Named, "x", Python3{good()[0].State.(Python3).MT19937, Sample{true, math.NaN()}}}),
		"a negative zero":         append(good()[:1], Record{Named, "x", Python3{good()[0].State.(Python3).MT19937, Sample{false, math.Copysign(0, -1)}}}),
		"an odd offset":           append(good()[:1], Record{CUDA, "0", TorchCUDA{Offset: 2}}),
		"a double for a float": append(good()[:1], Record{Torch, "", func() State {
			s := good()[2].State.(TorchCPU)
			s.Float.Value = 0.1
			return s
		}()}),
		"too many": func() States {
			s := good()[:1]
			for i := range MaxRecords {
				s = append(s, Record{CUDA, strconv.Itoa(i), TorchCUDA{}})
			}
			return s
		}(),
	} {
		if b, err := s.Append([]byte("x")); !errors.Is(err, ErrMalformed) || string(b) != "x" {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
	most := good()[:1]
	for i := range MaxRecords - 1 {
		most = append(most, Record{CUDA, strconv.Itoa(i), TorchCUDA{Seed: uint64(i)}})
	}
	b, err := most.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(parsed(t, b)); n != MaxRecords {
		t.Errorf("%d records came back of %d", n, MaxRecords)
	}
}

// FuzzParse: what is taken encodes to itself. A twister's words are dull and slow to fuzz, so the input is what follows a sound record of
// python's; alone, it is the whole.
func FuzzParse(f *testing.F) {
	python := golden(f, "python.bin")
	f.Add(true, uint32(0), []byte(nil))
	f.Add(true, uint32(0), python[:headBytes+recordBytes])
	f.Add(false, uint32(1), []byte(nil))
	var all States
	for _, r := range parsed(f, golden(f, "full.bin")) {
		switch r.State.Layout() {
		case LayoutPCG64, LayoutPCG64DXSM, LayoutPhilox, LayoutSFC64, LayoutTorchCUDA:
			all = append(all, r)
		default: // these are seeds of the corpus by themselves
		}
	}
	seeds, err := parsed(f, golden(f, "seeds.bin")).Append(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(false, binary.LittleEndian.Uint32(seeds[len(magic):]), seeds[len(python):])
	for _, s := range []States{all[:1], all[:3], all[11:12], all[len(all)-4 : len(all)-3], all[len(all)-3:], all} {
		b, err := slices.Concat(parsed(f, python), s).Append(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(false, uint32(len(s)+1), b[len(python):])
	}
	f.Fuzz(func(t *testing.T, alone bool, count uint32, b []byte) {
		if !alone {
			b = slices.Concat(binary.LittleEndian.AppendUint32([]byte(magic), count), python[headBytes:], b)
		}
		s, err := Parse(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) || s != nil {
				t.Fatalf("refused with %v and %d states", err, len(s))
			}
			return
		}
		if again, err := s.Append(nil); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%d bytes are taken, and encode to %d others (%v)", len(b), len(again), err)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for _, name := range vectors {
		b.Run(name, func(b *testing.B) {
			bin := golden(b, name)
			b.SetBytes(int64(len(bin)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(bin); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
