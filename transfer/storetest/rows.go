package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// Rows are the cases.
func Rows() []Row {
	return []Row{
		{"open: the manifest is of the key, its chunks hash to its digests", nil, opensWhole},
		{"open: readers, and goroutines of one, read beside each other; each ends by itself", nil, readersApart},
		{"open: what is not here is unknown", nil, unknown},
		{"open: keys of another time are refused by their kind", []Ability{Epochs}, openInTime},
		{"open: a stranger gets nothing", []Ability{Peers}, openStranger},
		{"accept: what was put is sealed, whole", []Ability{Takes}, takes},
		{"accept: a push that broke off leaves no part, and the part is taken again", []Ability{Takes, Again}, broken},
		{"accept: nothing is served as whole before the end", []Ability{Takes, Opens}, halfway},
		{"accept: what has come is served on", []Ability{Takes, Opens, Relays}, relayed},
		{"accept: a sink has what it was given, and keeps no buffer", []Ability{Takes}, sinks},
		{"accept: chunks come from several goroutines, and again", []Ability{Takes}, parallel},
		{"accept: chunks that come after the end change nothing", []Ability{Takes, Again}, late},
		{"accept: a push may end while chunks come", []Ability{Takes, Again}, cut},
		{"accept: chunks that do not fit are refused, and harm nothing", []Ability{Takes, Judges}, misfits},
		{"accept: a part that lacks a chunk is not sealed", []Ability{Takes}, lacking},
		{"accept: a part that is here is taken, and stays", []Ability{Takes, Opens}, twice},
		{"accept: keys of another time are refused by their kind, and leave nothing", []Ability{Takes, Epochs}, acceptInTime},
		{"accept: a stranger's push is refused, and leaves nothing", []Ability{Takes, Peers}, acceptStranger},
		{"a fetch by the protocol brings the part", nil, fetched},
		{"a push by the protocol is taken", []Ability{Takes}, pushed},
		{"a peer learns why it is refused", nil, refusals},
	}
}

func opensWhole(b *Bed) error { return b.serves(b.Has) }

func readersApart(b *Bed) error {
	first, err := b.open(b.Peer, b.Has.Key)
	if err != nil {
		return err
	}
	second, err := b.open(b.Peer, b.Has.Key)
	if err != nil {
		b.close(first)
		return err
	}
	var all sync.WaitGroup
	errs := make([]error, 3)
	for i, r := range []transfer.Reader{first, second, first} { // a push over several streams has one reader
		all.Go(func() { errs[i] = reads(r, b.Has) })
	}
	b.do(all.Wait)
	b.close(first)
	err = errors.Join(append(errs, reads(second, b.Has))...)
	if _, blind := b.Without[Counts]; !blind && len(b.InUse()) != 1 {
		err = errors.Join(err, fmt.Errorf("one reader of two is open, in use: %v", b.InUse()))
	}
	b.close(second)
	return err
}

// others are keys of parts that nobody has.
func others(k transfer.Key) map[string]transfer.Key {
	root, generation, part := k, k, k
	root.Root[0] ^= 1
	generation.Generation.Step += 100
	part.Part.Index += 100
	list := map[string]transfer.Key{"another root": root, "another generation": generation, "another part": part}
	if k.Part.Kind == replica.FrozenPart {
		delete(list, "another generation")
	}
	return list
}

func unknown(b *Bed) (all error) {
	for what, k := range others(b.Has.Key) {
		r, err := b.open(b.Peer, k)
		if err == nil {
			b.close(r)
		}
		all = errors.Join(all, wants(what, err, transfer.ErrUnknownPart))
	}
	return all
}

// errForeign is a refusal of no kind that is tried again, or that names a newer owner.
var errForeign = errors.New("an error that is final")

// times are changes of a key that is of now, with what is answered. The epoch before is closed.
var times = map[string]struct {
	change func(*transfer.Key)
	want   error
}{
	"a closed epoch":           {func(k *transfer.Key) { k.Epoch-- }, transfer.ErrFenced},
	"an epoch to come":         {func(k *transfer.Key) { k.Epoch++ }, transfer.ErrNotYet},
	"an era before":            {func(k *transfer.Key) { k.Era-- }, transfer.ErrFenced},
	"an era to come":           {func(k *transfer.Key) { k.Era++ }, transfer.ErrNotYet},
	"a former incarnation":     {func(k *transfer.Key) { k.Incarnation-- }, transfer.ErrFenced},
	"no incarnation":           {func(k *transfer.Key) { k.Incarnation = 0 }, transfer.ErrFenced},
	"an incarnation to come":   {func(k *transfer.Key) { k.Incarnation += 100 }, transfer.ErrNotYet},
	"no such rank":             {func(k *transfer.Key) { k.Rank = 1<<32 - 1 }, transfer.ErrFenced},
	"a job that is not known":  {func(k *transfer.Key) { k.Job[0] ^= 1 }, transfer.ErrNotYet},
	"another cluster":          {func(k *transfer.Key) { k.Cluster[0] ^= 1 }, errForeign},
	"another cluster's epochs": {func(k *transfer.Key) { k.Cluster[0] ^= 1; k.Epoch++ }, errForeign},
}

// refusedAs is true for a refusal of a kind.
func refusedAs(err, want error) bool {
	if errors.Is(want, errForeign) {
		return err != nil && !transfer.Retryable(err) && !errors.Is(err, transfer.ErrFenced)
	}
	return errors.Is(err, want)
}

// wants is nil where an error is a refusal of a kind.
func wants(what string, err, want error) error {
	if refusedAs(err, want) {
		return nil
	}
	if err == nil {
		return fmt.Errorf("%s: no error, want %w", what, want)
	}
	return fmt.Errorf("%s: %w, want %w", what, err, want)
}

func openInTime(b *Bed) (all error) {
	for what, c := range times {
		k := b.Has.Key
		c.change(&k)
		r, err := b.open(b.Peer, k)
		if err == nil {
			b.close(r)
		}
		all = errors.Join(all, wants(what, err, c.want))
	}
	return all
}

func openStranger(b *Bed) error {
	r, err := b.open(b.Stranger, b.Has.Key)
	if err == nil {
		b.close(r)
		return errors.New("it gets the part")
	}
	return nil
}

func takes(b *Bed) error {
	if err := b.absent(); err != nil {
		return fmt.Errorf("before the push: %w", err)
	}
	return errors.Join(b.take(b.Takes), b.taken())
}

var errBroke = errors.New("the stream broke")

// broken has pushes break off after no chunk, some and all of them.
func broken(b *Bed) error {
	for _, n := range []int{0, 1, len(b.Takes.Chunks) / 2, len(b.Takes.Chunks)} {
		in, err := b.accept(b.Peer, b.Takes)
		if err != nil {
			return fmt.Errorf("push %d: %w", n, err)
		}
		for i := range n {
			if in.sink.Have(i) {
				continue
			}
			if err := in.put(i, b.Takes.Chunks[i]); err != nil {
				return fmt.Errorf("push %d: put chunk %d: %w", n, i, errors.Join(err, in.ends(err)))
			}
		}
		if err := wants(fmt.Sprintf("the push that broke off after %d chunks", n), in.ends(errBroke), errBroke); err != nil {
			return err
		}
		if err := b.absent(); err != nil {
			return fmt.Errorf("broken off after %d chunks: %w", n, err)
		}
		if err := b.idle(); err != nil {
			return fmt.Errorf("broken off after %d chunks: %w", n, err)
		}
	}
	return errors.Join(b.take(b.Takes), b.taken())
}

// halfway opens a part that is on its way: it is unknown, or gives the chunks that have come and no others.
func halfway(b *Bed) error {
	in, err := b.accept(b.Peer, b.Takes)
	if err != nil {
		return err
	}
	last := len(b.Takes.Chunks) - 1
	err = in.fill(b.Takes, last)
	if err == nil {
		err = b.receives(last)
	}
	if err == nil && !in.sink.Have(last) {
		err = in.put(last, b.Takes.Chunks[last])
	}
	if err != nil {
		return errors.Join(err, in.ends(err))
	}
	return errors.Join(in.ends(nil), b.taken())
}

// relayed opens a part of which nothing has come, which is served all the same.
func relayed(b *Bed) error {
	in, err := b.accept(b.Peer, b.Takes)
	if err != nil {
		return err
	}
	r, err := b.open(b.Peer, asked(b.Takes.Key))
	if err == nil {
		b.close(r)
	}
	in.ends(errBroke) //nolint:errcheck // another row has that
	return err
}

func (b *Bed) receives(lacks int) error {
	r, err := b.open(b.Peer, asked(b.Takes.Key))
	if errors.Is(err, transfer.ErrUnknownPart) {
		return nil
	}
	if err != nil {
		return err
	}
	defer b.close(r)
	on, is := r.(transfer.Receiving)
	if !is {
		return errors.New("a part that is on its way is served as one that is whole")
	}
	for i, want := range b.Takes.Chunks {
		if on.Has(i) != (i != lacks) {
			return fmt.Errorf("chunk %d, of which all but %d came: has %t", i, lacks, on.Has(i))
		}
		if i == lacks {
			if _, err := on.ReadChunk(i, make([]byte, len(want))); err == nil {
				return fmt.Errorf("chunk %d is read before it came", i)
			}
			continue
		}
		if err := readsChunk(on, i, want, b.Takes.Manifest.Chunks[i]); err != nil {
			return err
		}
	}
	return nil
}

func sinks(b *Bed) error {
	in, err := b.accept(b.Peer, b.Takes)
	if err != nil {
		return err
	}
	for i, c := range b.Takes.Chunks {
		if in.sink.Have(i) {
			err = errors.Join(err, fmt.Errorf("chunk %d is there before it came", i))
		}
		err = errors.Join(err, in.put(i, c))
		if !in.sink.Have(i) {
			err = errors.Join(err, fmt.Errorf("chunk %d was put, and is not there", i))
		}
	}
	if err != nil {
		return errors.Join(err, in.ends(err))
	}
	return errors.Join(in.ends(nil), b.taken())
}

func parallel(b *Bed) error {
	in, err := b.accept(b.Peer, b.Takes)
	if err != nil {
		return err
	}
	if err := in.putAll(2); err != nil {
		return errors.Join(err, in.ends(err))
	}
	return errors.Join(in.ends(nil), b.taken())
}

// putAll puts each chunk so many times, all at once.
func (in *push) putAll(times int) error {
	chunks := slices.Repeat(in.b.Takes.Chunks, times)
	errs := make([]error, len(chunks))
	in.b.do(func() {
		var all sync.WaitGroup
		for i, c := range chunks {
			all.Go(func() {
				buf := bytes.Clone(c)
				errs[i] = in.sink.Put(i%len(in.b.Takes.Chunks), buf)
				clear(buf)
			})
		}
		all.Wait()
	})
	return errors.Join(errs...)
}

// late puts chunks by way of a push that has ended, while another one of the part is under way, and once that is sealed.
func late(b *Bed) error {
	first, err := b.accept(b.Peer, b.Takes)
	if err != nil {
		return err
	}
	if err := wants("a push that broke off", first.ends(errBroke), errBroke); err != nil {
		return err
	}
	next, err := b.accept(b.Peer, b.Takes)
	if err != nil {
		return err
	}
	wrong := make([]byte, len(b.Takes.Chunks[0])) // of the right length: its digest is no business of the sink's
	if first.put(0, wrong) == nil || next.sink.Have(0) {
		err = errors.New("a chunk that comes after the end is taken")
	}
	if err = errors.Join(err, next.fill(b.Takes, -1)); err != nil {
		return errors.Join(err, next.ends(err))
	}
	if err := next.ends(nil); err != nil {
		return err
	}
	for _, in := range []*push{first, next} {
		in.put(0, wrong) //nolint:errcheck // it may be dropped: the part is here
	}
	return b.taken()
}

// cut ends a push while its chunks come, as one does whose main stream breaks before the others.
func cut(b *Bed) error {
	in, err := b.accept(b.Peer, b.Takes)
	if err != nil {
		return err
	}
	b.do(func() {
		var puts sync.WaitGroup
		for i, c := range b.Takes.Chunks {
			puts.Go(func() { in.sink.Put(i, bytes.Clone(c)) }) //nolint:errcheck // it fails where the end came first
		}
		err = in.end(errBroke)
		puts.Wait()
	})
	if err := errors.Join(wants("the push that broke off", err, errBroke), b.absent(), b.idle()); err != nil {
		return err
	}
	return errors.Join(b.take(b.Takes), b.taken())
}

func misfits(b *Bed) error {
	in, err := b.accept(b.Peer, b.Takes)
	if err != nil {
		return err
	}
	first, n := b.Takes.Chunks[0], len(b.Takes.Chunks)
	for what, c := range map[string]struct {
		i int
		b []byte
	}{
		"too short":             {0, first[:len(first)-1]},
		"too long":              {0, append(bytes.Clone(first), 0)},
		"empty":                 {0, nil},
		"none before the first": {-1, first},
		"none behind the last":  {n, first},
	} {
		if in.put(c.i, c.b) == nil {
			err = errors.Join(err, fmt.Errorf("a chunk that is %s is taken", what))
		}
	}
	if in.sink.Have(0) {
		err = errors.Join(err, errors.New("a refused chunk counts as there"))
	}
	if err = errors.Join(err, in.fill(b.Takes, -1)); err != nil {
		return errors.Join(err, in.ends(err))
	}
	return errors.Join(in.ends(nil), b.taken())
}

func lacking(b *Bed) error {
	in, err := b.accept(b.Peer, b.Takes)
	if err != nil {
		return err
	}
	last := len(b.Takes.Chunks) - 1
	if err := in.fill(b.Takes, last); err != nil {
		return errors.Join(err, in.ends(err))
	}
	if in.ends(nil) == nil {
		return fmt.Errorf("sealed without chunk %d", last)
	}
	return errors.Join(b.absent(), b.idle())
}

func twice(b *Bed) error {
	if err := b.take(b.Takes); err != nil {
		return err
	}
	if err := errors.Join(b.idle(), b.take(b.Takes), b.taken()); err != nil {
		return fmt.Errorf("pushed again: %w", err)
	}
	in, err := b.accept(b.Peer, b.Takes)
	if err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	if err := wants("a push that broke off", in.ends(errBroke), errBroke); err != nil {
		return err
	}
	if err := b.taken(); err != nil {
		return fmt.Errorf("after a further push that broke off: %w", err)
	}
	return nil
}

// refuses is nil where a push is refused, and the part is taken from its peer all the same.
func (b *Bed) refuses(peer replica.NodeName, p Part, want error) error {
	in, err := b.accept(peer, p)
	if err == nil {
		return errors.Join(errors.New("it is accepted"), in.ends(errBroke))
	}
	return errors.Join(wants("accept", err, want), b.absent(), b.idle())
}

func acceptInTime(b *Bed) (all error) {
	for what, c := range times {
		p := b.Takes
		c.change(&p.Key)
		if err := b.refuses(b.Peer, p, c.want); err != nil {
			all = errors.Join(all, fmt.Errorf("%s: %w", what, err))
		}
	}
	return errors.Join(all, b.take(b.Takes), b.taken())
}

func acceptStranger(b *Bed) error {
	return errors.Join(b.refuses(b.Stranger, b.Takes, errForeign), b.take(b.Takes), b.taken())
}
