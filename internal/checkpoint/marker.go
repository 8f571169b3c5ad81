package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"time"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Marker commits a durable generation: everything that opening a job from it needs.
type Marker struct {
	Version    uint32               `json:"version" cbor:"1,keyasint"` // set by WriteMarker
	JobName    string               `json:"job_name" cbor:"2,keyasint"`
	Job        replica.JobID        `json:"job" cbor:"3,keyasint"`
	Generation replica.Generation   `json:"generation" cbor:"4,keyasint"`
	Position   replica.Position     `json:"position" cbor:"5,keyasint"`
	Layout     replica.Layout       `json:"layout" cbor:"6,keyasint"`
	Options    replica.Options      `json:"options" cbor:"7,keyasint"`
	Lineage    replica.Lineage      `json:"lineage" cbor:"8,keyasint"`
	Condemned  []replica.Generation `json:"condemned" cbor:"9,keyasint"`
	Shards     []replica.ShardInfo  `json:"shards" cbor:"10,keyasint"`
	Geometries []replica.Digest     `json:"geometries" cbor:"11,keyasint"` // by group, of the replicated part
	// Written orders the markers of one job name, also those of different jobs: the milliseconds since 1970 when it was written, or one
	// more than the largest of those that lay in the directory then. WriteMarker sets it; 0 in markers of version 1, which had none.
	Written uint64 `json:"written,omitempty" cbor:"12,keyasint,omitempty"`
	// Owner is the job's: nobody else's job goes on from the generation.
	Owner uint32 `json:"owner" cbor:"13,keyasint,omitempty"`
	// Lacks is what ranks had said of their copies by the time that it was written: a run that goes on from it is not the same one.
	Lacks []replica.Lacking `json:"lacks,omitempty" cbor:"14,keyasint,omitempty"`
	// Recipe is how a process gets the regions that the generation has, where its job had grown; Grown the epoch of the newest growth, before
	// which regions were others.
	Recipe []byte        `json:"recipe,omitempty" cbor:"15,keyasint,omitempty"`
	Grown  replica.Epoch `json:"grown,omitempty" cbor:"16,keyasint,omitempty"`
}

// Versions of a marker.
const (
	markerUnordered = 1 // without Written
	markerVersion   = 2
)

// maxWritten is far beyond every clock, and leaves room for those that come after.
const maxWritten = 1 << 60

// Shard finds a part's shard.
func (m *Marker) Shard(p replica.Part) (replica.ShardInfo, bool) {
	for _, s := range m.Shards {
		if s.Part == p {
			return s, true
		}
	}
	return replica.ShardInfo{}, false
}

// flatten lists shards that were written along by themselves, each file once.
func flatten(shards []replica.ShardInfo) []replica.ShardInfo {
	var out []replica.ShardInfo
	seen := make(map[replica.Part]bool)
	add := func(s replica.ShardInfo) {
		s.Frozen = nil
		if !seen[s.Part] {
			seen[s.Part] = true
			out = append(out, s)
		}
	}
	for _, s := range shards {
		if s.Frozen != nil {
			add(*s.Frozen)
		}
		add(s)
	}
	return out
}

// check tells whether the marker lists every part of its layout once, each under its own name.
func (m *Marker) check() error {
	if err := replica.CheckJobName(m.JobName); err != nil {
		return err
	}
	if m.Version != markerVersion && m.Version != markerUnordered {
		return fmt.Errorf("version %d, this program reads %d and %d", m.Version, markerUnordered, markerVersion)
	}
	if (m.Written == 0) != (m.Version == markerUnordered) || m.Written > maxWritten {
		return fmt.Errorf("a marker of version %d was written at %d", m.Version, m.Written)
	}
	if len(m.Layout.Groups) != int(m.Layout.World) || m.Layout.World == 0 || m.Layout.World > replica.MaxRanks {
		return fmt.Errorf("layout of %d ranks lists %d", m.Layout.World, len(m.Layout.Groups))
	}
	have := make(map[replica.Part]bool, len(m.Shards))
	for _, s := range m.Shards {
		if have[s.Part] {
			return fmt.Errorf("%v is listed twice", s.Part)
		}
		have[s.Part] = true
		named := replica.Manifest{Part: s.Part, Generation: m.Generation, Root: s.Root}
		if s.Part.Kind > replica.FrozenPart || s.File != shardName(&named)+shardExt {
			return fmt.Errorf("%v has file %q, want %q", s.Part, s.File, shardName(&named)+shardExt)
		}
	}
	for rank, group := range m.Layout.Groups {
		for _, p := range []replica.Part{replica.OfGroup(group), replica.OfRank(replica.Rank(rank))} {
			if !have[p] {
				return fmt.Errorf("no shard of %v", p)
			}
		}
	}
	return nil
}

// complete tells whether every file that the marker lists is there with its length and a manifest that hashes to its root, all
// of one cluster, which it returns.
func (t *tree) complete(dir string, m *Marker) (cluster replica.ClusterID, err error) {
	for i, info := range m.Shards {
		st, err := t.stat(path.Join(dir, info.File))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return cluster, fmt.Errorf("shard %s %w", info.File, errMissing)
		case err != nil:
			return cluster, err
		case !st.Mode().IsRegular() || uint64(st.Size()) != info.Bytes:
			return cluster, fmt.Errorf("shard %s has %d bytes, the marker says %d", info.File, st.Size(), info.Bytes)
		}
		rec, err := t.readSide(dir, info)
		if errors.Is(err, fs.ErrNotExist) {
			return cluster, fmt.Errorf("manifest of shard %s %w", info.File, errMissing)
		}
		if err != nil {
			return cluster, fmt.Errorf("manifest of shard %s: %w", info.File, err)
		}
		if rec.Manifest.Job != m.Job || info.Part.Kind != replica.FrozenPart && rec.Manifest.Generation != m.Generation {
			return cluster, fmt.Errorf("manifest of shard %s is of job %v, generation %v", info.File, rec.Manifest.Job, rec.Manifest.Generation)
		}
		if i == 0 {
			cluster = rec.Manifest.Cluster
		} else if rec.Manifest.Cluster != cluster {
			return cluster, fmt.Errorf("manifest of shard %s is of cluster %v, others are of cluster %v", info.File, rec.Manifest.Cluster, cluster)
		}
		if f := rec.Manifest.FrozenRoot; !f.IsZero() && !m.hasFrozen(f) {
			return cluster, fmt.Errorf("shard %s needs the frozen part %v, which the marker does not list", info.File, f)
		}
	}
	return cluster, nil
}

func (m *Marker) hasFrozen(root replica.Digest) bool {
	for _, s := range m.Shards {
		if s.Part.Kind == replica.FrozenPart && s.Root == root {
			return true
		}
	}
	return false
}

// WriteMarker commits a generation whose shards are all written. It is the last step; a generation gets one marker, once:
// writing the same again is no error, another is ErrCommitted.
func (s *Store) WriteMarker(ctx context.Context, m Marker) error {
	t, err := s.toWrite()
	if err == nil {
		err = s.finish(t, t.commit(ctx, m, time.Now()))
	}
	if err != nil {
		return fmt.Errorf("commit marker of job %s, generation %v: %w", m.JobName, m.Generation, err)
	}
	return nil
}

// commit writes the marker behind those of the same name that are there. One that is damaged orders nothing; one that the disk
// refuses to read may be the newest, and stands in the way.
func (t *tree) commit(ctx context.Context, m Marker, now time.Time) error {
	jobs, _, err := t.jobs(m.JobName)
	if err != nil {
		return err
	}
	m.Written = uint64(max(now.UnixMilli(), 1))
	for _, job := range jobs {
		entries, err := t.readDir(path.Join(m.JobName, job.String()))
		if err != nil {
			return err
		}
		for _, e := range entries {
			if _, ok := parseGeneration(e.Name()); !ok {
				continue
			}
			other, _, err := t.readMarker(m.JobName, job, e.Name())
			if err == nil {
				m.Written = max(m.Written, other.Written+1)
			} else if SkipKindOf(err) == Unreadable {
				return fmt.Errorf("order it behind generation %s of job %v: %w", e.Name(), job, err)
			}
		}
	}
	return t.writeMarker(ctx, m)
}

func (t *tree) writeMarker(ctx context.Context, m Marker) error {
	m.Version, m.Shards = markerVersion, flatten(m.Shards)
	if err := m.check(); err != nil {
		return err
	}
	dir, err := jobDir(m.JobName, m.Job)
	if err != nil {
		return err
	}
	if _, err := t.complete(dir, &m); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	frame, err := wire.Append(nil, kindMarker, &m)
	if err != nil {
		return err
	}
	name := path.Join(dir, generationDir(m.Generation), markerName)
	err = t.writeFile(name, t.linkOnce, func(w io.Writer) error {
		_, err := w.Write(frame)
		return err
	})
	if errors.Is(err, fs.ErrExist) {
		if t.wroteBefore(name, m) {
			return nil
		}
		return fmt.Errorf("%s %w", name, ErrCommitted)
	}
	return err
}

// wroteBefore tells whether the marker that is there is m, but for when it was written and what ranks had said by then.
func (t *tree) wroteBefore(name string, m Marker) bool {
	b, err := t.readFile(name, maxMarker)
	if err != nil {
		return false
	}
	var there Marker
	if wire.Decode(b, kindMarker, &there) != nil {
		return false
	}
	m.Version, m.Written, m.Lacks = there.Version, there.Written, there.Lacks
	frame, err := wire.Append(nil, kindMarker, &m)
	return err == nil && bytes.Equal(frame, b)
}

var errMissing = errors.New("is missing")

var errUnfinished = errors.New("no commit marker: it was never finished")

// readMarker reads the marker of a generation's directory and checks that it belongs there; sum is the digest of its file.
func (t *tree) readMarker(jobName string, job replica.JobID, gen string) (m *Marker, sum replica.Digest, err error) {
	b, err := t.readFile(path.Join(jobName, job.String(), gen, markerName), maxMarker)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, sum, errUnfinished
	}
	if err != nil {
		return nil, sum, err
	}
	m, err = parseMarker(b, jobName, job, gen)
	return m, hash(b), err
}

// parseMarker reads the marker of the generation's directory gen of a job.
func parseMarker(frame []byte, jobName string, job replica.JobID, gen string) (*Marker, error) {
	var m Marker
	if err := wire.Decode(frame, kindMarker, &m); err != nil {
		return nil, fmt.Errorf("commit marker: %w", err)
	}
	if m.JobName != jobName || m.Job != job || generationDir(m.Generation) != gen {
		return nil, fmt.Errorf("commit marker is of job %s (%v), generation %v", m.JobName, m.Job, m.Generation)
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("commit marker: %w", err)
	}
	return &m, nil
}
