package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/replicad/replicad/replica"
)

// discardPrefix begins the names of directories of generations that are being removed. Everything else passes such names over.
const discardPrefix = tempPrefix + "discard-"

// Discard removes what a write that did not become durable left of a generation; nothing where the generation has a commit marker. Its caller knows
// that no write of the generation is under way.
//
// The directory is moved aside first, and only then held to have no marker. A marker that comes late finds no place: it is linked by its path. So no
// marker ever names a file that is gone, whoever else discards or commits. A marker that came before has the directory moved back.
func (s *Store) Discard(jobName string, job replica.JobID, g replica.Generation) error {
	dir, err := jobDir(jobName, job)
	if err != nil {
		return err
	}
	t, err := s.at() // what lies in a former directory is left as it is
	if err == nil {
		err = t.discard(dir, g)
	}
	if err != nil {
		return fmt.Errorf("remove what was written of generation %v of job %s: %w", g, jobName, err)
	}
	return nil
}

func (t *tree) discard(dir string, g replica.Generation) error {
	errs := []error{t.discardLeft(dir)}
	name := path.Join(dir, generationDir(g))
	if marked, err := t.hasMarker(name); err != nil || marked {
		return errors.Join(append(errs, err)...)
	}
	aside := path.Join(dir, discardPrefix+generationDir(g)+"-"+t.tag())
	err := t.disk.rename(name, aside)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.Join(errs...) // another node was first, or nothing was written
	}
	if err == nil {
		err = t.removeUnmarked(aside)
	}
	return errors.Join(append(errs, err)...)
}

// discardLeft goes on with what a daemon's death left half discarded.
func (t *tree) discardLeft(dir string) error {
	entries, err := t.readDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), discardPrefix) && e.IsDir() {
			errs = append(errs, t.removeUnmarked(path.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// removeUnmarked removes a directory that was moved aside, or moves it back.
func (t *tree) removeUnmarked(aside string) error {
	marked, err := t.hasMarker(aside)
	if err != nil {
		return err
	}
	if marked {
		dir, base := path.Split(aside)
		gen := strings.TrimPrefix(base, discardPrefix)
		return t.disk.rename(aside, path.Join(dir, gen[:strings.LastIndexByte(gen, '-')]))
	}
	if err := t.removeGeneration(aside); !errors.Is(err, fs.ErrNotExist) { // another node removes it as well
		return err
	}
	return nil
}

// hasMarker tells whether a generation's directory has a commit marker, whatever that says.
func (t *tree) hasMarker(dir string) (bool, error) {
	_, err := t.stat(path.Join(dir, markerName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
