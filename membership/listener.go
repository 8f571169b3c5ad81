package membership

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// doors gives memberlist the streams of those who have shown the cluster's key. It reads each stream's first message itself, within what gate
// allows, and memberlist, which would read 20 MiB from anybody, reads it again from memory.
type doors struct {
	opener
	log     *log.Logger
	member  func(netip.Addr) bool
	streams chan net.Conn
	ended   chan struct{}
	runs    sync.WaitGroup

	mu     sync.Mutex // guards what follows
	closed bool
	gate   gate
	conns  map[uint64]*door
	last   uint64
	ticks  bool
	turned turned
}

// turned counts streams that showed no key.
type turned struct {
	count uint64
	last  netip.Addr
	why   string
	said  time.Time
}

// saidEvery is the time between two lines of the log about streams without the key.
const saidEvery = 30 * time.Second

// door is a stream on its way to memberlist, and then as memberlist has it.
type door struct {
	net.Conn
	id    uint64
	from  netip.Addr
	of    *doors
	since time.Time
	grant chan struct{}
	close sync.Once

	ahead net.Buffers // read by us and not yet by memberlist, which reads in one goroutine
}

func (d *doors) open(label string, ring *memberlist.Keyring, l *log.Logger, member func(netip.Addr) bool) {
	d.label, d.ring, d.log, d.member = label, ring, l, member
	d.streams, d.ended, d.conns = make(chan net.Conn), make(chan struct{}), map[uint64]*door{}
}

// accept takes streams until the listener closes.
func (d *doors) accept(l net.Listener) {
	const pause = 50 * time.Millisecond
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // too many descriptors, say: it gets better or the daemon ends of something else
			d.log.Printf("[ERR] memberlist: a stream can't be accepted: %v", err)
			select {
			case <-d.ended:
			case <-time.After(pause):
			}
			continue
		}
		d.arrived(c)
	}
}

func (d *doors) arrived(c net.Conn) {
	from := hostOf(c.RemoteAddr().String())
	member := d.member(from)
	now := time.Now()
	_ = c.SetDeadline(now.Add(streamLife)) // an error comes back from the first Read
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		c.Close()
		return
	}
	d.last++
	v := &door{Conn: c, id: d.last, from: from, of: d, since: now, grant: make(chan struct{})}
	d.conns[v.id] = v
	d.do(d.gate.arrive(v.id, from, member, now))
}

// do carries out what the gate decided; d is locked.
func (d *doors) do(acts []act) {
	if d.closed {
		return // end closes all that are there
	}
	for _, a := range acts {
		v := d.conns[a.id]
		switch a.do {
		case toRead:
			d.runs.Go(func() { d.read(v) })
		case toGrant:
			close(v.grant)
		case toClose:
			delete(d.conns, a.id)
			v.Conn.Close()
			d.turn(v.from, a.why)
		}
	}
	if !d.ticks && !d.closed && d.gate.waits() {
		d.ticks = true
		d.runs.Go(d.tick)
	}
}

// tick lets time pass for those who wait.
func (d *doors) tick() {
	t := time.NewTicker(gateTick)
	defer t.Stop()
	for {
		select {
		case <-d.ended:
			return
		case now := <-t.C:
			d.mu.Lock()
			d.do(d.gate.tick(now))
			d.ticks = d.gate.waits()
			over := !d.ticks
			d.mu.Unlock()
			if over {
				return
			}
		}
	}
}

// read has a stream show the key, and gives it to memberlist.
func (d *doors) read(v *door) {
	err := d.show(v)
	if err == nil {
		select {
		case d.streams <- v:
			return
		case <-d.ended:
		}
	}
	open := d.leave(v) // false: the gate has closed it, and said why
	var late net.Error
	switch {
	case !open:
	case errors.Is(err, errSilent):
		// A peer that was paused or starved closes like that: its deadline had passed when it came to write.
		d.log.Printf("[DEBUG] memberlist: a stream %v: from=%s", err, v.RemoteAddr())
	case errors.As(err, &late) && late.Timeout():
		d.turnedAway(v.from, fmt.Sprintf("it did not show the gossip key in %v", streamLife))
	case errors.Is(err, errForeign), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		d.turnedAway(v.from, err.Error())
	case err != nil: // another cluster's, or with another key
		d.log.Printf("[ERR] memberlist: %v: a stream from %s is not heard", err, v.RemoteAddr())
	}
}

func (d *doors) show(v *door) error {
	label, err := readLabel(v.Conn, d.label)
	if err != nil {
		return err
	}
	h, err := readHead(v.Conn)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.do(d.gate.announce(v.id, h.bytes(), time.Now()))
	d.mu.Unlock()
	late := time.NewTimer(time.Until(v.since.Add(streamLife)))
	defer late.Stop()
	select {
	case <-v.grant:
	case <-late.C:
		return errors.New(whyLate)
	case <-d.ended:
		return net.ErrClosed
	}
	body, err := readBody(v.Conn, h.bytes())
	if err != nil {
		return err
	}
	if err := d.shows(h, body, msgPing, msgState); err != nil {
		return err
	}
	v.ahead = net.Buffers{append(label, h[:]...), body}
	d.mu.Lock()
	defer d.mu.Unlock()
	ok, acts := d.gate.shown(v.id, time.Now())
	d.do(acts)
	if !ok {
		return net.ErrClosed
	}
	return nil
}

// leave closes a stream. It reports whether it was open.
func (d *doors) leave(v *door) (open bool) {
	v.close.Do(func() {
		_ = v.Conn.Close()
		d.mu.Lock()
		defer d.mu.Unlock()
		if _, open = d.conns[v.id]; open {
			delete(d.conns, v.id)
			d.do(d.gate.left(v.id, time.Now()))
		}
	})
	return open
}

// turnedAway counts a stream that showed no key.
func (d *doors) turnedAway(from netip.Addr, why string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.turn(from, why)
}

// turn is turnedAway with d locked. A line of the log comes at once, and then once in a while with the count.
func (d *doors) turn(from netip.Addr, why string) {
	d.turned.count, d.turned.last, d.turned.why = d.turned.count+1, from, why
	if now := time.Now(); d.turned.said.IsZero() || now.Sub(d.turned.said) >= saidEvery {
		d.turned.said = now
		d.log.Printf("[WARN] memberlist: %s", d.turned)
	}
}

// String is the line of log and status.
func (t turned) String() string {
	return fmt.Sprintf("streams at the gossip port were closed before they showed the cluster's key: %d so far, the last from %s (%s): let only the cluster's nodes reach this port", t.count, t.last, t.why)
}

// warnings are lines for status.
func (d *doors) warnings() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.turned.count == 0 {
		return nil
	}
	return []string{d.turned.String()}
}

// end closes all streams that memberlist does not have, and waits for those who read them.
func (d *doors) end() {
	d.mu.Lock()
	if !d.closed {
		d.closed = true
		close(d.ended)
		for _, v := range d.conns {
			_ = v.Conn.Close()
		}
	}
	d.mu.Unlock()
	d.runs.Wait()
}

// Read gives memberlist what was read ahead, and then what comes.
func (v *door) Read(b []byte) (int, error) {
	if len(v.ahead) == 0 {
		return v.Conn.Read(b)
	}
	n, _ := v.ahead.Read(b) // the error is that it is at its end
	if len(v.ahead) == 0 {
		v.of.mu.Lock()
		defer v.of.mu.Unlock()
		v.of.do(v.of.gate.drained(v.id, time.Now()))
	}
	return n, nil
}

// Close is memberlist's last word.
func (v *door) Close() error {
	v.of.leave(v)
	return nil
}

// answer is a stream that this node opened. Whoever has the address answers, so the answer shows the key before memberlist reads it.
type answer struct {
	net.Conn
	opener *opener
	ahead  net.Buffers
	asked  bool
}

// Read is called by one goroutine of memberlist's.
func (a *answer) Read(b []byte) (int, error) {
	if !a.asked {
		a.asked = true
		if err := a.show(); err != nil {
			return 0, err
		}
	}
	if len(a.ahead) == 0 {
		return a.Conn.Read(b)
	}
	n, _ := a.ahead.Read(b) // the error is that it is at its end
	return n, nil
}

func (a *answer) show() error {
	h, err := readHead(a.Conn)
	if err != nil {
		return err
	}
	if h.bytes() > memberMost {
		return errTooLong
	}
	body, err := readBody(a.Conn, h.bytes())
	if err != nil {
		return err
	}
	if err := a.opener.shows(h, body, msgAck, msgState, msgError); err != nil {
		return err
	}
	a.ahead = net.Buffers{h[:], body}
	return nil
}
