package consensus

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// snapshotVersion is that of the state machine's contents; the frame around them has its own.
const snapshotVersion = 1

type snapshot struct {
	Version uint32    `cbor:"1,keyasint"`
	View    lock.View `cbor:"2,keyasint"`
}

func encodeSnapshot(v lock.View) ([]byte, error) {
	b, err := wire.Append(nil, wire.KindSnapshot, snapshot{snapshotVersion, v})
	if err != nil {
		return nil, fmt.Errorf("snapshot of entry %d: %w", v.Index, err)
	}
	return b, nil
}

// decodeSnapshot reads a snapshot of the given cluster. What it lets through, the state machine may index without looking.
func decodeSnapshot(b []byte, cluster replica.ClusterID) (lock.View, error) {
	var s snapshot
	if err := wire.Decode(b, wire.KindSnapshot, &s); err != nil {
		return lock.View{}, fmt.Errorf("snapshot: %w", err)
	}
	if s.Version != snapshotVersion {
		return lock.View{}, fmt.Errorf("snapshot of version %d: this program reads %d", s.Version, snapshotVersion)
	}
	if s.View.Cluster != cluster {
		return lock.View{}, fmt.Errorf("%w: snapshot of cluster %v, this is cluster %v", ErrForeignDir, s.View.Cluster, cluster)
	}
	if err := checkView(s.View); err != nil {
		return lock.View{}, fmt.Errorf("snapshot of entry %d: %w", s.View.Index, err)
	}
	return s.View, nil
}

func checkView(v lock.View) error {
	var errs []error
	if v.Era == 0 {
		errs = append(errs, errors.New("era 0"))
	}
	for name, n := range v.Nodes {
		if err := replica.CheckName(string(name)); err != nil || n.Name != name {
			errs = append(errs, fmt.Errorf("node %q recorded as %q", n.Name, name))
		}
	}
	if err := lock.CheckRevoked(v.Revoked); err != nil {
		errs = append(errs, err)
	}
	running := map[string]replica.JobID{}
	for id, j := range v.Jobs {
		if j == nil || j.ID != id {
			errs = append(errs, fmt.Errorf("job %v is recorded wrongly", id))
			continue
		}
		if other, twice := running[j.Name]; twice && j.Phase != replica.Ended { // which one is found by that name would be chance
			errs = append(errs, fmt.Errorf("jobs %v and %v are both called %q, and neither has ended", id, other, j.Name))
		} else if j.Phase != replica.Ended {
			running[j.Name] = id
		}
		if err := checkJob(v, j); err != nil {
			errs = append(errs, fmt.Errorf("job %q (%v): %w", j.Name, id, err))
		}
	}
	return errors.Join(errs...)
}

func checkJob(v lock.View, j *replica.Job) error {
	stripped := j.Phase == replica.Ended && j.Layout.World == 0 && len(j.Ranks) == 0 && len(j.GroupGeometry) == 0 // what is left of a job that has ended
	if !stripped {
		if err := j.Layout.Check(); err != nil {
			return err
		}
		if err := j.Options.Check(j.Layout.NumGroups()); err != nil {
			return err
		}
	}
	groups, rising := j.Layout.NumGroups(), func(a, b replica.Opened) int { return cmp.Compare(a.Epoch, b.Epoch) }
	switch {
	case replica.CheckJobName(j.Name) != nil:
		return errors.New("bad name")
	case j.LastIndex > v.Index:
		return fmt.Errorf("changed by entry %d, later than the snapshot", j.LastIndex)
	case len(j.Ranks) != len(j.Layout.Groups):
		return fmt.Errorf("%d ranks recorded of %d", len(j.Ranks), j.Layout.World)
	case len(j.GroupGeometry) != groups:
		return fmt.Errorf("geometry of %d groups, the layout has %d", len(j.GroupGeometry), groups)
	case !stripped && (len(j.Mirrors) != len(j.Ranks) || len(j.GroupMirrors) != groups):
		return fmt.Errorf("mirrors of %d ranks and %d groups, the layout has %d and %d", len(j.Mirrors), len(j.GroupMirrors), j.Layout.World, groups)
	case j.Naming != nil && (len(j.Naming) != len(j.Ranks) || groups != len(j.Ranks)):
		return fmt.Errorf("groups named by %d ranks of %d, which the layout has in %d groups", len(j.Naming), len(j.Ranks), groups)
	case j.Growth != nil && (len(j.Growth.Geometries) != groups || len(j.Growth.Recipe) > replica.MaxRecipe) || len(j.Recipe) > replica.MaxRecipe:
		return errors.New("a growth from another number of groups, or a recipe that is too large")
	case j.Phase < replica.Opening || j.Phase > replica.Ended:
		return fmt.Errorf("phase %d", j.Phase)
	case j.ClosedEpoch > j.Epoch || j.Epoch > replica.MaxEpoch:
		return fmt.Errorf("epoch %d, closed %d", j.Epoch, j.ClosedEpoch)
	case !slices.IsSortedFunc(j.Lineage, rising) || j.Phase != replica.Ended && j.Lineage.Last().Epoch > j.Epoch:
		return fmt.Errorf("lineage %v, the newest epoch is %d", j.Lineage, j.Epoch)
	}
	for _, d := range j.Disputed {
		if int(d.Group) >= groups && !stripped || len(d.Votes) < 2 {
			return fmt.Errorf("dispute of group %d with %d votes, the layout has %d groups", d.Group, len(d.Votes), groups)
		}
	}
	return checkPlan(j)
}

// checkPlan: an epoch that is planned or open has its plan, for the job's ranks, and no other has one.
func checkPlan(j *replica.Job) error {
	p := j.Plan
	switch wants := j.Phase == replica.Planned || j.Phase == replica.Open; {
	case wants != (p != nil):
		return fmt.Errorf("phase %v, and a plan: %v", j.Phase, p != nil)
	case p == nil:
		return nil
	case p.Epoch != j.Epoch || !p.Layout.Equal(j.Layout) || len(p.Ranks) != len(j.Ranks):
		return fmt.Errorf("plan for epoch %d and %d ranks, the job has epoch %d and %d ranks", p.Epoch, len(p.Ranks), j.Epoch, len(j.Ranks))
	case len(p.Mirrors) != 0 && len(p.Mirrors) != len(p.Ranks) || len(p.GroupMirrors) != 0 && len(p.GroupMirrors) != len(j.GroupGeometry):
		return fmt.Errorf("plan with mirrors of %d ranks and %d groups, the layout has %d and %d", len(p.Mirrors), len(p.GroupMirrors), len(j.Ranks), len(j.GroupGeometry))
	}
	return nil
}
