package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// fault is what `replicad demo` reports of one: milliseconds from the injection, null where there was no such moment.
type fault struct {
	Kind      string   `json:"kind"`
	Detected  *float64 `json:"detected_ms"`
	Fenced    *float64 `json:"fenced_ms"`
	Planned   *float64 `json:"planned_ms"`
	Verified  *float64 `json:"verified_ms"`
	Resumed   *float64 `json:"resumed_ms"`
	Moved     *uint64  `json:"moved_bytes"`
	FirstStep *float64 `json:"-"` // of a figure of the report
}

// parseDemo takes the faults of `replicad demo`'s report, all of one kind. Their first steps are figures, in the same order.
func parseDemo(b []byte) ([]fault, error) {
	var report struct {
		Faults  []fault
		Figures []struct {
			Name  string
			Value float64
		}
	}
	if err := json.Unmarshal(b, &report); err != nil {
		return nil, fmt.Errorf("the demo's report: %w", err)
	}
	n := 0
	for _, f := range report.Figures {
		if strings.HasPrefix(f.Name, "recovery from ") && n < len(report.Faults) {
			report.Faults[n].FirstStep = &f.Value
			n++
		}
	}
	if n == 0 || n < len(report.Faults) {
		return nil, fmt.Errorf("the demo's report: %d faults and %d first steps after them", len(report.Faults), n)
	}
	return report.Faults, nil
}

// phases are what a recovery consists of, each from the end of the one before, in ms.
type phases struct {
	detect, fence, plan, move, load, step float64
	moved                                 uint64
}

// phasesOf a fault after which state moved.
func phasesOf(f fault) (p phases, err error) {
	last := 0.0
	for _, m := range []struct {
		name string
		at   *float64
		to   *float64
	}{{"detected", f.Detected, &p.detect}, {"fenced", f.Fenced, &p.fence}, {"planned", f.Planned, &p.plan}, {"verified", f.Verified, &p.move}, {"resumed", f.Resumed, &p.load}, {"first step", f.FirstStep, &p.step}} {
		if m.at == nil {
			return p, fmt.Errorf("fault %s: nothing was %s: a recovery was wanted that moves state", f.Kind, m.name)
		}
		*m.to = *m.at - last
		last = *m.at
	}
	if f.Moved == nil {
		return p, fmt.Errorf("fault %s: nothing was moved", f.Kind)
	}
	p.moved = *f.Moved
	return p, nil
}

// restoreFigures of recoveries, beside the rate of the daemons' lanes in bytes a second.
func restoreFigures(all []phases, rate float64) (list []Figure) {
	var limits, beyond, allowed []float64
	of := func(part func(phases) float64) (v []float64) {
		for _, p := range all {
			v = append(v, part(p))
		}
		return v
	}
	for _, p := range all {
		wire := float64(p.moved) / rate * 1000
		limits, allowed = append(limits, wire), append(allowed, wire+500)
		beyond = append(beyond, p.fence+p.plan+p.move+p.load+p.step)
	}
	return []Figure{
		newFigure("restore/1-detect", "ms", of(func(p phases) float64 { return p.detect }), "", nil, bound{}),
		newFigure("restore/2-fence", "ms", of(func(p phases) float64 { return p.fence }), "", nil, bound{}),
		newFigure("restore/3-plan", "ms", of(func(p phases) float64 { return p.plan }), "", nil, bound{}),
		newFigure("restore/4-move-and-verify", "ms", of(func(p phases) float64 { return p.move }), "bytes / rate of the default lanes", limits, bound{}),
		newFigure("restore/5-load", "ms", of(func(p phases) float64 { return p.load }), "", nil, bound{}),
		newFigure("restore/6-first-step", "ms", of(func(p phases) float64 { return p.step }), "", nil, bound{}),
		newFigure("restore/beyond-detection", "ms", beyond, "bytes / rate of the default lanes + 500 ms", allowed, atMost(1)),
	}
}

func restoreJob(quick bool) job {
	return job{"restore/", func(ctx context.Context, r *runner) error {
		if err := r.needsTrainer(); err != nil {
			return err
		}
		mb, faults := 128, r.rounds
		if quick {
			mb, faults = 16, 2
		}
		rate, err := r.defaultRate(ctx, quick)
		if err != nil {
			return err
		}
		r.say("restore/: %d nodes of a job with %d MiB a rank are killed, one after the other ...", faults, mb)
		dir := r.sub("demo")
		kinds := strings.TrimSuffix(strings.Repeat("node,", faults), ",")
		err = r.replicad(ctx, "demo", "--plain", "--seed", "1", "--faults", kinds, "--state-mb", fmt.Sprint(mb), "--slots", "2", "--warm", "1",
			"--pace", "200ms", "--steps", fmt.Sprint(60+45*faults), "--report", dir)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(filepath.Join(dir, "report.json"))
		if err != nil {
			return err
		}
		list, err := parseDemo(b)
		if err != nil {
			return err
		}
		var all []phases
		for _, f := range list {
			p, err := phasesOf(f)
			if err != nil {
				return err
			}
			all = append(all, p)
		}
		for _, f := range restoreFigures(all, rate) {
			f.Note = fmt.Sprintf("%d MiB a rank, a spare's process waits", mb)
			r.add(f)
		}
		return nil
	}}
}

// defaultRate is that of the lanes of one source, in bytes a second.
func (r *runner) defaultRate(ctx context.Context, quick bool) (float64, error) {
	bytes := uint64(256 * mib)
	if quick {
		bytes = 32 * mib
	}
	s, err := newStand(r.sub("rate"), bytes)
	if err != nil {
		return 0, err
	}
	defer s.stop()
	ours := s.part.rate(func(ctx context.Context) error { return s.part.fetch(ctx, s.defaultLanes(1)) })
	rates, _, err := alternate(ctx, r.rounds, func(context.Context) (float64, error) { return 0, nil }, ours)
	return median(rates) * 1e9, err
}

// needsTrainer leaves a job out where the trainer is missing.
func (r *runner) needsTrainer() error {
	if _, err := os.Stat(r.trainer()); err != nil {
		return leftOut{fmt.Sprintf("there is no %s: `make build` puts it beside replicad", r.trainer())}
	}
	return nil
}

func (r *runner) trainer() string { return filepath.Join(filepath.Dir(r.opt.Program), "textlm") }

// replicad runs another of this program's verbs. Its last lines are in the error.
func (r *runner) replicad(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, r.opt.Program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it ends its processes
	cmd.WaitDelay = 30 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return errors.Join(fmt.Errorf("replicad %s: %w", strings.Join(args, " "), err), errors.New(strings.Join(lines[max(0, len(lines)-12):], "\n")))
	}
	return nil
}
