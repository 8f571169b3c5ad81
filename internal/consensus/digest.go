package consensus

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
)

// Voters apply the same entries and must come to the same state. Each keeps the state as it was after the first command of every
// digestEvery entries; the leader encodes its own, beside everything else, and has the digest replicated; the others compare it with
// theirs when the entry reaches them. Of two that differ nobody can tell which is wrong, so both are named, and nothing is stopped.
const digestEvery = 1024

// mark is the state after an entry, and its digest once somebody wants it.
type mark struct {
	index  uint64
	digest func() (uint64, error)
}

func newMark(v lock.View) *mark {
	return &mark{v.Index, sync.OnceValues(func() (uint64, error) {
		b, err := encodeSnapshot(v)
		if err != nil {
			return 0, err
		}
		return binary.LittleEndian.Uint64(b[len(b)-8:]), nil // the frame's own checksum
	})}
}

// digest is the body of a KindDigest frame.
type digest struct {
	Index uint64 `cbor:"1,keyasint"`
	Sum   uint64 `cbor:"2,keyasint"`
}

// proposeDigest has the digest of a mark replicated; it changes nothing, so nobody waits for it.
func (n *Node) proposeDigest(m *mark) {
	if _, _, _, isSelf := n.Leadership(); !isSelf {
		return
	}
	_ = n.upkeep.call(n.ctx, func() { // refused only when the node closes
		sum, err := m.digest()
		if err != nil {
			n.cfg.Logger.Error("the state has no digest", "index", m.index, "error", err)
			return
		}
		if b, err := wire.Append(nil, wire.KindDigest, digest{m.index, sum}); err == nil {
			_ = n.raft.Apply(b, n.cfg.Election).Error() // lost with its leader: the next mark has one again
		}
	})
}

// compare holds this voter's state against the leader's. One that was restored since, or is further already, has nothing to compare.
func (f *fsm) compare(d digest) {
	m := f.mark.Load()
	if m == nil || m.index != d.Index {
		return
	}
	if sum, err := m.digest(); err != nil || sum != d.Sum {
		f.differs.Store(d.Index)
		f.log(fmt.Sprintf("this voter's state is not the leader's: digest %016x, the leader's %016x: if other voters say so too the leader's state is wrong, else this one's; stop the daemon of that voter, and have it replaced under a new name (replicad voter remove, voter add)", sum, d.Sum), "index", d.Index, "error", err)
		f.changed()
	}
}
