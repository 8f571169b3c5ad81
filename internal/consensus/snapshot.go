package consensus

import (
	"errors"
	"fmt"

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
	for id, j := range v.Jobs {
		if j == nil || j.ID != id {
			errs = append(errs, fmt.Errorf("job %v is recorded wrongly", id))
			continue
		}
		if err := checkJob(v, j); err != nil {
			errs = append(errs, fmt.Errorf("job %q (%v): %w", j.Name, id, err))
		}
	}
	return errors.Join(errs...)
}

func checkJob(v lock.View, j *replica.Job) error {
	if j.Phase == replica.Ended && j.Layout.World == 0 && len(j.Ranks) == 0 && len(j.GroupGeometry) == 0 {
		// what is left of a job that has ended
	} else if err := j.Layout.Check(); err != nil {
		return err
	}
	switch {
	case replica.CheckName(j.Name) != nil:
		return errors.New("bad name")
	case j.LastIndex > v.Index:
		return fmt.Errorf("changed by entry %d, later than the snapshot", j.LastIndex)
	case len(j.Ranks) != len(j.Layout.Groups):
		return fmt.Errorf("%d ranks recorded of %d", len(j.Ranks), j.Layout.World)
	case len(j.GroupGeometry) != j.Layout.NumGroups():
		return fmt.Errorf("geometry of %d groups, the layout has %d", len(j.GroupGeometry), j.Layout.NumGroups())
	case j.Naming != nil && len(j.Naming) != len(j.Ranks):
		return fmt.Errorf("groups named by %d ranks of %d", len(j.Naming), len(j.Ranks))
	case j.Phase < replica.Opening || j.Phase > replica.Ended:
		return fmt.Errorf("phase %d", j.Phase)
	case j.ClosedEpoch > j.Epoch || j.Epoch > replica.MaxEpoch:
		return fmt.Errorf("epoch %d, closed %d", j.Epoch, j.ClosedEpoch)
	}
	return nil
}
