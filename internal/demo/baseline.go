package demo

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// undisturbed trains the same run without replicad and without faults.
func undisturbed(ctx context.Context, opt Options, dir string, spawn *spawner, j *journal) (digests [][3]string, err error) {
	command := append(opt.trainer(), "--baseline", "--world", fmt.Sprint(opt.World))
	p, err := spawn.start("undisturbed run", logPath(dir, "undisturbed"), nil, func(line []byte) { j.addRank("-", line) }, nil, command[0], command[1:]...)
	if err != nil {
		return digests, err
	}
	defer p.kill()
	spawn.wg.Go(func() { // its end alone is no event
		<-p.read
		<-p.gone
		j.view(j.touchLocked)
	})
	digests = make([][3]string, opt.World)
	err = j.await(ctx, 2*time.Minute+time.Duration(opt.Steps)*patienceStep, "the undisturbed run's final digests", func() bool {
		n := 0
		for r, s := range j.ranks {
			if s.done && r < opt.World {
				digests[r] = s.digest
				n++
			}
		}
		return n == opt.World || p.spent()
	})
	if err != nil {
		return digests, err
	}
	for r, d := range digests {
		if d[0] == "" {
			return digests, fmt.Errorf("the undisturbed run ended without a digest of rank %d: %v", r, p.tail.last())
		}
	}
	return digests, nil
}

// compare tells in which ways the final states differ: from the undisturbed run, or between replicas.
func compare(got, want [][3]string, groups []int) (differs []string) {
	what := [3]string{"weights", "replicated state", "private state"}
	for r := range got {
		for k := range what {
			if got[r][k] != want[r][k] {
				differs = append(differs, fmt.Sprintf("%s of rank %d: %.16s, undisturbed %.16s", what[k], r, got[r][k], want[r][k]))
			}
		}
	}
	for r, group := range groups {
		twin := slices.Index(groups, group)
		for k := range what[:2] {
			if got[r][k] != got[twin][k] {
				differs = append(differs, fmt.Sprintf("%s of rank %d and its replica %d: %.16s, %.16s", what[k], r, twin, got[r][k], got[twin][k]))
			}
		}
	}
	return differs
}
