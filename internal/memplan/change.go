package memplan

import "fmt"

// knob is one other value of a job.
type knob struct {
	flag, why string
	job       Job
}

// knobs are the changes that a plan names: of each, one step.
func knobs(j Job) (out []knob) {
	add := func(flag, why string, change func(*Job)) {
		k := knob{flag, why, j}
		change(&k.job)
		out = append(out, k)
	}
	slots := j.slots()
	if slots > 2 {
		add("--slots 2", "a step is captured only when the one before is committed", func(j *Job) { j.Slots = 2 })
	}
	if slots < 4 {
		add(fmt.Sprintf("--slots %d", slots+1), "captures run ahead of commits, fewer durable writes are skipped", func(j *Job) { j.Slots = slots + 1 })
	}
	if j.Copies > 1 {
		why := "one node fewer may fail at once"
		if j.Copies == 2 {
			why = "the loss of a node may cost its part of the state"
		}
		add(fmt.Sprintf("--copies %d", j.Copies-1), why, func(j *Job) { j.Copies, j.Slots = j.Copies-1, slots })
	}
	add(fmt.Sprintf("--copies %d", j.Copies+1), "one node more may fail at once", func(j *Job) { j.Copies, j.Slots = j.Copies+1, slots })
	add(fmt.Sprintf("--shards %d", 2*j.Shards), "twice as many ranks, on twice as many nodes", func(j *Job) { j.Shards *= 2 })
	if j.RanksPerNode > 1 {
		half := (min(j.RanksPerNode, j.World()) + 1) / 2
		add(fmt.Sprintf("--ranks-per-node %d", half), "the same ranks on more nodes", func(j *Job) { j.RanksPerNode = half })
	}
	if j.Stages {
		add("--stages=false", "where the state lies in host memory (CPU offload)", func(j *Job) { j.Stages = false })
	}
	return out
}

// maxDoublings bounds the search for shards that fit.
const maxDoublings = 12

// Remedy finds flags with which the plan would fit, and no copy would be given up: two slots, then twice as many shards as often as it takes.
// Empty: none do.
func (p Plan) Remedy() string {
	j, flags := p.Job, ""
	if j.slots() > 2 {
		j.Slots, flags = 2, "--slots 2 "
	}
	for range maxDoublings {
		q, err := single(j)
		switch {
		case err != nil:
			return ""
		case q.Fits != nil && *q.Fits && j.Shards == p.Job.Shards:
			return "--slots 2"
		case q.Fits != nil && *q.Fits:
			return fmt.Sprintf("%s--shards %d", flags, j.Shards)
		}
		j.Shards *= 2
	}
	return ""
}
