package memplan

import (
	"os"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// small is a job whose arenas a test can make.
func small(change func(*Job)) Job {
	j := Job{Params: 1 << 18, DType: replica.BF16, Optimizer: "adamw", Moments: replica.F32, Own: 64 << 10, Shards: 4, Replicas: 1, RanksPerNode: 1, Copies: 2, ChunkBytes: 64 << 10}
	change(&j)
	return j
}

// What a plan says is what arenas take that are made from the regions that a rank would register: each tensor one, not all of them together.
func TestPlanIsWhatArenasTake(t *testing.T) {
	for name, j := range map[string]Job{
		"shards":               small(func(*Job) {}),
		"shards, four a node":  small(func(j *Job) { j.Shards, j.RanksPerNode = 8, 4 }),
		"three copies":         small(func(j *Job) { j.Copies = 3 }),
		"replicas":             small(func(j *Job) { j.Shards, j.Replicas = 1, 2 }),
		"hybrid":               small(func(j *Job) { j.Replicas = 2 }),
		"adapters":             small(func(j *Job) { j.Frozen = 1 << 17 }),
		"all four slots":       small(func(j *Job) { j.Slots = 4 }),
		"master weights":       small(func(j *Job) { j.Master = true }),
		"no own part":          small(func(j *Job) { j.Own = 0 }),
		"one copy, no mirrors": small(func(j *Job) { j.Copies = 1 }),
	} {
		t.Run(name, func(t *testing.T) {
			p, err := New(j)
			if err != nil {
				t.Fatal(err)
			}
			trained := (j.Params - j.Frozen) / uint64(j.Shards)
			var regions []replica.Region
			add := func(name string, n uint64, d replica.DType, k replica.Kind, c replica.Class) {
				if n > 0 {
					regions = append(regions, replica.Region{Name: name, DType: d, Shape: []uint64{n}, Bytes: n * d.Size(), Kind: k, Class: c})
				}
			}
			add("weight", trained/2, j.DType, replica.Replicated, replica.Window)
			add("bias", trained/2, j.DType, replica.Replicated, replica.Window)
			add("m", trained, replica.F32, replica.Replicated, replica.Window)
			add("v", trained, replica.F32, replica.Replicated, replica.Window)
			if j.Master {
				add("master", trained, replica.F32, replica.Replicated, replica.Window)
			}
			add("base", j.Frozen/uint64(j.Shards), j.DType, replica.Replicated, replica.Frozen)
			add("small values", 16<<10, replica.U8, replica.Replicated, replica.Volatile)
			add("generators", j.Own, replica.U8, replica.Private, replica.Volatile)
			geometry, err := replica.NewGeometry(regions)
			if err != nil {
				t.Fatal(err)
			}
			// The same from a rank's regions, as a session has them.
			measured := j
			measured.Params, measured.Frozen, measured.Optimizer, measured.Measured = 0, 0, "", &Measured{Shards: j.Shards}
			for _, r := range regions {
				switch {
				case r.Class == replica.Frozen:
					measured.Measured.Frozen += r.Bytes
				case r.Kind == replica.Replicated && r.Class == replica.Volatile:
					measured.Measured.Common += r.Bytes
				case r.Kind == replica.Replicated:
					measured.Measured.Trained += r.Bytes
				}
			}
			if q, err := New(measured); err != nil || q.Node != p.Node || q.Arena != p.Arena {
				t.Errorf("as measured: %v: %d bytes, an arena of %d, want %d and %d", err, q.Node, q.Arena, p.Node, p.Arena)
			}
			rank := shm.Spec{Cluster: fixture.Cluster, Era: 1, Job: fixture.JobID, Geometry: geometry, Slots: p.Slots, ChunkBytes: j.ChunkBytes}
			taken := uint64(min(j.RanksPerNode, p.World)) * create(t, rank)
			if taken/uint64(min(j.RanksPerNode, p.World)) != p.Arena {
				t.Errorf("an arena of %d bytes, said %d", taken, p.Arena)
			}
			said := uint64(0)
			for _, n := range p.Needs {
				kind := replica.ReplicatedPart
				switch said += n.Bytes; n.What {
				case "mirrors: ranks' own parts":
					kind = replica.PrivatePart
				case "mirrors: shards":
				default:
					continue
				}
				m, err := rank.MirrorOf(kind, geometry.Of(kind))
				if err != nil {
					t.Fatal(err)
				}
				each := create(t, m)
				if taken += uint64(n.Count) * each; each != n.Each {
					t.Errorf("%s: each takes %d bytes, said %d", n.What, each, n.Each)
				}
			}
			if taken != p.Node || said != p.Node {
				t.Errorf("arenas and mirrors take %d bytes; said %d, in parts %d", taken, p.Node, said)
			}
		})
	}
}

// create makes an arena and asks the kernel for its size.
func create(t *testing.T, s shm.Spec) uint64 {
	t.Helper()
	a, err := shm.Create(s)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var st os.FileInfo
	if st, err = a.File().Stat(); err != nil {
		t.Fatal(err)
	}
	return uint64(st.Size())
}

// With the default number of slots, an arena and one mirror take four times the shard at most, beyond what does not grow with it.
func TestDefaultSlotsTakeFourTimesTheShard(t *testing.T) {
	for _, j := range []Job{
		small(func(j *Job) { j.Params, j.Shards = 70e9, 64 }),
		small(func(j *Job) { j.Params, j.Shards, j.Replicas = 8e9, 1, 2 }),
		small(func(j *Job) { j.Params, j.Replicas = 8e9, 2 }),
		small(func(j *Job) { j.Params, j.Copies = 8e9, 1 }),
	} {
		j.ChunkBytes = replica.DefaultChunkBytes
		p, err := New(j)
		if err != nil {
			t.Fatal(err)
		}
		took := p.Arena
		for _, n := range p.Needs {
			if n.What == "mirrors: shards" {
				took += n.Each
			}
		}
		if most := 4*p.Shard + p.Shard/100; took > most || took < 4*p.Shard {
			t.Errorf("%d shards of %d replicas: %d slots, %d bytes for a shard of %d", j.Shards, j.Replicas, p.Slots, took, p.Shard)
		}
	}
}

func TestChangesAndRemedy(t *testing.T) {
	j := small(func(j *Job) {
		j.Params, j.Shards, j.RanksPerNode, j.Stages, j.Slots, j.Room = 70e9, 64, 8, true, 3, 200<<30
	})
	j.ChunkBytes = replica.DefaultChunkBytes
	p, err := New(j)
	if err != nil || p.Fits == nil || *p.Fits {
		t.Fatalf("%+v: %v", p, err)
	}
	var flags []string
	for _, c := range p.Changes {
		flags = append(flags, c.Flag)
		if less := !strings.HasPrefix(c.Flag, "--slots 4") && !strings.HasPrefix(c.Flag, "--copies 3"); (c.Diff < 0) != less || int64(c.Node)-int64(p.Node) != c.Diff || *c.Fits != (c.Node <= p.Room) {
			t.Errorf("%+v", c)
		}
	}
	if got := strings.Join(flags, ", "); got != "--slots 2, --slots 4, --copies 1, --copies 3, --shards 128, --ranks-per-node 4, --stages=false" {
		t.Errorf("changes: %s", got)
	}
	if got := p.Remedy(); got != "--slots 2 --shards 256" {
		t.Errorf("remedy: %q", got)
	}
	j.Room = 600 << 30
	if p, err = New(j); err != nil || p.Remedy() != "--slots 2" {
		t.Errorf("remedy %q, %v", p.Remedy(), err)
	}
	none := small(func(j *Job) { j.Shards, j.Room = 600, 1 }) // twice as many are more than a plan takes
	if p, err = New(none); err != nil || p.Remedy() != "" {
		t.Errorf("remedy %q, %v", p.Remedy(), err)
	}
	j.Slots, j.Shards, j.Room = 2, 256, 200<<30
	if p, err = New(j); err != nil || !*p.Fits {
		t.Errorf("the remedy does not fit: %+v, %v", p, err)
	}
}

func TestBadJobs(t *testing.T) {
	for want, change := range map[string]func(*Job){
		"--params 0":                    func(j *Job) { j.Params = 0 },
		"--params 9007199254740992":     func(j *Job) { j.Params = 1 << 53 },
		"--frozen 262145":               func(j *Job) { j.Frozen = 1<<18 + 1 },
		`--optimizer "adagrad"`:         func(j *Job) { j.Optimizer = "adagrad" },
		"--own 67108865":                func(j *Job) { j.Own = 64<<20 + 1 },
		"--shards 0":                    func(j *Job) { j.Shards = 0 },
		"--replicas -1":                 func(j *Job) { j.Replicas = -1 },
		"--ranks-per-node 0":            func(j *Job) { j.RanksPerNode = 0 },
		"--copies 17":                   func(j *Job) { j.Copies = 17 },
		"--slots 5":                     func(j *Job) { j.Slots = 5 },
		"at most 8192 ranks and 1024":   func(j *Job) { j.Shards = 4096 },
		"4 ranks, 4 a node, are on 1 n": func(j *Job) { j.RanksPerNode = 4 },
		"more --shards make it smaller": func(j *Job) { j.Params = 1 << 50 },
	} {
		if _, err := New(small(change)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

// Copies that durable writes make in memory are of the node, however many ranks it has.
func TestCopiesForDurableWritesCount(t *testing.T) {
	without, err := New(small(func(j *Job) { j.RanksPerNode = 2 }))
	if err != nil {
		t.Fatal(err)
	}
	with, err := New(small(func(j *Job) { j.RanksPerNode, j.SpoolMemory = 2, 40<<30 }))
	if err != nil || with.Node != without.Node+40<<30 {
		t.Errorf("%v: %d bytes with them, %d without", err, with.Node, without.Node)
	}
	if last := with.Needs[len(with.Needs)-1]; last.What != "copies for durable writes, at most" || last.Count != 1 || last.Bytes != 40<<30 {
		t.Errorf("the last row is %+v", last)
	}
}
