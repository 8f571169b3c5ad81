package membership

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// What strangers may hold of this node at the gossip port. A stream is a stranger's until its first message was decrypted with the cluster's
// key, so these bound what is read before the sender is known.
const (
	maxReading  = 8              // streams that are read at a time
	maxWaiting  = 128            // that wait for it, unread
	maxServed   = 64             // that showed the key, and are memberlist's
	maxCooling  = 256            // that showed none and are remembered for coolFor
	perSource   = 2              // of those that are read, of an address
	perMember   = maxReading - 2 // the same for an address of a member: one host must not take all
	freeBytes   = 64 << 10       // of a first message, that every stream may bring
	poolBytes   = 4<<20 - maxReading*freeBytes
	strangeMost = 1 << 20         // the longest first message from an address of no member: about 6,000 nodes
	memberMost  = poolBytes       // from a member's: as many as a book has room for
	streamLife  = streamTimeout   // from the connection until the key was shown: the other end gives up as soon
	unhurried   = streamLife / 8  // how long a stranger is left alone when others wait
	coolFor     = unhurried       // how long a stream without the key still counts for its source
	gateTick    = streamLife / 20 // how often those who wait are looked at
)

// gate decides which streams are read, and how much of each. It is pure: what happens goes in with its time, what is to be done comes out.
type gate struct {
	visits []*visit // in the order in which they came
	pool   int      // bytes of poolBytes that are granted
}

// visit is one stream.
type visit struct {
	id      uint64
	from    netip.Addr
	member  bool // from is an address of a member
	since   time.Time
	stage   stage
	wants   int // bytes of its first message; 0: not announced yet
	granted bool
}

type stage uint8

const (
	waiting stage = iota
	reading
	served
	cooling // gone, without having shown the key
)

// verb is what is to be done with a stream.
type verb uint8

const (
	toRead  verb = iota + 1 // read its header
	toGrant                 // read what it announced
	toClose
)

// act is one thing to do.
type act struct {
	id  uint64
	do  verb
	why string // of toClose
}

// Why a stream is closed before it showed the key.
const (
	whyLate    = "it waited for its turn for too long"
	whyCrowded = "too many wait for their turn"
	whyPushed  = "it took its time while others waited"
	whyLong    = "it announces more than a cluster of that many nodes would"
)

// arrive takes a new stream.
func (g *gate) arrive(id uint64, from netip.Addr, member bool, now time.Time) []act {
	g.visits = append(g.visits, &visit{id: id, from: from, member: member, since: now})
	var acts []act
	if g.count(func(v *visit) bool { return v.stage == waiting }) > maxWaiting {
		acts = g.shut(g.mostWaiting(), whyCrowded, acts)
	}
	return g.settle(now, acts)
}

// mostWaiting is the newest of the source with the most streams that wait: a stranger's while there is one.
func (g *gate) mostWaiting() *visit {
	var worst *visit
	most, sources := 0, g.sources(waiting)
	for _, v := range g.visits {
		if v.stage != waiting {
			continue
		}
		n := sources[v.from]
		if worst == nil || worst.member && !v.member || worst.member == v.member && n >= most {
			worst, most = v, n
		}
	}
	return worst
}

// announce says how long a stream's first message is.
func (g *gate) announce(id uint64, bytes int, now time.Time) []act {
	v := g.find(id)
	if v == nil || v.stage != reading || v.wants != 0 {
		return nil
	}
	most := strangeMost
	if v.member {
		most = memberMost
	}
	if bytes > most {
		return g.settle(now, g.shut(v, whyLong, nil))
	}
	v.wants = bytes
	return g.settle(now, nil)
}

// shown says that a stream's first message has the key; false: the stream was closed meanwhile.
func (g *gate) shown(id uint64, now time.Time) (ok bool, acts []act) {
	v := g.find(id)
	if v == nil || v.stage != reading {
		return false, nil
	}
	v.stage = served
	return true, g.settle(now, nil)
}

// drained says that memberlist has read what was read ahead.
func (g *gate) drained(id uint64, now time.Time) []act {
	if v := g.find(id); v != nil {
		g.release(v)
	}
	return g.settle(now, nil)
}

// left says that a stream is closed.
func (g *gate) left(id uint64, now time.Time) []act {
	v := g.find(id)
	if v == nil {
		return nil
	}
	g.release(v)
	if v.stage == reading && g.count(func(v *visit) bool { return v.stage == cooling }) < maxCooling {
		v.stage, v.since = cooling, now
	} else {
		g.drop(v)
	}
	return g.settle(now, nil)
}

// tick lets time pass.
func (g *gate) tick(now time.Time) []act { return g.settle(now, nil) }

// waits tells whether anybody waits for time to pass.
func (g *gate) waits() bool {
	return slices.ContainsFunc(g.visits, func(v *visit) bool { return v.stage == waiting })
}

func (g *gate) settle(now time.Time, acts []act) []act {
	for _, v := range slices.Clone(g.visits) {
		switch age := now.Sub(v.since); {
		case v.stage == waiting && age >= streamLife:
			acts = g.shut(v, whyLate, acts)
		case v.stage == cooling && age >= coolFor:
			g.drop(v)
		}
	}
	for {
		v := g.next()
		if v == nil || g.count(func(v *visit) bool { return v.stage == served }) >= maxServed {
			break
		}
		if g.count(func(v *visit) bool { return v.stage == reading }) >= maxReading {
			slow := g.slowest(v, now)
			if slow == nil {
				break
			}
			acts = g.shut(slow, whyPushed, acts)
		}
		v.stage = reading
		acts = append(acts, act{id: v.id, do: toRead})
	}
	return g.grant(acts)
}

// next is who is read as soon as there is room: members first, then the source of which the fewest are read, then who came first.
func (g *gate) next() *visit {
	var best *visit
	fewest, sources := 0, g.sources(reading, cooling)
	for _, v := range g.visits {
		if v.stage != waiting {
			continue
		}
		n := sources[v.from]
		if n >= perSource && !v.member || n >= perMember {
			continue
		}
		if best == nil || cmp.Or(boolCompare(best.member, v.member), n-fewest) < 0 {
			best, fewest = v, n
		}
	}
	return best
}

// boolCompare is negative where b is set and a is not.
func boolCompare(b, a bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// slowest is a stranger that gives way to v: an honest stream shows the key at once, so the one that has been read for longest.
func (g *gate) slowest(v *visit, now time.Time) *visit {
	for _, w := range g.visits {
		if w.stage == reading && !w.member && (v.member || now.Sub(w.since) >= unhurried) {
			return w
		}
	}
	return nil
}

// grant lets streams read what they announced: members first, and strangers' room is theirs.
func (g *gate) grant(acts []act) []act {
	for _, members := range []bool{true, false} {
		for _, v := range slices.Clone(g.visits) {
			if v.member != members || v.stage != reading || v.wants == 0 || v.granted {
				continue
			}
			for members && g.pool+v.beyond() > poolBytes {
				large := g.largest()
				if large == nil {
					break
				}
				acts = g.shut(large, whyPushed, acts)
			}
			if g.pool+v.beyond() > poolBytes {
				continue
			}
			v.granted = true
			g.pool += v.beyond()
			acts = append(acts, act{id: v.id, do: toGrant})
		}
	}
	return acts
}

// largest is the stranger that holds most of the pool.
func (g *gate) largest() (most *visit) {
	for _, v := range g.visits {
		if v.stage == reading && !v.member && v.granted && v.beyond() > 0 && (most == nil || v.beyond() > most.beyond()) {
			most = v
		}
	}
	return most
}

// beyond is what a stream needs of the pool.
func (v *visit) beyond() int { return max(v.wants-freeBytes, 0) }

func (g *gate) release(v *visit) {
	if v.granted {
		g.pool -= v.beyond()
		v.granted, v.wants = false, 0
	}
}

func (g *gate) shut(v *visit, why string, acts []act) []act {
	g.release(v)
	g.drop(v)
	return append(acts, act{v.id, toClose, why})
}

func (g *gate) drop(v *visit) {
	g.visits = slices.DeleteFunc(g.visits, func(w *visit) bool { return w == v })
}

func (g *gate) find(id uint64) *visit {
	if i := slices.IndexFunc(g.visits, func(v *visit) bool { return v.id == id }); i >= 0 {
		return g.visits[i]
	}
	return nil
}

// sources counts the streams of each source that are at one of these stages.
func (g *gate) sources(at ...stage) map[netip.Addr]int {
	n := map[netip.Addr]int{}
	for _, v := range g.visits {
		if slices.Contains(at, v.stage) {
			n[v.from]++
		}
	}
	return n
}

func (g *gate) count(is func(*visit) bool) (n int) {
	for _, v := range g.visits {
		if is(v) {
			n++
		}
	}
	return n
}
