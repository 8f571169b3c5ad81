package pipe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/replicad/replicad/internal/durable/catalog/read"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/replica"
)

// spanBytes is how much of a part is asked of the store at once, at most: a request takes long whatever it brings. lanes is how many of these are
// under way or wait to be sent, which bounds what reading takes of memory.
const (
	spanBytes = 4 << 20
	lanes     = 8
)

// opened is the answer to open.
type opened struct {
	Root   string         `json:"root"`
	Where  string         `json:"where"`
	Run    string         `json:"run"`
	Commit *format.Commit `json:"commit"`
	Index  *format.Index  `json:"index"`
}

// some is a line before raw bytes.
type some struct {
	Bytes uint64 `json:"bytes"`
}

// shard is an open part.
type shard struct {
	read.ShardReader
	regions map[string]replica.Region
	m       replica.Manifest
}

// span is some chunks on their way. b and err count once done is closed.
type span struct {
	sh    *shard
	i, n  int
	first uint64 // byte of the part that b begins with
	done  chan struct{}
	b     []byte
	err   error
}

// answer is what the writer sends next: a piece of a span, or a line.
type answer struct {
	request  int
	from     *span // nil: a line
	at, n    uint64
	line     any
	occupies bool // one of lanes
}

// reads is one open generation.
type reads struct {
	ctx    context.Context
	s      *stream
	g      Generation
	shards map[replica.Part]*shard
	last   *span // the newest: what is asked for next often begins in it
	turn   chan struct{}
	queue  chan answer
	wg     sync.WaitGroup
}

func (s *stream) reading(ctx context.Context, stores Stores, r *openRequest) error {
	said := false
	err := stores.Read(ctx, r.Job, r.At, func(g Generation) error {
		if g.Index != nil && len(g.Index.Tensors) == 0 && len(g.Index.Files) > 0 && g.Bytes > 0 {
			return fmt.Errorf("generation %s: its index has no tensors: more than it has room for; read its files, which are safetensors", g.Where())
		}
		said = true
		if err := s.say(opened{g.Root, g.Where(), g.Run.Run, &g.Commit, g.Index}); err != nil {
			return err
		}
		return s.reads(ctx, g)
	})
	if err != nil && !said {
		return s.say(failure(err))
	}
	return err
}

// reads serves reads until there are no more.
func (s *stream) reads(ctx context.Context, g Generation) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &reads{ctx: ctx, s: s, g: g, shards: make(map[replica.Part]*shard), turn: make(chan struct{}, lanes), queue: make(chan answer, lanes+MaxAhead)}
	var wrote error
	var writer sync.WaitGroup
	writer.Go(func() { wrote = r.write() })
	err := r.take()
	close(r.queue)
	writer.Wait()
	cancel()
	r.wg.Wait()
	for _, sh := range r.shards {
		sh.Close()
	}
	return errors.Join(err, wrote)
}

// take reads requests and begins what they ask for.
func (r *reads) take() error {
	for n := 0; ; n++ {
		line, err := r.s.line()
		if errors.Is(err, io.EOF) {
			return nil
		}
		var req any
		if err == nil {
			req, err = parse(line)
		}
		read, ok := req.(*readRequest)
		switch {
		case err != nil && line == nil:
			return err // nobody knows where the next one begins
		case err == nil && ok:
			err = r.ask(n, read)
		case err == nil:
			if _, ok := req.(*endRequest); ok {
				return nil
			}
			err = wrong("%.40T: the generation is open: read, or end", req)
		}
		if err != nil {
			r.queue <- answer{request: n, line: failure(r.met(err))}
		}
	}
}

// met tells of a read that failed.
func (r *reads) met(err error) error {
	if r.g.Met == nil {
		return err
	}
	return r.g.Met(err)
}

// ask has the bytes of one read fetched, and queues them.
func (r *reads) ask(request int, q *readRequest) error {
	sh, region, err := r.find(q)
	if err != nil {
		return err
	}
	if q.From > region.Bytes || q.Bytes > region.Bytes-q.From {
		return wrong("bytes %d to %d of %q, which has %d", q.From, q.From+q.Bytes, q.Name, region.Bytes)
	}
	if q.Bytes == 0 {
		r.queue <- answer{request: request, line: some{}}
		return nil
	}
	chunk := uint64(sh.m.ChunkBytes)
	at, end := region.Offset+q.From, region.Offset+q.From+q.Bytes
	for at < end {
		r.turn <- struct{}{}
		sp := r.last
		if i := int(at / chunk); sp == nil || sp.sh != sh || i < sp.i || i >= sp.i+sp.n {
			most := int(max(1, spanBytes/chunk))
			sp = r.fetch(sh, i, min(most, int((end-1)/chunk)-i+1))
		}
		n := min(end, sp.first+r.size(sp)) - at
		r.queue <- answer{request: request, from: sp, at: at - sp.first, n: n, occupies: true}
		at += n
	}
	return nil
}

// size is how many bytes of the part a span has.
func (r *reads) size(sp *span) uint64 {
	last, n := replica.ChunkSpan(sp.i+sp.n-1, sp.sh.m.Bytes, sp.sh.m.ChunkBytes)
	return last + n - sp.first
}

// fetch begins to read some chunks.
func (r *reads) fetch(sh *shard, i, n int) *span {
	first, _ := replica.ChunkSpan(i, sh.m.Bytes, sh.m.ChunkBytes)
	sp := &span{sh: sh, i: i, n: n, first: first, done: make(chan struct{})}
	r.last = sp
	r.wg.Go(func() {
		defer close(sp.done)
		sp.b, sp.err = sh.ReadSpan(i, n, nil)
	})
	return sp
}

// find opens the part that a read names, once, and finds the region in it.
func (r *reads) find(q *readRequest) (*shard, replica.Region, error) {
	part, err := q.part()
	if err != nil {
		return nil, replica.Region{}, wrong("%w", err)
	}
	sh, ok := r.shards[part]
	if !ok {
		reader, err := r.g.Shard(r.ctx, part)
		if err != nil {
			return nil, replica.Region{}, err
		}
		sh = &shard{ShardReader: reader, regions: make(map[string]replica.Region), m: reader.Manifest()}
		for _, region := range reader.Regions() {
			if safetensors.Belongs(region, part.Kind) {
				sh.regions[region.Name] = region
			}
		}
		r.shards[part] = sh
	}
	region, ok := sh.regions[q.Name]
	if !ok {
		return nil, region, wrong("%v has no region %.128q", part, q.Name)
	}
	return sh, region, nil
}

// write sends answers in order. Behind an error nothing more of its request is sent. When the other side has gone the queue is still emptied: who fills
// it waits.
func (r *reads) write() (err error) {
	broken := -1
	for a := range r.queue {
		if a.from != nil {
			<-a.from.done
		}
		switch {
		case err != nil || a.request == broken:
		case a.from == nil:
			err = r.s.say(a.line)
		case a.from.err != nil:
			broken = a.request
			err = r.s.say(failure(r.met(a.from.err)))
		default:
			if err = r.s.say(some{a.n}); err == nil {
				_, err = r.s.out.Write(a.from.b[a.at : a.at+a.n])
			}
		}
		if a.occupies {
			<-r.turn
		}
	}
	return err
}
