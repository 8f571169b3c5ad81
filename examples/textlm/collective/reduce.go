package collective

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"unsafe"
)

// Group is some ranks of a mesh, this one among them.
type Group struct {
	mesh    *Mesh
	members []int // ascending
	own     []float32
}

// Group makes a group of ranks; all its members must make it and use it in the same order relative to their other groups.
func (m *Mesh) Group(ranks ...int) *Group {
	g := &Group{mesh: m, members: slices.Sorted(slices.Values(ranks))}
	if !slices.Contains(g.members, m.self.Rank) {
		panic(fmt.Sprintf("collective: rank %d is not of group %v", m.self.Rank, ranks))
	}
	return g
}

// AllReduce replaces x by its sum over the group, added in the order of ranks. After an error x may hold anything.
func (g *Group) AllReduce(x []float32) error {
	for _, r := range g.members {
		if p := g.mesh.peers[r]; p != nil {
			if err := g.mesh.send(p, asBytes(x)); err != nil {
				return err
			}
		}
	}
	g.own = append(g.own[:0], x...)
	for i, r := range g.members {
		p := g.mesh.peers[r]
		if p == nil {
			add(x, g.own, i == 0)
			continue
		}
		buf, err := g.mesh.receive(p, len(x)*4)
		if err != nil {
			return err
		}
		add(x, asFloats(buf), i == 0)
		p.free <- buf // never blocks: it came from there
	}
	return nil
}

func add(x, v []float32, first bool) {
	if first {
		copy(x, v)
		return
	}
	for i := range x {
		x[i] += v[i]
	}
}

// send writes one vector. It can't wait for ever on a living peer: the peer's reader always has a buffer for the message that
// this rank may be ahead.
func (m *Mesh) send(p *peer, b []byte) error {
	if err := m.Err(); err != nil {
		return err
	}
	p.sent++
	binary.LittleEndian.PutUint32(p.head[0:], magic)
	binary.LittleEndian.PutUint32(p.head[4:], uint32(len(b)))
	binary.LittleEndian.PutUint64(p.head[8:], p.sent)
	parts := net.Buffers{p.head[:], b}
	if _, err := parts.WriteTo(p.conn); err != nil {
		m.Fail(fmt.Errorf("%w: rank %d: %w", ErrPeer, p.rank, err))
		return m.err
	}
	return nil
}

func (m *Mesh) receive(p *peer, size int) ([]byte, error) {
	var b []byte
	select {
	case b = <-p.in:
	default:
		select {
		case b = <-p.in:
		case <-m.lost:
			return nil, m.err
		}
	}
	if len(b) != size {
		m.Fail(fmt.Errorf("%w: rank %d sent %d bytes, want %d: the ranks are at different places of the program", ErrPeer, p.rank, len(b), size))
		return nil, m.err
	}
	return b, nil
}

func asBytes(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

func asFloats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}
