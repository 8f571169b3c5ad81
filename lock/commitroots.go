package lock

import (
	"encoding/binary"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/replicad/replicad/replica"
)

// A commit a step is most of what the log holds, and from one to the next hardly any part has other holders: an entry that names them
// all is four times as long, and longer with the names of nodes.

const digestBytes = len(replica.Digest{})

// ShortCommit is the command by which a commit is proposed on the job as it is recorded: CommitRoots, which leaves out what the record
// says, or the commit itself where the record has other parts.
func ShortCommit(j *replica.Job, c replica.Commit) replica.Command {
	if len(j.Parts) == 0 || len(c.Parts) != len(j.Parts) {
		return c
	}
	byPart := make(map[replica.Part]replica.PartRoot, len(c.Parts))
	for _, p := range c.Parts {
		byPart[p.Part] = p
	}
	short := replica.CommitRoots{Job: c.Job, Position: c.Position, Generation: c.Generation, On: holdersDigest(j), Write: c.Write, Turns: c.Turns, Roots: make([]byte, 0, len(j.Parts)*digestBytes)}
	for _, recorded := range j.Parts {
		p, ok := byPart[recorded.Part]
		if !ok {
			return c
		}
		short.Roots = append(short.Roots, p.Root[:]...)
		holders := slices.Clone(p.Holders)
		slices.SortFunc(holders, func(a, b replica.Holder) int { return strings.Compare(string(a.Node), string(b.Node)) })
		if !slices.Equal(holders, recorded.Holders) {
			short.Moved = append(short.Moved, replica.PartHolders{Part: p.Part, Holders: holders})
		}
	}
	return short
}

// commitRoots applies the commit that was made short on this very record.
func commitRoots(j *replica.Job, nodes map[replica.NodeName]replica.Node, c replica.CommitRoots) (bool, error) {
	if err := running(j); err != nil {
		return false, err
	}
	full := replica.Commit{Job: c.Job, Position: c.Position, Generation: c.Generation, Write: c.Write, Turns: c.Turns}
	if c.Position == j.Position && c.Generation == j.Committed {
		return false, nil // a repetition: the record has changed with it
	}
	switch {
	case len(c.Roots) != len(j.Parts)*digestBytes:
		return false, refuse(Incomplete, "commit of %v: %d bytes of roots for %d recorded parts", c.Generation, len(c.Roots), len(j.Parts))
	case c.On != holdersDigest(j):
		return false, refuse(Stale, "commit of %v: other holders are recorded than those it was made on", c.Generation)
	}
	moved := make(map[replica.Part][]replica.Holder, len(c.Moved))
	for _, m := range c.Moved {
		moved[m.Part] = m.Holders
	}
	full.Parts = make([]replica.PartRoot, len(j.Parts))
	for i, p := range j.Parts {
		full.Parts[i] = replica.PartRoot{Part: p.Part, Root: replica.Digest(c.Roots[i*digestBytes : (i+1)*digestBytes]), Holders: p.Holders}
		if holders, ok := moved[p.Part]; ok {
			full.Parts[i].Holders = holders
			delete(moved, p.Part)
		}
	}
	if len(moved) > 0 {
		return false, refuse(Invalid, "commit of %v: holders of parts that job %s does not have, or has twice", c.Generation, j.Name)
	}
	return commit(j, nodes, full)
}

// holdersDigest tells records apart that name other parts or other holders.
func holdersDigest(j *replica.Job) uint64 {
	h := fnv.New64a()
	var b []byte
	for _, p := range j.Parts {
		b = append(b[:0], byte(p.Part.Kind))
		b = binary.LittleEndian.AppendUint32(b, p.Part.Index)
		for _, o := range p.Holders {
			b = binary.LittleEndian.AppendUint64(append(append(b, o.Node...), 0), uint64(o.Incarnation))
		}
		h.Write(append(b, 0xff))
	}
	return h.Sum64()
}
