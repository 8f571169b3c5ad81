package tier

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/kept"
	"github.com/replicad/replicad/replica"
)

// ErrFenced marks what this fleet may not write any more: another one has claimed the epoch, or a later one.
var ErrFenced = catalog.ErrFenced

// Attempt is a durable write of a job, as the log has it.
type Attempt struct {
	Name       string // of the job
	Job        replica.JobID
	Owner      uint32
	Began      uint64 // as replica.Job's
	From       *replica.Origin
	Cluster    replica.ClusterID
	Fleet      string
	Epoch      replica.Epoch // the newest that the job has opened
	Generation replica.Generation
	Number     uint64
}

// AttemptOf is the durable write of a job that is under way.
func AttemptOf(job *replica.Job, cluster replica.ClusterID) Attempt {
	return Attempt{Name: job.Name, Job: job.ID, Owner: job.Owner, Began: job.Began, From: job.From, Cluster: cluster, Fleet: job.Fleet, Epoch: job.Lineage.Last().Epoch,
		Generation: job.Writer.Generation, Number: job.Writer.Number}
}

// Part is a part in memory: its manifest, all regions of its rank, and its chunks.
type Part = catalog.Part

// Said is what a commit says beside its files.
type Said = format.Commit

// Metric is a number that a commit says.
type Metric = format.Metric

// unnamed stands for when a run began whose record does not say it.
var unnamed = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (a Attempt) began() int64 {
	if a.Began == 0 {
		return unnamed.UnixMilli()
	}
	return int64(a.Began)
}

// from is what run.json says that the run began from.
func (a Attempt) from() string {
	if a.From == nil {
		return ""
	}
	return a.From.String()
}

func (a Attempt) fleet() catalog.Fleet {
	f := catalog.Fleet{Cluster: a.Cluster, Name: a.Fleet, Epoch: a.Epoch}
	if f.Name == "" { // a record of before has none
		f.Name = "fleet-" + a.Cluster.String()
	}
	return f
}

// attempt claims the epoch of a write for its fleet, and gives it its place. What is claimed stays so: of a later claim Commit hears.
func (t *Tier) attempt(ctx context.Context, a Attempt) (catalog.Attempt, error) {
	is := owned{a.Job, a.Epoch}
	t.mu.Lock()
	r, ok := t.owned[is]
	t.mu.Unlock()
	if !ok {
		err := t.proveToWrite(ctx)
		if err != nil {
			return catalog.Attempt{}, err
		}
		if r, err = t.cat.Begin(ctx, format.Run{Job: a.Name, ID: a.Job, Owner: a.Owner, Began: a.began(), From: a.from()}); err != nil {
			return catalog.Attempt{}, err
		}
		if err = t.cat.Claim(ctx, r, a.fleet()); err != nil {
			return catalog.Attempt{}, err
		}
		t.mu.Lock()
		t.owned[is] = r
		t.mu.Unlock()
	}
	return catalog.Attempt{Run: r, Generation: a.Generation, Write: a.Number}, nil
}

// Write writes one object: the replicated part of a group, with its frozen part where it has one, or private parts. Writing the same again is no
// error.
func (t *Tier) Write(ctx context.Context, a Attempt, object string, frozen *Part, parts ...Part) (s replica.Stored, err error) {
	at, err := t.attempt(ctx, a)
	if err != nil {
		return s, err
	}
	var along *replica.Stored
	if frozen != nil {
		if frozen.Manifest.Part.Kind != replica.FrozenPart || frozen.Manifest.Root != parts[0].Manifest.FrozenRoot {
			return s, fmt.Errorf("write %s of generation %v: it wants frozen root %v, given is %v %v", object, a.Generation, parts[0].Manifest.FrozenRoot, frozen.Manifest.Part, frozen.Manifest.Root)
		}
		w, err := t.cat.WriteFrozen(ctx, at.Run, *frozen)
		if err != nil {
			return s, err
		}
		f := stored(w)
		along = &f
	}
	w, err := t.cat.WriteObject(ctx, at, object, parts...)
	if err != nil {
		return s, err
	}
	s = stored(w)
	s.Frozen = along
	return s, nil
}

// KeepFiles has the run of a write carry files from now on, unless it carries some already. there is the SHA-256 of the tar that it carries then.
func (t *Tier) KeepFiles(ctx context.Context, a Attempt, tar *kept.Tar) (there string, err error) {
	at, err := t.attempt(ctx, a)
	if err != nil {
		return "", err
	}
	select {
	case t.keeping <- struct{}{}:
		defer func() { <-t.keeping }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	is, err := t.cat.KeepFiles(ctx, at.Run, tar.Read)
	return is.SHA256, err
}

// ObjectOf names the object that a node writes a part in: private parts of its ranks lie in one.
func ObjectOf(node replica.NodeName, p replica.Part) string {
	if p.Kind == replica.PrivatePart {
		return catalog.NodeObject(node)
	}
	return fmt.Sprintf("group-%d", p.Index)
}

func stored(w format.Written) replica.Stored {
	sum, _ := hex.DecodeString(w.File.SHA256) // it was written here
	return replica.Stored{Key: w.File.Key, Twin: w.File.Twin, Bytes: w.File.Bytes, Header: w.File.Header, SHA256: sum, Sealed: w.File.Sealed}
}

func written(s replica.Stored) format.Written {
	return format.Written{File: format.File{Key: s.Key, Twin: s.Twin, Bytes: s.Bytes, Header: s.Header, SHA256: hex.EncodeToString(s.SHA256), Sealed: s.Sealed}}
}

// Commit makes a generation exist, from objects that are all written. roots are those that the job has committed. It is the last step; the same
// again is no error.
func (t *Tier) Commit(ctx context.Context, a Attempt, said Said, roots map[replica.Part]replica.Digest, objects []replica.Stored) error {
	return t.CommitThen(ctx, a, said, roots, objects, func() {})
}

// CommitThen is Commit that calls there once the generation exists, before it writes hints.
func (t *Tier) CommitThen(ctx context.Context, a Attempt, said Said, roots map[replica.Part]replica.Digest, objects []replica.Stored, there func()) error {
	at, err := t.attempt(ctx, a)
	if err != nil {
		return err
	}
	var files []format.Written
	seen := map[string]bool{}
	for _, o := range objects {
		if o.Frozen != nil && !seen[o.Frozen.Key] { // two nodes may write parts of one group
			seen[o.Frozen.Key] = true
			files = append(files, written(*o.Frozen))
		}
		if !seen[o.Key] {
			seen[o.Key] = true
			files = append(files, written(o))
		}
	}
	_, err = t.cat.CommitThen(ctx, at, a.fleet(), said, roots, files, there)
	if errors.Is(err, catalog.ErrNone) { // what was claimed lies in a directory that is another one now
		t.mu.Lock()
		delete(t.owned, owned{a.Job, a.Epoch})
		t.mu.Unlock()
		if at, err = t.attempt(ctx, a); err == nil {
			_, err = t.cat.CommitThen(ctx, at, a.fleet(), said, roots, files, there)
		}
	}
	return err
}

// Discard removes what this node has left of a write that was given up. Its caller knows that none of it is on its way.
func (t *Tier) Discard(ctx context.Context, a Attempt, names []string) error {
	at, err := t.attempt(ctx, a)
	if err != nil {
		return err
	}
	return t.cat.Discard(ctx, at, names)
}

// Resumed is what a job that goes on from a generation begins with.
type Resumed struct {
	Epoch  replica.Epoch // the highest that it may have had
	Writes uint64        // the highest number that a write of the run has had
	Began  uint64        // as replica.Job's
	// Over is the claim of a fleet that this one takes the run from, which has committed nothing since; empty: there is none. Several are of one epoch.
	Over []Claim
}

// Claim says which fleet owns an epoch of a run.
type Claim = format.Claim

// Resume takes a run, before its job opens from a generation that Find found, for a fleet: the epoch behind was, or a later one. Of fleets that do so
// at once one wins; the others get ErrFenced, with its name. After any other error nothing is claimed, and the job may be opened all the same: its
// first durable write claims then.
func (t *Tier) Resume(ctx context.Context, f Found, cluster replica.ClusterID, fleet string, was replica.Epoch) (Resumed, error) {
	is := Resumed{Epoch: was, Writes: f.Write + unknownWrites, Began: f.Began()}
	if err := t.Prove(ctx); err != nil {
		return is, err
	}
	e, over, err := t.cat.Resume(ctx, f.Run, Attempt{Cluster: cluster, Fleet: fleet}.fleet(), was)
	if err != nil {
		return is, err
	}
	is.Epoch, is.Over = e-1, over
	last, err := t.cat.LastWrite(ctx, f.Run)
	if err == nil {
		is.Writes = last
	}
	return is, err
}

// unknownWrites is how many writes a run may have had behind the one that it goes on from, where nobody could look.
const unknownWrites = 1 << 16
