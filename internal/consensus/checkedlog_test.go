package consensus

import (
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"github.com/replicad/replicad/internal/bubble"
)

// onDisk changes a stopped voter's log behind the checksums.
func onDisk(t *testing.T, dir string, change func(*raftboltdb.BoltStore) error) {
	t.Helper()
	s, err := raftboltdb.New(raftboltdb.Options{Path: filepath.Join(dir, logFile), BoltOptions: &bbolt.Options{NoFreelistSync: true}})
	if err != nil {
		t.Fatal(err)
	}
	if err := change(s); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// entry changes an entry of a stopped voter's log.
func entry(t *testing.T, dir string, index uint64, change func(*raft.Log)) {
	t.Helper()
	onDisk(t, dir, func(s *raftboltdb.BoltStore) error {
		var e raft.Log
		if err := s.GetLog(index, &e); err != nil {
			return err
		}
		change(&e)
		return s.StoreLog(&e)
	})
}

func flipTerm(e *raft.Log) { e.Term ^= 2 }

// TestFlippedFields: a field of the log or of the stable store that has changed on disk is found before anything is built on it, by
// the file, the entry and the remedy.
// Neither bbolt's pages nor raft's entries have a checksum. A flipped type un-ended a job; with a flipped term a voter led twice in
// one term.
func TestFlippedFields(t *testing.T) {
	for name, c := range map[string]struct {
		flip  func(t *testing.T, dir string, index uint64)
		texts []string
	}{
		"type": {func(t *testing.T, dir string, i uint64) {
			entry(t, dir, i, func(e *raft.Log) { e.Type = raft.LogNoop })
		}, []string{"entry ", "checksum"}},
		"term": {func(t *testing.T, dir string, i uint64) { entry(t, dir, i, flipTerm) }, []string{"entry ", "checksum"}},
		"data": {func(t *testing.T, dir string, i uint64) { entry(t, dir, i, func(e *raft.Log) { e.Data[20] ^= 1 }) }, []string{"entry ", "checksum"}},
		"index": {func(t *testing.T, dir string, i uint64) {
			onDisk(t, dir, func(s *raftboltdb.BoltStore) error {
				var e raft.Log
				if err := s.GetLog(i, &e); err != nil {
					return err
				}
				e.Index += 8 // a flipped key: raft believes that the log is longer
				return s.StoreLog(&e)
			})
		}, []string{"entry ", "checksum"}},
		"checksum":       {func(t *testing.T, dir string, i uint64) { entry(t, dir, i, func(e *raft.Log) { e.Extensions = nil }) }, []string{"no checksum"}},
		"current term":   {value("CurrentTerm", func(b []byte) { b[7] ^= 2 }), []string{"CurrentTerm"}},
		"term of vote":   {value("LastVoteTerm", func(b []byte) { b[7] ^= 2 }), []string{"LastVoteTerm"}},
		"vote":           {value("LastVoteCand", func(b []byte) { b[0] ^= 1 }), []string{"LastVoteCand"}},
		"first checked":  {value(string(checkedKey), func(b []byte) { b[7] ^= 64 }), []string{"checksums from"}},
		"value cut":      {func(t *testing.T, dir string, _ uint64) { put(t, dir, "CurrentTerm", []byte{1}) }, []string{"CurrentTerm"}},
		"no first check": {func(t *testing.T, dir string, _ uint64) { put(t, dir, string(checkedKey), nil) }, []string{"checksums", "gone"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newTrio(t)
			n.names = n.names[:1]
			n.start("n1", true)
			index := n.propose("w1")
			n.stop("n1")
			cfg := n.config("n1")
			c.flip(t, cfg.Dir, index)
			cfg.Layer = n.layer("n1")
			node, err := Start(cfg)
			if err == nil {
				node.Close()
			}
			wantError(t, err, nil, append(c.texts, filepath.Join(cfg.Dir, logFile), "voter remove", "--join")...)
		})
	}
}

func value(key string, flip func([]byte)) func(*testing.T, string, uint64) {
	return func(t *testing.T, dir string, _ uint64) {
		onDisk(t, dir, func(s *raftboltdb.BoltStore) error {
			b, err := s.Get([]byte(key))
			if err != nil {
				return err
			}
			flip(b)
			return s.Set([]byte(key), b)
		})
	}
}

// put writes a value of the stable store; nil takes it out.
func put(t *testing.T, dir, key string, b []byte) {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(dir, logFile), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Update(func(tx *bbolt.Tx) error {
		if b == nil {
			return tx.Bucket([]byte("conf")).Delete([]byte(key))
		}
		return tx.Bucket([]byte("conf")).Put([]byte(key), b)
	}); err != nil {
		t.Error(err)
	}
}

// older makes of a stopped voter's log what a program without checksums would have written.
func older(t *testing.T, dir string) (last uint64) {
	t.Helper()
	onDisk(t, dir, func(s *raftboltdb.BoltStore) error {
		for _, key := range stableKeys {
			b, err := s.Get(key)
			if err != nil {
				return err
			}
			if err := s.Set(key, b[:len(b)-sumBytes]); err != nil {
				return err
			}
		}
		first, _ := s.FirstIndex()
		last, _ = s.LastIndex()
		for i := first; i <= last; i++ {
			var e raft.Log
			if err := s.GetLog(i, &e); err != nil {
				return err
			}
			e.Extensions = nil
			if err := s.StoreLog(&e); err != nil {
				return err
			}
		}
		return nil
	})
	put(t, dir, string(checkedKey), nil)
	return last
}

// TestOlderLogIsRead: entries of a program without checksums are taken as they are, and only those.
func TestOlderLogIsRead(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t)
		c.names = c.names[:1]
		c.start("n1", true)
		c.propose("w1")
		c.stop("n1")
		dir := c.config("n1").Dir
		last := older(t, dir)
		put(t, dir, "LastVoteTerm", append(binaryOf(2), sumOf([]byte("LastVoteTerm"), binaryOf(2))...)) // an adoption that was cut short
		c.start("n1", false)
		c.awaitNode("w1")
		index := c.propose("w2")
		c.stop("n1")
		entry(t, dir, last, func(e *raft.Log) {
			if len(e.Extensions) != 0 {
				t.Errorf("entry %d, the last of the older program, has been given a checksum", last)
			}
		})
		c.start("n1", false)
		c.awaitNode("w2")
		c.stop("n1")
		entry(t, dir, index, func(e *raft.Log) { e.Extensions = nil })
		cfg := c.config("n1")
		cfg.Layer = c.layer("n1")
		_, err := Start(cfg)
		wantError(t, err, ErrCorrupt, "no checksum")
	})
}

func binaryOf(n byte) []byte { return []byte{0, 0, 0, 0, 0, 0, 0, n} }

// TestDamageWhileItRuns: a voter that finds its log damaged when it is asked for an old entry has no part in the cluster any more.
func TestDamageWhileItRuns(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t)
		c.startAll(true)
		index := c.propose("w1")
		hurt := c.leader("")
		db := hurt.store.BoltStore
		var e raft.Log
		if err := db.GetLog(index, &e); err != nil {
			t.Fatal(err)
		}
		e.Type = raft.LogNoop
		if err := db.StoreLog(&e); err != nil {
			t.Fatal(err)
		}
		wantError(t, hurt.store.GetLog(index, &e), ErrCorrupt, "entry ", "checksum") // as for a follower that needs it
		c.until("the voter to halt", func() bool { return hurt.Err() != nil })
		wantError(t, hurt.Err(), ErrHalted, logFile, "voter remove")
		delete(c.nodes, hurt.cfg.ID)
		c.leader(hurt.cfg.ID)
		c.propose("w2")
		if err := hurt.Close(); err != nil {
			t.Error(err)
		}
	})
}

// FuzzUnseal: what is taken for checked is what was sealed.
func FuzzUnseal(f *testing.F) {
	f.Add([]byte("CurrentTerm"), append(binaryOf(3), sumOf([]byte("CurrentTerm"), binaryOf(3))...))
	f.Add([]byte("LastVoteCand"), []byte("n1"))
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, key, sealed []byte) {
		if v, ok := unseal(key, sealed); ok && string(append(append([]byte(nil), v...), sumOf(key, v)...)) != string(sealed) {
			t.Errorf("%x is taken for %x", sealed, v)
		}
	})
}
