package consensus

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/replicad/replicad/internal/atomicfile"
	"github.com/replicad/replicad/replica"
)

const (
	ownerFile = "owner.json"
	logFile   = "raft.db"
)

// owner says whose directory it is. It is written before the log and never changed.
type owner struct {
	Format  int               `json:"format"`
	Cluster replica.ClusterID `json:"cluster"`
	Node    replica.NodeName  `json:"node"`
}

// claimDir checks that dir is this node's, or makes it so if it is empty.
func claimDir(cfg Config) error {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("raft directory %s: %w: make it writable by the daemon's user or configure another", cfg.Dir, err)
	}
	path := filepath.Join(cfg.Dir, ownerFile)
	b, err := readOwner(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(cfg.Dir, logFile)); err == nil {
			return fmt.Errorf("%w: %s has a %s and no %s: restore the file, or move the directory away and %s", ErrCorrupt, cfg.Dir, logFile, ownerFile, remedy(cfg.ID))
		}
		if err := writeOwner(cfg.Dir, owner{1, cfg.Cluster, cfg.ID}); err != nil {
			return fmt.Errorf("raft directory %s: %w: make it writable by the daemon's user or configure another", cfg.Dir, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("raft directory %s: %w: make it readable by the daemon's user", cfg.Dir, err)
	}
	o, err := parseOwner(b)
	if err != nil {
		return fmt.Errorf("%w: %s (%w): move the directory away and %s", ErrCorrupt, path, err, remedy(cfg.ID))
	}
	if o.Cluster != cfg.Cluster || o.Node != cfg.ID {
		return fmt.Errorf("%w: %s is of node %q of cluster %v, this is node %q of cluster %v: configure this node's own directory or move that one away",
			ErrForeignDir, cfg.Dir, o.Node, o.Cluster, cfg.ID, cfg.Cluster)
	}
	return nil
}

// maxOwner is more than writeOwner writes, in bytes.
const maxOwner = 4 << 10

func readOwner(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxOwner+1))
}

func parseOwner(b []byte) (o owner, err error) {
	if len(b) > maxOwner {
		return o, fmt.Errorf("more than %d bytes", maxOwner)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return owner{}, err
	}
	if d.More() {
		return owner{}, errors.New("more than one value")
	}
	if o.Format != 1 {
		return owner{}, fmt.Errorf("format %d, this program reads 1", o.Format)
	}
	return o, nil
}

// writeOwner leaves the whole file or none, whenever the power fails.
func writeOwner(dir string, o owner) error {
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, ownerFile), append(b, '\n'))
}

// openLog opens the log, which is the stable store too, and the snapshots.
func openLog(cfg Config) (log *checkedLog, snaps *raft.FileSnapshotStore, err error) {
	path := filepath.Join(cfg.Dir, logFile)
	err = guarded(path, func() error {
		if err := checkLogFile(path); err != nil {
			return err
		}
		store, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: &bbolt.Options{Timeout: lockTimeout, NoFreelistSync: true}})
		if err != nil {
			return err
		}
		if log, err = checkLog(store, path); err != nil {
			return errors.Join(err, store.Close())
		}
		return nil
	})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, nil, fmt.Errorf("raft log %s is in use by another process: stop that daemon first", path)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, bolterrors.ErrDatabaseReadOnly):
		return nil, nil, fmt.Errorf("raft log %s: %w: make it writable by the daemon's user", path, err)
	case errors.Is(err, ErrCorrupt):
		return nil, nil, err
	case err != nil:
		return nil, nil, damaged(path, err)
	}
	snaps, err = raft.NewFileSnapshotStoreWithLogger(cfg.Dir, retainSnapshots, cfg.Logger)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("raft snapshots in %s: %w: make it writable by the daemon's user", cfg.Dir, err), log.Close())
	}
	return log, snaps, nil
}

func damaged(path string, cause any) error {
	return fmt.Errorf("%w: %s: %v: its log can't be trusted any more: move the directory away, have the voter removed (replicad voter remove NAME), and start the node under a new name with --join, to be added (replicad voter add)", ErrCorrupt, path, cause)
}

// remedy is what brings back a node that has lost its log: not under its old name, whose votes it can't remember.
func remedy(id replica.NodeName) string {
	return fmt.Sprintf("have the voter removed (replicad voter remove %s) and start the node under a new name with --join, to be added (replicad voter add)", id)
}

// guarded runs fn, which reads the log: bbolt and raft panic, or fault on a truncated map, where it is damaged.
func guarded(path string, fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = damaged(path, p)
		}
	}()
	return fn()
}
