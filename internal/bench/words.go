package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

const gib = 1 << 30

// The C program's figures: this program is built without cgo, and it is the C library that is measured.

// sample is a line of the C program: a number for each round.
type sample struct {
	Values []float64 `json:"values"`
	Limits []float64 `json:"limits"`
}

// parseSample takes the line of so many rounds.
func parseSample(line []byte, rounds int) (s sample, err error) {
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return s, fmt.Errorf("the C program's line %q: %w", line, err)
	}
	if len(s.Values) != rounds || len(s.Limits) != rounds {
		return s, fmt.Errorf("the C program's line %q has %d values and %d limits, want %d of each", line, len(s.Values), len(s.Limits), rounds)
	}
	return s, nil
}

// inC runs the C program once.
func (r *runner) inC(ctx context.Context, args ...string) (sample, error) {
	if _, err := os.Stat(r.opt.CBench); err != nil {
		return sample{}, leftOut{fmt.Sprintf("there is no %s: `make bench` builds it, --c-bench names another", r.opt.CBench)}
	}
	args = append([]string{args[0], fmt.Sprint(r.rounds)}, args[1:]...)
	cmd := exec.CommandContext(ctx, r.opt.CBench, args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	line, err := cmd.Output()
	if err != nil {
		return sample{}, fmt.Errorf("%s %s: %w: %s", r.opt.CBench, strings.Join(args, " "), err, strings.TrimSpace(said.String()))
	}
	return parseSample(line, r.rounds)
}

func stepJobs() []job {
	step := func(name, copies string) job {
		return job{name, func(ctx context.Context, r *runner) error {
			s, err := r.inC(ctx, "step", copies)
			if err == nil {
				r.add(newFigure(name, "ns", s.Values, "getppid, the cheapest system call", s.Limits, bound{}))
			}
			return err
		}}
	}
	return []job{step("step/words", "0"), step("step/4-KiB-copied", "1")}
}

// capture is a job's geometry.
type capture struct {
	mib, threads, regions int
}

func (c capture) name() string {
	return fmt.Sprintf("capture/%d-%s/%d-MiB/%d-%s", c.threads, plural(c.threads, "thread"), c.mib, c.regions, plural(c.regions, "region"))
}

// bytes are about as many as the name says, in whole words of each region.
func (c capture) bytes() uint64 {
	words := 8 * uint64(c.regions)
	return uint64(c.mib) * mib / words * words
}

// captures are those of a run: one thread by size, one by regions, two by size.
func captures(quick bool) []capture {
	if quick {
		return []capture{{64, 1, 1}, {64, 1, 10_000}, {64, 2, 2}}
	}
	return []capture{{64, 1, 1}, {256, 1, 1}, {1024, 1, 1}, {4096, 1, 1}, {256, 1, 100}, {256, 1, 10_000}, {64, 2, 2}, {256, 2, 2}, {1024, 2, 2}, {256, 2, 10_000}}
}

func captureJobs(quick bool) (list []job) {
	for _, c := range captures(quick) {
		list = append(list, job{c.name(), func(ctx context.Context, r *runner) error {
			if need, have := 3*c.bytes()+gib, meminfo("MemAvailable"); have < need { // live state and two slots
				return leftOut{fmt.Sprintf("it needs %d MiB of memory, and %d are available", need/mib, have/mib)}
			}
			s, err := r.inC(ctx, "capture", fmt.Sprint(c.bytes()), fmt.Sprint(c.threads), fmt.Sprint(c.regions))
			if err != nil {
				return err
			}
			want := bound{}
			if c.threads == 1 {
				want = atLeast(1)
			}
			r.add(newFigure(c.name(), "GB/s", s.Values, fmt.Sprintf("memcpy, %d %s", c.threads, plural(c.threads, "thread")), s.Limits, want))
			return nil
		}})
	}
	return list
}
