package storetest

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// TestMemory: the store that others wrap keeps the contract.
func TestMemory(t *testing.T) {
	Run(t, func(*testing.T) Bed {
		b, _ := MemoryBed()
		return b
	})
}

// bent is a store that breaks the contract in one way. Each function gets what the good store gives.
type bent struct {
	*Memory
	open   func(transfer.Key, transfer.Reader, error) (transfer.Reader, error)
	accept func(transfer.Sink, ending, error) (transfer.Sink, ending, error)
}

func (b bent) Open(peer replica.NodeName, k transfer.Key) (transfer.Reader, error) {
	r, err := b.Memory.Open(peer, k)
	if b.open != nil {
		return b.open(k, r, err)
	}
	return r, err
}

func (b bent) Accept(peer replica.NodeName, k transfer.Key, m replica.Manifest) (transfer.Sink, func(error) error, error) {
	sink, end, err := b.Memory.Accept(peer, k, m)
	if b.accept != nil {
		return b.accept(sink, end, err)
	}
	return sink, end, err
}

// bentReader and bentSink break one method each.
type (
	bentReader struct {
		transfer.Reader
		read  func([]byte) []byte
		close func()
	}
	bentSink struct {
		transfer.Sink
		have func(i int) bool
		put  func(i int, b []byte) error
	}
)

func (r bentReader) ReadChunk(i int, dst []byte) ([]byte, error) {
	b, err := r.Reader.ReadChunk(i, dst)
	if r.read != nil && err == nil {
		return r.read(b), nil
	}
	return b, err
}

func (r bentReader) Close() {
	if r.close != nil {
		r.close()
		return
	}
	r.Reader.Close()
}

func (s bentSink) Have(i int) bool {
	if s.have != nil {
		return s.have(i)
	}
	return s.Sink.Have(i)
}

func (s bentSink) Put(i int, b []byte) error {
	if s.put != nil {
		return s.put(i, b)
	}
	return s.Sink.Put(i, b)
}

type ending = func(error) error

// bends are breaches, each with the names of rows that must find it, or what these names have in them.
var bends = map[string]struct {
	rows string
	bend func(*bent)
}{
	"a flipped bit":    {"of the key; beside each other; a fetch", reading(func(b []byte) []byte { b[0] ^= 1; return b })},
	"a short chunk":    {"of the key; a fetch", reading(func(b []byte) []byte { return b[1:] })},
	"bytes behind dst": {"of the key", reading(func(b []byte) []byte { b[:len(b)+1][len(b)] = 0; return b })},
	"a reader that stays": {"beside each other", func(b *bent) {
		b.open = func(_ transfer.Key, r transfer.Reader, err error) (transfer.Reader, error) {
			if err != nil {
				return nil, err
			}
			return bentReader{r, nil, func() {}}, nil
		}
	}},
	"what is unknown is old":   {"not here is unknown; learns why", instead(transfer.ErrUnknownPart, transfer.ErrFenced)},
	"what is old may come":     {"open: keys; accept: keys", instead(transfer.ErrFenced, transfer.ErrNotYet)},
	"what is to come is old":   {"open: keys; accept: keys", instead(transfer.ErrNotYet, transfer.ErrFenced)},
	"any peer":                 {"open: a stranger", anyPeer},
	"a push is not sealed":     {"sealed, whole; a push by", ends(unsealed)},
	"a broken push is sealed":  {"broke off", ends(sealAnyhow)},
	"a broken push is done":    {"broke off", ends(func(_ *bent, err error, e ending) error { _ = e(err); return nil })},
	"a place is not given":     {"broke off; lacks a chunk", ends(func(b *bent, err error, e ending) error { b.add(1); return e(err) })},
	"sealed with a hole":       {"lacks a chunk", ends(sealAnyhow)},
	"a second push spoils it":  {"and stays", ends(forgets)},
	"served before its end":    {"before the end", func(b *bent) { b.open = b.soon }},
	"a sink forgets":           {"keeps no buffer", sinking(func(s transfer.Sink) bentSink { return has(s, false) })},
	"a sink has all":           {"sealed, whole; keeps no buffer", sinking(func(s transfer.Sink) bentSink { return has(s, true) })},
	"a sink keeps the buffers": {"sealed, whole; several goroutines", sinking(keeps)},
	"a sink takes anything": {"do not fit", sinking(func(s transfer.Sink) bentSink {
		return bentSink{s, nil, func(i int, b []byte) error { _ = s.Put(i, b); return nil }}
	})},
	"a sink takes a chunk once":    {"several goroutines", sinking(once)},
	"a sink has no end":            {"after the end", sinking(endless)},
	"a push that is cut is sealed": {"while chunks come", ends(sealAnyhow)},
	"what comes is not served": {"served on", func(b *bent) {
		b.open = func(_ transfer.Key, r transfer.Reader, err error) (transfer.Reader, error) {
			if _, on := r.(transfer.Receiving); on {
				r.Close()
				return nil, transfer.ErrUnknownPart
			}
			return r, err
		}
	}},
	"a refused push stays": {"accept: keys; a stranger's push", func(b *bent) {
		b.accept = func(s transfer.Sink, e ending, err error) (transfer.Sink, ending, error) {
			if err != nil {
				b.add(1)
			}
			return s, e, err
		}
	}},
}

// TestRowsCanFail: each row finds a store that breaks what it is about.
func TestRowsCanFail(t *testing.T) {
	left := map[string]bool{}
	for _, row := range Rows() {
		left[row.Name] = true
	}
	for what, c := range bends {
		for name := range strings.SplitSeq(c.rows, "; ") {
			row := named(t, name)
			delete(left, row.Name)
			bed, m := MemoryBed()
			b := &bent{Memory: m}
			c.bend(b)
			bed.Store = b
			err := row.Check(&bed)
			if err == nil {
				err = bed.idle()
			}
			if err == nil {
				t.Errorf("%s: the row %q finds nothing", what, row.Name)
			}
		}
	}
	for name := range left {
		t.Errorf("nothing shows that the row %q can fail", name)
	}
}

// reading bends what is read.
func reading(bend func([]byte) []byte) func(*bent) {
	return func(b *bent) {
		b.open = func(_ transfer.Key, r transfer.Reader, err error) (transfer.Reader, error) {
			if err != nil {
				return nil, err
			}
			return bentReader{r, bend, nil}, nil
		}
	}
}

// sinking bends sinks.
func sinking(bend func(s transfer.Sink) bentSink) func(*bent) {
	return func(b *bent) {
		b.accept = func(s transfer.Sink, e ending, err error) (transfer.Sink, ending, error) {
			if err != nil {
				return nil, nil, err
			}
			return bend(s), e, nil
		}
	}
}

// ends bends the end of a push.
func ends(bend func(*bent, error, ending) error) func(*bent) {
	return func(b *bent) {
		b.accept = func(s transfer.Sink, e ending, err error) (transfer.Sink, ending, error) {
			if err != nil {
				return nil, nil, err
			}
			return s, func(err error) error { return bend(b, err, e) }, nil
		}
	}
}

// instead has what is refused with one error refused with another.
func instead(of, with error) func(*bent) {
	return func(b *bent) {
		b.open = func(_ transfer.Key, r transfer.Reader, err error) (transfer.Reader, error) {
			if errors.Is(err, of) {
				return nil, with
			}
			return r, err
		}
		b.accept = func(s transfer.Sink, e ending, err error) (transfer.Sink, ending, error) {
			if errors.Is(err, of) {
				return nil, nil, with
			}
			return s, e, err
		}
	}
}

// unsealed gives up what has come, and answers that it was sealed.
func unsealed(_ *bent, err error, end ending) error {
	_ = end(errBroke)
	return err
}

// has is a sink that has all chunks, or none.
func has(s transfer.Sink, all bool) bentSink {
	return bentSink{s, func(int) bool { return all }, nil}
}

// anyPeer serves everybody.
func anyPeer(b *bent) {
	b.open = func(k transfer.Key, r transfer.Reader, err error) (transfer.Reader, error) {
		if errors.Is(err, transfer.ErrRefused) {
			return b.Memory.Open(b.peer, k)
		}
		return r, err
	}
}

// named is the one row with a text in its name.
func named(t *testing.T, text string) (row Row) {
	t.Helper()
	n := 0
	for _, r := range Rows() {
		if strings.Contains(r.Name, text) {
			row = r
			n++
		}
	}
	if n != 1 {
		t.Fatalf("%d rows have %q in their names", n, text)
	}
	return row
}

// add lets a place be in use.
func (m *Memory) add(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.filled += n
}

// sealAnyhow has what a push brought sealed, whatever came of it.
func sealAnyhow(b *bent, err error, end ending) error {
	was := end(err)
	bed, _ := MemoryBed()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.parts[bed.Takes.Key.Root] = bed.Takes
	if err == nil {
		return nil
	}
	return was
}

// keeps is a sink that keeps the buffers that it is given.
func keeps(s transfer.Sink) bentSink {
	of := s.(*taking)
	return bentSink{s, nil, func(i int, b []byte) error {
		of.mu.Lock()
		defer of.mu.Unlock()
		of.p.Chunks[i] = b
		return nil
	}}
}

// once is a sink that refuses a chunk that has come.
func once(s transfer.Sink) bentSink {
	return bentSink{s, nil, func(i int, b []byte) error {
		if s.Have(i) {
			return errors.New("it is there")
		}
		return s.Put(i, b)
	}}
}

// endless is a sink that takes chunks after the end, into whatever the place has by then.
func endless(s transfer.Sink) bentSink {
	of := s.(*taking)
	return bentSink{s, nil, func(i int, b []byte) error {
		of.mu.Lock()
		defer of.mu.Unlock()
		if len(b) == 0 || of.p.Chunks[i] == nil {
			of.p.Chunks[i] = bytes.Clone(b)
		}
		copy(of.p.Chunks[i], b)
		return nil
	}}
}

// soon serves a part of which a push is under way as one that is whole.
func (b *bent) soon(k transfer.Key, r transfer.Reader, err error) (transfer.Reader, error) {
	bed, _ := MemoryBed()
	if _, on := r.(transfer.Receiving); on {
		r.Close()
		return reader{bed.Takes}, nil
	}
	return r, err
}

// forgets loses the part of a push that broke off.
func forgets(b *bent, err error, end ending) error {
	if err != nil {
		b.mu.Lock()
		clear(b.parts)
		b.mu.Unlock()
	}
	return end(err)
}

// TestMake: what parts are made of follows from the seed.
func TestMake(t *testing.T) {
	b, _ := MemoryBed()
	again, _ := MemoryBed()
	if b.Has.Key != again.Has.Key || b.Has.Key.Root == b.Takes.Key.Root || !bytes.Equal(b.Takes.Chunks[2], again.Takes.Chunks[2]) {
		t.Errorf("keys %+v, %+v", b.Has.Key, again.Has.Key)
	}
}
