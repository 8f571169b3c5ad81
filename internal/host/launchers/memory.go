package launchers

import (
	"errors"
	"fmt"

	"github.com/replicad/replicad/internal/shm"
)

// memoryNoted is the size of an arena from which on its launchers are notified of it.
const memoryNoted = 256 << 20

// Memory has each launcher of the job print, once and before a page is touched, what each rank's copies take.
func (v View) Memory(spec shm.Spec) {
	bytes, err := spec.Bytes()
	if err != nil || bytes < memoryNoted {
		return
	}
	text := fmt.Sprintf("a rank's copies take %d MiB of this node's memory: %d slots of %d MiB, and what is kept once or is the rank's own",
		mib(bytes), spec.Slots, mib(spec.Geometry.ReplicatedBytes))
	if fewer := spec; spec.Slots > 2 {
		fewer.Slots = 2
		if less, err := fewer.Bytes(); err == nil {
			text += fmt.Sprintf("; with --slots 2 they take %d MiB", mib(less))
		}
	}
	job := v.job.Record()
	for _, l := range v.pool.all {
		if l.accepted && !l.done && l.job == job.ID && !l.memory {
			l.memory = true
			l.note(job.Epoch, text)
		}
	}
}

// FewerSlots adds to the refusal of an arena that does not fit that one with two slots would.
func FewerSlots(spec shm.Spec, err error) error {
	short := new(shm.TooLittleMemory)
	if !errors.As(err, &short) || spec.Slots <= 2 {
		return err
	}
	all, whole := spec.Bytes()
	spec.Slots = 2
	two, half := spec.Bytes()
	// what was reserved before it fell short is given back
	if errors.Join(whole, half) != nil || two > short.Have+all-min(all, short.Need) {
		return err
	}
	return fmt.Errorf("%w; with two slots it needs %d MiB, which fits: start the job anew with `replicad run --slots 2` "+
		"(a step is then captured only when the one before is committed)", err, mib(two))
}

func mib(bytes uint64) uint64 { return (bytes + 1<<20 - 1) >> 20 }
