package demo

import (
	"context"
	"fmt"
	"time"
)

// undisturbed trains the same run without replicad and without faults, in one process.
func undisturbed(ctx context.Context, opt Options, dir string, spawn *spawner, j *journal) (digests [world][3]string, err error) {
	p, err := spawn.start("undisturbed run", logPath(dir, "undisturbed"), nil, func(line []byte) { j.addRank("-", line) }, nil,
		opt.Trainer, "--baseline", "--world", fmt.Sprint(world), "--steps", fmt.Sprint(opt.Steps), "--seed", fmt.Sprint(opt.Seed), "--state-mb", fmt.Sprint(opt.StateMB))
	if err != nil {
		return digests, err
	}
	defer p.kill()
	err = j.await(ctx, time.Minute+time.Duration(opt.Steps)*200*time.Millisecond, "the undisturbed run's final digests", func() bool {
		n := 0
		for r, s := range j.ranks {
			if s.done && r < world {
				digests[r] = s.digest
				n++
			}
		}
		return n == world || p.spent()
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
func compare(got, want [world][3]string) (differs []string) {
	what := [3]string{"weights", "replicated state", "private state"}
	for r := range got {
		for k := range what {
			if got[r][k] != want[r][k] {
				differs = append(differs, fmt.Sprintf("%s of rank %d: %.16s, undisturbed %.16s", what[k], r, got[r][k], want[r][k]))
			}
		}
	}
	for r := 2; r < world; r++ {
		for k := range what[:2] {
			if got[r][k] != got[r-2][k] {
				differs = append(differs, fmt.Sprintf("%s of rank %d and its replica %d: %.16s, %.16s", what[k], r, r-2, got[r][k], got[r-2][k]))
			}
		}
	}
	return differs
}
