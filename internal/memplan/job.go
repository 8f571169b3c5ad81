package memplan

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Job is what a plan is for.
type Job struct {
	// Measured is the state of one rank as a session has it, in bytes; nil: Params to Master say it.
	Measured     *Measured
	Params       uint64        // of the whole model
	Frozen       uint64        // of these, that are not trained: kept once, without optimizer state
	DType        replica.DType // of the parameters where they are sharded
	Optimizer    string        // a name of Optimizers
	Moments      replica.DType // of the optimizer's moments
	Master       bool          // the optimizer has a master copy of the trained parameters, in F32
	Own          uint64        // bytes of a rank's own part: generators, loader, buffers
	Shards       int           // into how many shards the state is split
	Replicas     int           // ranks that compute each shard
	RanksPerNode int
	Copies       int // nodes that hold each part: --min-copies
	Slots        int // 0: the default
	Stages       bool
	Preloaded    uint64 // bytes of the process that restarts fork from; 0: there is none
	SpoolMemory  uint64 // of copies for durable writes, at most; 0: they lie in files
	ChunkBytes   uint32
	Room         uint64 // memory of a node for all this; 0: not said
}

// Measured is what a rank has, of so many Shards: what only an update changes, what may change at any time and each rank of a group has, and what
// is kept once.
type Measured struct {
	Trained, Common, Frozen uint64
	Shards                  int
}

// Optimizers are known by how many moments they keep of each trained parameter.
var Optimizers = map[string]uint64{"adamw": 2, "adam": 2, "lion": 1, "momentum": 1, "sgd": 0, "none": 0}

// What a plan counts mirrors on.
const (
	maxNodes = 1024
	maxWorld = 8 * maxNodes
)

// maxParams bounds the model, so that no product of sizes overflows.
const maxParams = 1 << 52

// common are the bytes that are equal in a group and may change at any time: hyperparameters, schedulers, scalers. A session gives them 16 KiB at
// least.
const common = 16 << 10

// Check names everything that is wrong with a job, by the flags of `replicad plan memory`.
func (j Job) Check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if m := j.Measured; m != nil {
		if most := uint64(maxParams) / uint64(max(m.Shards, 1)); m.Shards < 1 || m.Shards > maxWorld || m.Trained > most || m.Common > most || m.Frozen > most {
			bad("%d, %d and %d bytes on a rank, of %d shards: want at most %d each", m.Trained, m.Common, m.Frozen, m.Shards, most)
		}
	} else {
		if j.Params < 1 || j.Params > maxParams {
			bad("--params %d: want 1 to %d, the parameters of the whole model, as in 70e9", j.Params, uint64(maxParams))
		}
		if j.Frozen > j.Params {
			bad("--frozen %d: want at most --params, %d", j.Frozen, j.Params)
		}
		if _, ok := Optimizers[j.Optimizer]; !ok {
			bad("--optimizer %q: want one of %s", j.Optimizer, strings.Join(names(), ", "))
		}
	}
	if j.Own > replica.MaxPrivateBytes {
		bad("--own %d bytes: want at most %d, which a rank's own part may have", j.Own, uint64(replica.MaxPrivateBytes))
	}
	for _, n := range []struct {
		flag     string
		value    int
		low, top int
	}{{"--shards", j.Shards, 1, maxWorld}, {"--replicas", j.Replicas, 1, maxWorld}, {"--ranks-per-node", j.RanksPerNode, 1, 1024}, {"--copies", j.Copies, 1, 16}} {
		if n.value < n.low || n.value > n.top {
			bad("%s %d: want %d to %d", n.flag, n.value, n.low, n.top)
		}
	}
	if j.Slots != 0 && (j.Slots < 2 || j.Slots > replica.MaxSlots) {
		bad("--slots %d: want 2 to %d, or 0 for the default", j.Slots, replica.MaxSlots)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	switch w := j.World(); {
	case w > maxWorld || j.Nodes() > maxNodes:
		return fmt.Errorf("%d shards of %d replicas are %d ranks on %d nodes: a plan counts mirrors on at most %d ranks and %d nodes; with fewer --replicas, a node's share is the same", j.Shards, j.Replicas, w, j.Nodes(), maxWorld, maxNodes)
	case j.Nodes() < j.Copies:
		return fmt.Errorf("--copies %d: %d ranks, %d a node, are on %d nodes, and each copy is on a node of its own: fewer --copies or --ranks-per-node, or more --shards or --replicas", j.Copies, w, j.RanksPerNode, j.Nodes())
	}
	return nil
}

func names() (out []string) {
	for n := range Optimizers {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// World is how many ranks the job has, Nodes on how many nodes.
func (j Job) World() int { return j.Shards * j.Replicas }

// Nodes is on how many nodes the ranks are.
func (j Job) Nodes() int { return (j.World() + j.RanksPerNode - 1) / j.RanksPerNode }

// layout puts the shards beside each other: rank r has shard r mod Shards.
func (j Job) layout() replica.Layout {
	l := replica.Layout{World: uint32(j.World()), Groups: make([]replica.GroupID, j.World())}
	for r := range l.Groups {
		l.Groups[r] = replica.GroupID(r % j.Shards)
	}
	return l
}

// slots is how many the job has.
func (j Job) slots() int {
	if j.Slots != 0 {
		return j.Slots
	}
	return j.layout().DefaultSlots(j.Copies)
}

// shard is what a rank has of the state, in bytes: what is trained, and what is not.
func (j Job) shard() (trained, frozen uint64) {
	if m := j.Measured; m != nil {
		n := uint64(m.Shards)
		return share(m.Trained*n, 1, j.Shards), share(m.Frozen*n, 1, j.Shards)
	}
	each := j.DType.Size() + Optimizers[j.Optimizer]*j.Moments.Size()
	if j.Master {
		each += replica.F32.Size()
	}
	return share(j.Params-j.Frozen, each, j.Shards), share(j.Frozen, j.DType.Size(), j.Shards)
}

// share is the part of n values of a size that the largest of some shards has.
func share(n, size uint64, shards int) uint64 {
	high, all := bits.Mul64((n+uint64(shards)-1)/uint64(shards), size)
	if high != 0 {
		return math.MaxUint64 // refused by the arena's layout
	}
	return all
}

// arena describes what a rank's arena is made from.
func (j Job) arena() (shm.Spec, error) {
	trained, frozen := j.shard()
	var regions []replica.Region
	add := func(name string, bytes uint64, kind replica.Kind, class replica.Class) {
		if bytes > 0 {
			regions = append(regions, replica.Region{Name: name, DType: replica.U8, Shape: []uint64{bytes}, Bytes: bytes, Kind: kind, Class: class})
		}
	}
	add("trained", trained, replica.Replicated, replica.Window)
	anytime := uint64(common)
	if j.Measured != nil {
		anytime = j.Measured.Common
	}
	add("common", anytime, replica.Replicated, replica.Volatile)
	add("frozen", frozen, replica.Replicated, replica.Frozen)
	add("own", j.Own, replica.Private, replica.Volatile)
	g, err := replica.NewGeometry(regions)
	return shm.Spec{Geometry: g, Slots: j.slots(), ChunkBytes: j.ChunkBytes}, err
}
