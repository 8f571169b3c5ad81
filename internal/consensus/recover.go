package consensus

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// eraGap is how many epochs a recovered log leaves out in each job: those that the lost voters may have minted since. A fault or a start
// mints one; a number that is given twice would name two histories.
const eraGap = 1000

// Kept is what a voter's directory holds, read without its daemon.
type Kept struct {
	Term, Index uint64 // of the last entry, which need not have been committed
	Voters      []Voter
	State       lock.View // with all entries applied
}

// Read reads the directory of a voter that does not run.
func Read(cfg Config) (Kept, error) {
	var k Kept
	err := offline(cfg, func(log *checkedLog, snaps raft.SnapshotStore) (err error) {
		k, err = read(cfg, log, snaps)
		return err
	})
	return k, err
}

// Recover makes a voter that does not run the only one of its cluster, in a new era, with all that its log holds: for the day on which a
// majority of the voters is lost for good. It returns what was kept.
func Recover(cfg Config) (Kept, error) {
	var k Kept
	err := offline(cfg, func(log *checkedLog, snaps raft.SnapshotStore) (err error) {
		if k, err = read(cfg, log, snaps); err != nil {
			return err
		}
		era := replica.NewEra{Era: k.State.Era + 1, Epochs: map[replica.JobID]replica.Epoch{}}
		for id, j := range k.State.Jobs {
			if j.Phase != replica.Ended {
				era.Epochs[id] = min(j.Epoch+eraGap, replica.MaxEpoch)
			}
		}
		if out := lock.FromView(k.State).Apply(k.Index+1, era); out.Err != nil {
			return fmt.Errorf("new era: %w", out.Err)
		}
		data, err := wire.EncodeCommand(era)
		if err != nil {
			return err
		}
		// The era is the last entry of the log before the voters change: cut short here, another try begins one more.
		if err := log.StoreLog(&raft.Log{Index: k.Index + 1, Term: k.Term, Type: raft.LogCommand, Data: data}); err != nil {
			return err
		}
		if err := log.SetUint64(eraKey, uint64(k.State.Era+1)); err != nil { // what this voter promised before is of another history
			return err
		}
		if to, err := log.loadBound(); err != nil {
			return err
		} else if to.Term > 0 && !to.Done { // nobody else is there to take it in
			to.Done = true
			if err := log.Set(boundKey, to.marshal()); err != nil {
				return err
			}
		}
		alone := raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: raft.ServerID(cfg.ID), Address: raft.ServerAddress(cfg.Addr)}}}
		_, inert := raft.NewInmemTransport(raft.ServerAddress(cfg.Addr))
		return raft.RecoverCluster(cfg.raft(nil), offlineFSM(cfg), log, log, snaps, inert, alone)
	})
	return k, err
}

// offline opens the log of a voter that does not run.
func offline(cfg Config, fn func(*checkedLog, raft.SnapshotStore) error) error {
	cfg = cfg.withDefaults()
	path := filepath.Join(cfg.Dir, logFile)
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("%w: %w: there is nothing here to recover from: recover another voter", ErrEmptyLog, err)
	}
	if err := claimDir(cfg); err != nil {
		return err
	}
	log, snaps, err := openLog(cfg)
	if err != nil {
		return err
	}
	err = guarded(path, func() error { return fn(log, snaps) })
	if err != nil {
		err = fmt.Errorf("recover %s: %w", cfg.Dir, err)
	}
	return errors.Join(err, log.Close())
}

func offlineFSM(cfg Config) *fsm {
	return newFSM(cfg.Cluster, func() {}, cfg.withDefaults().Logger.Error)
}

// read applies the newest snapshot and the whole log.
func read(cfg Config, log *checkedLog, snaps raft.SnapshotStore) (k Kept, err error) {
	f := offlineFSM(cfg)
	var members raft.Configuration
	if metas, err := snaps.List(); err != nil {
		return k, err
	} else if len(metas) > 0 { // the newest one
		_, r, err := snaps.Open(metas[0].ID)
		if err == nil {
			err = f.Restore(r)
		}
		if err != nil {
			return k, fmt.Errorf("snapshot %s: %w", metas[0].ID, err)
		}
		k.Index, k.Term, members = metas[0].Index, metas[0].Term, metas[0].Configuration
	}
	last, err := log.LastIndex()
	if err != nil {
		return k, err
	}
	for k.Index < last {
		var e raft.Log
		if err := log.GetLog(k.Index+1, &e); err != nil {
			return k, err
		}
		k.Index, k.Term = e.Index, e.Term
		switch e.Type {
		case raft.LogCommand:
			f.Apply(&e)
		case raft.LogConfiguration:
			members = raft.DecodeConfiguration(e.Data)
		default: // raft's own
		}
	}
	for _, s := range members.Servers {
		if s.Suffrage == raft.Voter {
			k.Voters = append(k.Voters, Voter{replica.NodeName(s.ID), string(s.Address)})
		}
	}
	k.State = f.state.View()
	if k.Index == 0 {
		err = ErrEmptyLog
	}
	return k, errors.Join(err, f.failure())
}
