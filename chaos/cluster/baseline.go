package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Digests are what a rank says of its final state: weights, all replicated state, private state.
type Digests [3]string

// Undisturbed runs a trainer without replicad and without faults, and returns the final digests by rank.
func Undisturbed(ctx context.Context, spawn *Spawner, j *Journal, log string, patience time.Duration, world int, command []string) ([]Digests, error) {
	command = append(slices.Clone(command), "--baseline", "--world", fmt.Sprint(world))
	p, err := spawn.Start("undisturbed run", log, nil, Output{Out: func(line []byte) { j.AddRank("-", line) }}, command[0], command[1:]...)
	if err != nil {
		return nil, err
	}
	defer p.Kill()
	spawn.Ended(p, func() { j.View(j.TouchLocked) }) // its end alone is no event
	err = j.Await(ctx, patience, "the undisturbed run's final digests", func() bool { return j.doneLocked() == world || p.Spent() })
	if err != nil {
		return nil, err
	}
	digests, err := j.Digests(world)
	if err != nil {
		return nil, fmt.Errorf("the undisturbed run ended early: %w: %v", err, p.Last())
	}
	return digests, nil
}

func (j *Journal) doneLocked() (n int) {
	for _, s := range j.Ranks {
		if s.Done {
			n++
		}
	}
	return n
}

// Digests are the final ones, by rank; an error if a rank gave none.
func (j *Journal) Digests(world int) ([]Digests, error) {
	list := make([]Digests, world)
	j.View(func() {
		for r := range list {
			if s := j.Ranks[r]; s != nil {
				list[r] = s.Digest
			}
		}
	})
	for r, d := range list {
		if d[0] == "" {
			return nil, fmt.Errorf("rank %d gave no final digest", r)
		}
	}
	return list, nil
}

// Compare tells in which ways final states differ: from the undisturbed run, or between replicas.
func Compare(got, want []Digests, groups []int) (differs []string) {
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
