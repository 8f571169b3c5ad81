package checkpoint

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Kinds of this package's frames.
const (
	kindManifest = wire.FirstCheckpoint + 0
	kindMarker   = wire.FirstCheckpoint + 1
	kindRead     = wire.FirstCheckpoint + 2
)

const (
	tempPrefix = ".tmp-"
	markerName = "COMMIT"
	frozenDir  = "frozen"
)

var (
	// ErrCorrupt marks bytes on disk that are not what was written.
	ErrCorrupt = errors.New("corrupt")
	// ErrCommitted marks a second, different marker for a generation.
	ErrCommitted = errors.New("already has another commit marker")
)

// Settings are what a daemon has of its configuration for a Store. It sets them before anybody uses it.
type Settings struct {
	Reader string      // this node, for the marks of what it has read; empty: the host's name
	Note   func(error) // told of what costs work and not correctness; nil: nobody is
}

// Store is one durable directory. mu guards what stands below it.
type Store struct {
	dir      string
	gate     *Gate
	settings Settings
	marking  sync.Mutex // held while a mark is changed, its reads and writes of the disk included: nothing else waits for it

	mu      sync.Mutex
	tree    *tree           // the directory as it was last opened
	moved   error           // why that was not the first time, until a write has failed with it
	reading map[string]int  // generation directories with open shards
	frozen  map[string]bool // files of frozen parts that were read whole here and are good
}

// Frozen is the frozen part of a group, given along with its replicated part; it is written unless it is there already.
type Frozen struct {
	Manifest replica.Manifest
	Regions  []replica.Region
	Read     func(i int, dst []byte) ([]byte, error)
}

// sideRecord is the manifest file beside a shard.
type sideRecord struct {
	Version  uint32           `cbor:"1,keyasint"`
	Manifest replica.Manifest `cbor:"2,keyasint"`
	Regions  []replica.Region `cbor:"3,keyasint"`
	Bytes    uint64           `cbor:"4,keyasint"` // of the shard's file
	Digest   replica.Digest   `cbor:"5,keyasint"` // of the shard's file
}

const recordVersion = 1

// Open opens a durable directory, which must exist and be writable. Once ctx has ended, nobody waits for its file system for long.
func Open(ctx context.Context, dir string) (*Store, error) { return OpenBehind(NewGate(ctx, dir)) }

// OpenBehind is Open for a directory whose gate is there already.
func OpenBehind(g *Gate) (*Store, error) {
	t, err := openTree(g)
	if err != nil {
		return nil, err
	}
	return &Store{dir: g.dir, gate: g, tree: t, reading: make(map[string]int), frozen: make(map[string]bool)}, nil
}

// Configure sets what the daemon's configuration says.
func (s *Store) Configure(c Settings) { s.settings = c }

func (s *Store) readerName() string {
	if s.settings.Reader != "" {
		return replica.Line(s.settings.Reader, maxMarkText)
	}
	if name, err := os.Hostname(); err == nil && name != "" {
		return replica.Line(name, maxMarkText)
	}
	return "somebody"
}

func (s *Store) note(err error) {
	if s.settings.Note != nil {
		s.settings.Note(err)
	}
}

// Dir is the directory, as it was given to Open.
func (s *Store) Dir() string { return s.dir }

// Close closes the directory. Open shards stay readable.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tree.Close()
}

// tag tells one writer's temporary files from another's.
func (t *tree) tag() string { return strings.ToLower(rand.Text()[:12]) }

func jobDir(jobName string, job replica.JobID) (string, error) {
	if err := replica.CheckJobName(jobName); err != nil {
		return "", err
	}
	return path.Join(jobName, job.String()), nil
}

func generationDir(g replica.Generation) string { return fmt.Sprintf("%d-%d", g.Epoch, g.Step) }

// shardName is a shard's path below its job's directory, without the extension.
func shardName(m *replica.Manifest) string {
	switch m.Part.Kind {
	case replica.FrozenPart:
		// Two groups may hold equal frozen parts: each file has one writer, so that nobody removes another's temporary file.
		return path.Join(frozenDir, fmt.Sprintf("group-%d-%s", m.Part.Index, m.Root))
	case replica.PrivatePart:
		return path.Join(generationDir(m.Generation), fmt.Sprintf("private-%d", m.Part.Index))
	case replica.ReplicatedPart:
	}
	return path.Join(generationDir(m.Generation), fmt.Sprintf("group-%d", m.Part.Index))
}

const (
	shardExt = ".safetensors"
	sideExt  = ".manifest"
)

// WriteShard writes one part. read gives its chunks; regions are all of the rank's, as at attach. Writing the same part
// again replaces it by the same bytes. A frozen part, where given, is written first, once for all generations.
func (s *Store) WriteShard(ctx context.Context, jobName string, m replica.Manifest, regions []replica.Region, frozen *Frozen, read func(i int, dst []byte) ([]byte, error)) (replica.ShardInfo, error) {
	var along *replica.ShardInfo
	if frozen != nil {
		if frozen.Manifest.Part.Kind != replica.FrozenPart || frozen.Manifest.Root != m.FrozenRoot {
			return replica.ShardInfo{}, fmt.Errorf("write shard %v %v: its manifest wants frozen root %v, given is %v %v", m.Part, m.Generation, m.FrozenRoot, frozen.Manifest.Part, frozen.Manifest.Root)
		}
		info, err := s.WriteShard(ctx, jobName, frozen.Manifest, frozen.Regions, nil, frozen.Read)
		if err != nil {
			return replica.ShardInfo{}, err
		}
		along = &info
	}
	var info replica.ShardInfo
	t, err := s.toWrite()
	if err == nil {
		info, err = s.writeShard(ctx, t, jobName, &m, regions, read)
		err = s.finish(t, err)
	}
	if err != nil {
		return replica.ShardInfo{}, fmt.Errorf("write shard %v %v of job %s: %w", m.Part, m.Generation, jobName, err)
	}
	info.Frozen = along
	return info, nil
}

func (s *Store) writeShard(ctx context.Context, t *tree, jobName string, m *replica.Manifest, regions []replica.Region, read func(int, []byte) ([]byte, error)) (replica.ShardInfo, error) {
	dir, err := jobDir(jobName, m.Job)
	if err != nil {
		return replica.ShardInfo{}, err
	}
	if err := m.Check(); err != nil {
		return replica.ShardInfo{}, err
	}
	if got := hash(m.RootInput()); got != m.Root {
		return replica.ShardInfo{}, fmt.Errorf("manifest says root %v and hashes to %v", m.Root, got)
	}
	l, err := safetensors.NewLayout(m, regions)
	if err != nil {
		return replica.ShardInfo{}, err
	}
	name := shardName(m)
	info := replica.ShardInfo{Part: m.Part, File: name + shardExt, Root: m.Root}
	if m.Part.Kind == replica.FrozenPart {
		if there, ok := s.frozenThere(ctx, t, dir, info); ok {
			return there, nil
		}
		if err := ctx.Err(); err != nil {
			return replica.ShardInfo{}, context.Cause(ctx)
		}
	}
	full := path.Join(dir, name)
	if err := t.makeDirs(path.Dir(full)); err != nil {
		return replica.ShardInfo{}, err
	}
	t.removeTemps(path.Dir(full), path.Base(full)+".")
	head, err := safetensors.AppendHeader(metadata(m), l.Tensors)
	if err != nil {
		return replica.ShardInfo{}, err
	}
	info.Bytes = uint64(len(head)) + l.Size()
	err = t.writeFile(full+shardExt, t.disk.rename, func(w io.Writer) error {
		h := xxh3.New()
		if err := writeTensors(ctx, io.MultiWriter(w, h), head, m, l, read); err != nil {
			return err
		}
		info.Digest = h.Sum128().Bytes()
		return nil
	})
	if err != nil {
		return replica.ShardInfo{}, err
	}
	rec := sideRecord{recordVersion, *m, regions, info.Bytes, info.Digest}
	if err := t.writeFile(full+sideExt, t.disk.rename, func(w io.Writer) error { return wire.Write(w, kindManifest, &rec) }); err != nil {
		return info, err
	}
	if m.Part.Kind == replica.FrozenPart {
		s.isGood(path.Join(dir, info.File), true)
		return info, t.unmark(dir, info.File)
	}
	return info, nil
}

// frozenThere tells whether a frozen part that is written once for all generations is there as it was written: a byte of it that rots voids
// every one of them, and only a writer has the part in memory to mend it with. Its file is read once in this Store's life, and again after
// somebody's read has failed, here or by the word of a mark; between those its length is enough.
func (s *Store) frozenThere(ctx context.Context, t *tree, dir string, info replica.ShardInfo) (replica.ShardInfo, bool) {
	rec, err := t.readSide(dir, info)
	full := path.Join(dir, info.File)
	if err != nil || !t.hasSize(full, rec.Bytes) {
		return info, false
	}
	info.Bytes, info.Digest = rec.Bytes, rec.Digest
	blamed := t.blamed(dir, info.File)
	s.mu.Lock()
	known := s.frozen[full]
	s.mu.Unlock()
	if known && !blamed {
		return info, true
	}
	if got, err := t.digest(ctx, full); err != nil || got != rec.Digest {
		return info, false
	}
	s.isGood(full, true)
	if blamed {
		if err := t.unmark(dir, info.File); err != nil {
			s.note(err)
		}
	}
	return info, true
}

// isGood remembers of a frozen part's file whether it was read whole and is good.
func (s *Store) isGood(full string, good bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if good {
		s.frozen[full] = true
	} else {
		delete(s.frozen, full)
	}
}

// digest reads a file whole, from the disk.
func (t *tree) digest(ctx context.Context, name string) (d replica.Digest, err error) {
	f, st, err := t.openFile(name, workPatience)
	if err != nil {
		return d, err
	}
	defer f.Close()
	f.forget()
	h := xxh3.New()
	buf := make([]byte, min(st.Size(), digestStep))
	for at := int64(0); at < st.Size(); {
		if err := ctx.Err(); err != nil {
			return d, context.Cause(ctx)
		}
		b := buf[:min(st.Size()-at, digestStep)]
		if _, err := f.ReadAt(b, at); err != nil {
			return d, err
		}
		_, _ = h.Write(b) // it returns no error
		at += int64(len(b))
	}
	return h.Sum128().Bytes(), nil
}

// digestStep is how many bytes of a file one call reads.
const digestStep = 4 << 20

// metadata names the part; nothing in it depends on who produced it, so that equal parts make equal files.
func metadata(m *replica.Manifest) map[string]string {
	return map[string]string{
		"format":     "replicad",
		"version":    fmt.Sprint(recordVersion),
		"job":        m.Job.String(),
		"part":       m.Part.String(),
		"generation": m.Generation.String(),
		"root":       m.Root.String(),
	}
}

// writeTensors writes header and data chunk by chunk. Each chunk is checked on the way: what could not be read back as the
// manifest says is not written at all.
func writeTensors(ctx context.Context, w io.Writer, head []byte, m *replica.Manifest, l safetensors.Layout, read func(int, []byte) ([]byte, error)) error {
	if _, err := w.Write(head); err != nil {
		return err
	}
	buf := make([]byte, min(uint64(m.ChunkBytes), m.Bytes))
	for i := range m.Chunks {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		off, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
		b, err := read(i, buf[:n])
		if err != nil {
			return fmt.Errorf("read chunk %d: %w", i, err)
		}
		if got := hash(b); uint64(len(b)) != n || got != m.Chunks[i] {
			return fmt.Errorf("read chunk %d: %w: %d bytes with digest %v, want %d with %v", i, ErrCorrupt, len(b), got, n, m.Chunks[i])
		}
		err = l.Spans(off, n, func(from, to, _ uint64, gap bool) error {
			if gap {
				return checkGap(off+from, b[from:to])
			}
			_, err := w.Write(b[from:to])
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// checkGap refuses bytes between regions that are not zero: the shard leaves them out.
func checkGap(at uint64, b []byte) error {
	for i, c := range b {
		if c != 0 {
			return fmt.Errorf("byte %d lies between regions and is %#02x, not zero: the part can't be written as tensors", at+uint64(i), c)
		}
	}
	return nil
}

// readSide reads and checks the manifest beside a shard: it must hash to the root that info names.
func (t *tree) readSide(dir string, info replica.ShardInfo) (*sideRecord, error) {
	name := path.Join(dir, strings.TrimSuffix(info.File, shardExt)+sideExt)
	b, err := t.readFile(name, maxManifest)
	if err != nil {
		return nil, err
	}
	rec, err := parseSide(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if m := &rec.Manifest; m.Root != info.Root || m.Part != info.Part {
		return nil, fmt.Errorf("%s: %w: it is of %v, root %v; want %v, %v", name, ErrCorrupt, m.Part, m.Root, info.Part, info.Root)
	}
	return rec, nil
}

// parseSide reads a manifest, which must hash to its own root.
func parseSide(frame []byte) (*sideRecord, error) {
	var rec sideRecord
	if err := wire.Decode(frame, kindManifest, &rec); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	m := &rec.Manifest
	if rec.Version != recordVersion {
		return nil, fmt.Errorf("version %d, this program reads %d", rec.Version, recordVersion)
	}
	if err := m.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if got := hash(m.RootInput()); got != m.Root {
		return nil, fmt.Errorf("%w: it says root %v and hashes to %v", ErrCorrupt, m.Root, got)
	}
	return &rec, nil
}

func (t *tree) hasSize(name string, n uint64) bool {
	st, err := t.stat(name)
	return err == nil && st.Mode().IsRegular() && uint64(st.Size()) == n
}

// removeTemps removes leftovers of writers that died: temporary files in dir whose name goes on with base.
func (t *tree) removeTemps(dir, base string) {
	entries, err := t.readDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix+base) {
			_ = t.disk.remove(path.Join(dir, e.Name())) // a leftover costs space, not correctness
		}
	}
}

func hash(b []byte) replica.Digest { return safetensors.Hash(b) }
