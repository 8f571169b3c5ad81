package membership

import (
	"cmp"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/memberlist"

	"github.com/replicad/replicad/replica"
)

// Kind is what an Event says.
type Kind uint8

// The kinds.
const (
	Alive   Kind = 1 // joined, came back, or is there in another incarnation
	Suspect Kind = 2 // memberlist declared it dead: evidence only
	Left    Kind = 3 // said that it goes down
)

func (k Kind) String() string {
	switch k {
	case Alive:
		return "alive"
	case Suspect:
		return "suspect"
	case Left:
		return "left"
	}
	return "invalid"
}

// Event is a change of one member.
type Event struct {
	Node        replica.NodeName
	Kind        Kind
	Incarnation replica.NodeIncarnation
}

// Member is one node as gossip knows it.
type Member struct {
	Name        replica.NodeName
	Incarnation replica.NodeIncarnation
	QUICAddr    string
	Addr        string // host:port of its gossip, UDP and TCP
	Alive       bool
	Keys        string // names of the keys that it has, the primary one first, as they were given to it; empty where it does not say
}

const (
	maxEvents  = 1024
	maxMembers = 16384 // names remembered: a key holder could make up any number
)

// book keeps what memberlist says. Its methods are memberlist's delegates, called with memberlist's lock held: they must not
// call back and must not block.
type book struct {
	self    replica.NodeName
	log     *log.Logger
	dropped atomic.Uint64
	own     atomic.Pointer[[]byte] // this node's meta, encoded

	mu      sync.Mutex // guards members, hosts, said, and the events' order
	said    meta       // what own is the encoding of
	members map[replica.NodeName]entry
	hosts   map[netip.Addr]int // how many members are there
	events  chan Event
}

type entry struct {
	Member
	leaving bool
}

func newBook(self replica.NodeName, l *log.Logger) *book {
	return &book{self: self, log: l, members: make(map[replica.NodeName]entry), hosts: make(map[netip.Addr]int), events: make(chan Event, maxEvents)}
}

// NotifyAlive implements memberlist.AliveDelegate: a node that does not say who it is in our form is no member. One that
// returns under its name in another incarnation is taken at its word: identity is the certificate's affair.
func (b *book) NotifyAlive(n *memberlist.Node) error {
	if err := replica.CheckName(n.Name); err != nil {
		return err
	}
	if _, err := parseMeta(n.Meta); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.members[replica.NodeName(n.Name)]; !known && len(b.members) >= maxMembers && !b.forgetLocked() {
		return fmt.Errorf("%d members are known already, the limit", maxMembers)
	}
	return nil
}

// forgetLocked makes room by forgetting one member that is not there.
func (b *book) forgetLocked() bool {
	for name, e := range b.members {
		if !e.Alive {
			delete(b.members, name)
			b.movedLocked(e.Addr, "")
			return true
		}
	}
	return false
}

// NotifyConflict implements memberlist.ConflictDelegate.
func (b *book) NotifyConflict(old, other *memberlist.Node) {
	b.log.Printf("[ERR] memberlist: two nodes call themselves %q, at %s and at %s: the second is ignored while the first lives; give each node its own name", old.Name, old.Address(), other.Address())
}

// NotifyJoin implements memberlist.EventDelegate.
func (b *book) NotifyJoin(n *memberlist.Node) { b.alive(n) }

// NotifyUpdate implements memberlist.EventDelegate.
func (b *book) NotifyUpdate(n *memberlist.Node) { b.alive(n) }

func (b *book) alive(n *memberlist.Node) {
	m, err := parseMeta(n.Meta)
	if err != nil { // NotifyAlive has refused it before
		return
	}
	e := entry{Member{replica.NodeName(n.Name), m.incarnation, m.addr, n.Address(), true, m.keys}, m.leaving}
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.members[e.Name]
	b.members[e.Name] = e
	b.movedLocked(old.Addr, e.Addr)
	old.Keys = e.Keys // a change of keys alone is no event
	if !m.leaving && (!old.Alive || old.Member != e.Member) {
		b.pushLocked(Event{e.Name, Alive, e.Incarnation})
	}
}

// movedLocked keeps count of the members at each address: is is empty for one that is forgotten, was for one that is new.
func (b *book) movedLocked(was, is string) {
	if was == is {
		return
	}
	if a := hostOf(was); b.hosts[a] > 1 {
		b.hosts[a]--
	} else {
		delete(b.hosts, a)
	}
	if a := hostOf(is); a.IsValid() {
		b.hosts[a]++
	}
}

// has tells whether a member is at an address, or was when it was seen last.
func (b *book) has(a netip.Addr) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hosts[a] > 0
}

// hostOf is the address of a host:port; not valid where that is a name.
func hostOf(addr string) netip.Addr {
	p, err := netip.ParseAddrPort(addr)
	if err != nil {
		return netip.Addr{}
	}
	return p.Addr().Unmap().WithZone("")
}

// NotifyLeave implements memberlist.EventDelegate: for deaths too. memberlist does not tell the two apart here; the node's
// own last word does.
func (b *book) NotifyLeave(n *memberlist.Node) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, known := b.members[replica.NodeName(n.Name)]
	if !known {
		return
	}
	e.Alive = false
	b.members[e.Name] = e
	kind := Suspect
	if e.leaving {
		kind = Left
	}
	b.pushLocked(Event{e.Name, kind, e.Incarnation})
}

func (b *book) pushLocked(ev Event) {
	for {
		select {
		case b.events <- ev:
			return
		default:
		}
		select { // drop the oldest; the reader may have been quicker
		case <-b.events:
			b.dropped.Add(1)
		default:
		}
	}
}

func (b *book) list() []Member {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]Member, 0, len(b.members))
	for _, e := range b.members {
		list = append(list, e.Member)
	}
	slices.SortFunc(list, func(x, y Member) int { return cmp.Compare(x.Name, y.Name) })
	return list
}

// absent returns gossip addresses worth trying: seeds and former members that are not alive at that address.
func (b *book) absent(seeds []string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	there := make(map[string]bool, len(b.members))
	var list []string
	for _, e := range b.members {
		if e.Alive {
			there[e.Addr] = true
		} else if !e.leaving {
			list = append(list, e.Addr)
		}
	}
	list = append(list, seeds...)
	slices.Sort(list)
	return slices.DeleteFunc(slices.Compact(list), func(addr string) bool { return there[addr] })
}

// NodeMeta implements memberlist.Delegate.
func (b *book) NodeMeta(limit int) []byte {
	own := *b.own.Load()
	return own[:min(len(own), limit)]
}

// NotifyMsg implements memberlist.Delegate: there are no messages of ours.
func (b *book) NotifyMsg([]byte) {}

// GetBroadcasts implements memberlist.Delegate.
func (b *book) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate.
func (b *book) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate: foreign bytes that nobody reads.
func (b *book) MergeRemoteState([]byte, bool) {}

func (b *book) say(m meta) error {
	enc := appendMeta(nil, m)
	if len(enc) > maxMeta {
		return errors.New("meta is too long")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.said = m
	b.own.Store(&enc)
	return nil
}

// change says what was said, but for something.
func (b *book) change(what func(*meta)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	what(&b.said)
	enc := appendMeta(nil, b.said) // no longer than the limits of its fields
	b.own.Store(&enc)
}
