package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/retain"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Prune removes what the rule of package retain lets go of a job's durable generations, of which it keeps the newest keep, and of those of
// former runs of its name; and with them what died unfinished: older generations without a valid marker, temporary files beside markers,
// frozen parts that no generation left needs. What the disk refuses to read stays. The writer of the markers calls it when no write is under way.
func (s *Store) Prune(jobName string, job replica.JobID, keep int) error {
	if keep < 1 {
		return fmt.Errorf("prune durable generations of job %s: keep %d, want at least 1: the newest is the last resort", jobName, keep)
	}
	if err := replica.CheckName(jobName); err != nil {
		return err
	}
	t, err := s.at() // what lies in a former directory is no reason to remove anything from this one
	var found []Found
	var skipped []Skipped
	if err == nil {
		found, skipped, err = t.find(jobName, job)
	}
	if err != nil {
		return fmt.Errorf("prune durable generations of job %s: %w", jobName, err)
	}
	if len(found) == 0 || job == (replica.JobID{}) {
		return nil
	}
	errs := []error{s.prune(t, s.withFormer(t, jobName, job, lying{found, skipped}, keep), keep)}
	for _, f := range found {
		t.removeTemps(f.Path, "") // of one that is gone there are none
	}
	errs = append(errs, t.removeFrozen(path.Dir(found[0].Path)))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("prune durable generations of job %s: %w", jobName, t.explain(err))
	}
	return nil
}

// lying is what lies in the directory of one job.
type lying struct {
	found   []Found
	skipped []Skipped
}

// withFormer are a job and the former runs of its name, the newest first. One whose directory can't be listed is left out, and alone. Their
// files are looked at only where something would go by their markers: with each write that would be all manifests of all that is kept. Runs
// of other clusters are left alone: a job of the same name may train there.
func (s *Store) withFormer(t *tree, jobName string, job replica.JobID, present lying, keep int) []lying {
	alone := []lying{present}
	if s.settings.KeepRuns == 0 {
		return alone
	}
	ids, _, err := t.jobs(jobName)
	if err != nil {
		s.note(err)
		return alone
	}
	ids = slices.DeleteFunc(ids, func(id replica.JobID) bool { return id == job })
	_, gens, out := s.decide(s.runs(t, jobName, ids, present, t.marked), keep)
	for i, v := range out {
		if gens[i].Run > 0 && !v.Keep {
			runs := s.runs(t, jobName, ids, present, t.look)
			return slices.DeleteFunc(runs, func(l lying) bool { return !l.of(present.found[0].Cluster) })
		}
	}
	return alone
}

// runs lists former runs behind the present one.
func (s *Store) runs(t *tree, jobName string, ids []replica.JobID, present lying, look lookAt) []lying {
	runs := []lying{present}
	for _, id := range ids {
		found, skipped, err := t.findJob(jobName, id, look)
		if err != nil {
			s.note(err)
			continue
		}
		runs = append(runs, lying{found, skipped})
	}
	slices.SortStableFunc(runs[1:], func(a, b lying) int { return cmp.Compare(b.written(), a.written()) })
	return runs
}

// of tells whether a run is known to be of a cluster: the manifests of what is whole say so.
func (l lying) of(c replica.ClusterID) bool {
	return slices.ContainsFunc(l.found, func(f Found) bool { return f.Cluster == c }) ||
		slices.ContainsFunc(l.skipped, func(sk Skipped) bool { return sk.Whole != nil && sk.Whole.Cluster == c })
}

// written is when the newest of a run's markers was written.
func (l lying) written() uint64 {
	w := newest(l.found)
	for _, sk := range l.skipped {
		if sk.Whole != nil {
			w = max(w, sk.Whole.Written)
		}
	}
	return w
}

// decide asks the rule about some runs.
func (s *Store) decide(runs []lying, keep int) (paths []string, gens []retain.Generation, out []retain.Verdict) {
	now := uint64(0)
	for _, l := range runs {
		now = max(now, l.written())
	}
	for run, l := range runs {
		p, g := s.known(l, run, now)
		paths, gens = append(paths, p...), append(gens, g...)
	}
	return paths, gens, retain.Decide(gens, retain.Policy{Last: keep, Runs: s.settings.KeepRuns})
}

// prune removes generations of some runs, and the directories of runs of which nothing is left.
func (s *Store) prune(t *tree, runs []lying, keep int) error {
	paths, gens, out := s.decide(runs, keep)
	var errs []error
	gone := make(map[string]bool) // directories of former runs
	for i, v := range out {
		if v.Keep {
			continue
		}
		errs = append(errs, t.removeGeneration(paths[i]))
		gone[path.Dir(paths[i])] = gone[path.Dir(paths[i])] || gens[i].Run > 0
	}
	for dir, former := range gone {
		if former {
			errs = append(errs, t.removeFrozen(dir))
			t.removeEmpty(dir)
		}
	}
	return errors.Join(errs...)
}

// known lists the generations of a run as the rule asks for them, with their directories. Of one whose marker says no time the run's newest
// stands for it: it is no older than what it would have to make room for.
func (s *Store) known(l lying, run int, now uint64) (paths []string, gens []retain.Generation) {
	add := func(where string, g retain.Generation) {
		g.Run, g.Open = run, s.isRead(where)
		paths, gens = append(paths, where), append(gens, g)
	}
	age := func(written uint64) time.Duration { return time.Duration(now-written) * time.Millisecond }
	marked := func(f Found) {
		add(f.Path, retain.Generation{Epoch: f.Position.Epoch, Step: f.Position.Step, Age: age(f.Written), Size: f.Bytes(), State: f.State(), Resumed: f.Read != nil && f.Read.Resumed != 0})
	}
	for _, f := range l.found {
		marked(f)
	}
	for _, sk := range l.skipped {
		g, ok := parseGeneration(path.Base(sk.Path))
		switch {
		case sk.Whole != nil:
			marked(*sk.Whole)
		case ok && sk.Why == Damaged:
			add(sk.Path, retain.Generation{Epoch: g.Epoch, Step: g.Step, Age: age(l.written()), State: retain.Damaged})
		case ok && sk.Why == Unfinished:
			add(sk.Path, retain.Generation{Epoch: g.Epoch, Step: g.Step, Age: age(l.written()), State: retain.Unfinished})
		}
	}
	return paths, gens
}

// removeEmpty removes the directory of a run, if nothing is left in it.
func (t *tree) removeEmpty(dir string) {
	_ = t.disk.remove(path.Join(dir, frozenDir)) // what is not empty stays
	if t.disk.remove(dir) == nil {
		_ = t.disk.syncDir(path.Dir(dir))
	}
}

func (s *Store) isRead(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reading[path] > 0
}

// removeGeneration removes the marker first, and for good, so that what is half removed is never found.
func (t *tree) removeGeneration(dir string) error {
	if err := t.disk.remove(path.Join(dir, markerName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := t.disk.syncDir(dir); err != nil {
		return err
	}
	entries, err := t.readDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := t.disk.remove(path.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	if err := t.disk.remove(dir); err != nil {
		return err
	}
	return t.disk.syncDir(path.Dir(dir))
}

// removeFrozen removes frozen parts that no manifest in the job's directory names.
func (t *tree) removeFrozen(dir string) error {
	frozen, err := t.readDir(path.Join(dir, frozenDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	needed, err := t.frozenRoots(dir)
	if err != nil {
		return err
	}
	for _, e := range frozen {
		root := strings.TrimSuffix(strings.TrimSuffix(e.Name(), shardExt), sideExt)
		root = root[strings.LastIndexByte(root, '-')+1:] // of group-<index>-<root>
		if !slices.Contains(needed, root) {
			if err := t.disk.remove(path.Join(dir, frozenDir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// frozenRoots lists the frozen roots that a job's manifests name, finished generations or not.
func (t *tree) frozenRoots(dir string) (roots []string, err error) {
	generations, err := t.readDir(dir)
	if err != nil {
		return nil, err
	}
	for _, g := range generations {
		if _, ok := parseGeneration(g.Name()); !ok {
			continue
		}
		entries, err := t.readDir(path.Join(dir, g.Name()))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if !strings.HasSuffix(e.Name(), sideExt) || strings.HasPrefix(e.Name(), tempPrefix) {
				continue
			}
			root, err := t.frozenRootOf(path.Join(dir, g.Name(), e.Name()))
			if err != nil {
				return nil, err // better to keep all than to remove what this one may need
			}
			roots = append(roots, root)
		}
	}
	return roots, nil
}

func (t *tree) frozenRootOf(name string) (string, error) {
	b, err := t.readFile(name, maxManifest)
	if err != nil {
		return "", err
	}
	var rec sideRecord
	if err := wire.Decode(b, kindManifest, &rec); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return rec.Manifest.FrozenRoot.String(), nil
}
