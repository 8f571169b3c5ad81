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

// Remove removes one generation, finished or not, and what its run has left once that is empty. One that is read stays.
func (s *Store) Remove(jobName string, job replica.JobID, g replica.Generation) error {
	dir, err := jobDir(jobName, job)
	if err != nil {
		return err
	}
	t, err := s.at()
	if err != nil {
		return err
	}
	if where := path.Join(dir, generationDir(g)); !s.isRead(where) {
		err = t.removeGeneration(where)
	}
	if err == nil {
		err = t.removeFrozen(dir)
		t.removeEmpty(dir)
	}
	if err != nil {
		return fmt.Errorf("remove generation %v of job %s: %w", g, jobName, t.explain(err))
	}
	return nil
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
