package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Prune removes all but the newest keep durable generations of a job, never one with an open shard, and with them what
// died unfinished: older generations without a valid marker, temporary files beside markers, frozen parts that no
// generation left needs. The writer of the markers calls it when no write is under way.
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
	var errs []error
	for i, f := range found {
		if i < keep || s.isRead(f.Path) {
			t.removeTemps(f.Path, "")
			continue
		}
		errs = append(errs, t.removeGeneration(f.Path))
	}
	for _, sk := range skipped {
		if g, ok := parseGeneration(path.Base(sk.Path)); ok && g.Compare(found[0].Generation) < 0 && !s.isRead(sk.Path) {
			errs = append(errs, t.removeGeneration(sk.Path))
		}
	}
	errs = append(errs, t.removeFrozen(path.Dir(found[0].Path)))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("prune durable generations of job %s: %w", jobName, t.explain(err))
	}
	return nil
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
