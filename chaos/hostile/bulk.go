package hostile

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// The frames of a transfer that attacks send.
const (
	kindFetch = wire.FirstTransfer + 0
	kindPush  = wire.FirstTransfer + 1
	kindError = wire.FirstTransfer + 4
	kindWhole = wire.FirstTransfer + 5
)

func silentBulk(ctx context.Context, a *attack) error {
	header, err := wire.Append(nil, kindFetch, body{})
	if err != nil {
		return err
	}
	list, err := a.openMany(ctx, endpoint.Bulk, header[:1])
	if err != nil && len(list) == 0 {
		return err
	}
	a.wait(ctx)
	return nil
}

// header is a frame's, of a body that may never come.
func header(k wire.Kind, bytes uint32) []byte {
	b, _ := wire.AppendBody(nil, k, nil) // an empty body encodes
	binary.LittleEndian.PutUint32(b[8:], bytes)
	return b[:12]
}

func bulkHeaders(ctx context.Context, a *attack) error {
	e, _, err := a.peer()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 4*a.Hold)
	defer cancel()
	const conns, streams = 10, 64
	junk := make([]byte, 64<<10)
	err = each(ctx, conns, conns, func(int) error {
		c, err := a.dial(ctx, e, endpoint.Bulk)
		if err != nil {
			return err
		}
		return each(ctx, streams, streams, func(i int) error {
			s, err := c.Open(ctx)
			if err != nil {
				return nil
			}
			_, _ = s.Write(header([]wire.Kind{kindPush, kindWhole, kindFetch, kindPush}[i%4], []uint32{64 << 20, 64 << 20, 64 << 20, 1<<32 - 1}[i%4]))
			_ = s.SetWriteDeadline(time.Now().Add(a.Hold))
			for range 64 {
				n, err := s.Write(junk)
				a.count("KiB sent", n>>10)
				if err != nil {
					a.count("stopped", 1)
					return nil
				}
			}
			return nil
		})
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	a.wait(ctx)
	return err
}

// key is what a good request of the job's first rank would name.
func (a *attack) key(ctx context.Context) (transfer.Key, facts, error) {
	job, err := a.training(ctx)
	if err != nil {
		return transfer.Key{}, job, err
	}
	id, err := a.identity(mallory)
	if err != nil {
		return transfer.Key{}, job, err
	}
	return transfer.Key{Cluster: id.Cluster, Job: job.ID, Epoch: job.Epoch, Part: replica.OfGroup(0), Generation: job.Committed, Root: replica.Digest{1}, Rank: 0, Incarnation: job.Ranks[0].Incarnation}, job, nil
}

// refusedRequest sends one request, and wants words or a hang-up, but no part.
func (a *attack) refusedRequest(ctx context.Context, e *endpoint.Endpoint, name string, k wire.Kind, request any) error {
	s, err := a.open(ctx, e, endpoint.Bulk)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer s.Conn().Close("")
	if err := wire.Write(s, k, request); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	_ = s.SetReadDeadline(time.Now().Add(15 * time.Second))
	kind, b, err := wire.Read(s, wire.MaxBody)
	switch {
	case err == nil && kind == kindError:
		a.count("refused by name", 1)
		var r map[int]any
		if err := wire.Unmarshal(b, &r); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if text, _ := r[2].(string); strings.TrimSpace(text) == "" {
			return fmt.Errorf("%s: refused without a word", name)
		}
		return nil
	case err == nil:
		return fmt.Errorf("%s: answered with a frame of kind %d", name, kind)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || endpoint.IsAbort(err):
		a.count("hung up", 1)
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}

func bulkUnknown(ctx context.Context, a *attack) error {
	e, _, err := a.peer()
	if err != nil {
		return err
	}
	good, job, err := a.key(ctx)
	if err != nil {
		return err
	}
	list := map[string]transfer.Key{"a part of others": good}
	with := func(name string, change func(*transfer.Key)) { k := good; change(&k); list[name] = k }
	with("another cluster", func(k *transfer.Key) { k.Cluster[0] ^= 1 })
	with("another job", func(k *transfer.Key) { k.Job[0] ^= 1 })
	with("another era", func(k *transfer.Key) { k.Era = 1 << 20 })
	with("a later epoch", func(k *transfer.Key) { k.Epoch += 1000 })
	with("an older epoch", func(k *transfer.Key) { k.Epoch-- })
	with("a rank beyond the world", func(k *transfer.Key) { k.Rank = replica.Rank(len(job.Ranks)) })
	with("the last rank that there is", func(k *transfer.Key) { k.Rank = 1<<32 - 1 })
	with("another incarnation", func(k *transfer.Key) { k.Incarnation++ })
	with("a group that there is not", func(k *transfer.Key) { k.Part = replica.OfGroup(1<<32 - 1) })
	with("a part of no kind", func(k *transfer.Key) { k.Part.Kind = 200 })
	with("a private part of others", func(k *transfer.Key) { k.Part = replica.OfRank(1) })
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if err := a.refusedRequest(ctx, e, name, kindFetch, list[name]); err != nil {
			return err
		}
	}
	return a.refusedRequest(ctx, e, "a request of 4 KiB and more", kindFetch, body{1: strings.Repeat("x", 5<<10)})
}

func bulkManifests(ctx context.Context, a *attack) error {
	e, _, err := a.peer()
	if err != nil {
		return err
	}
	k, job, err := a.key(ctx)
	if err != nil {
		return err
	}
	k.Part = replica.OfRank(0)
	good := replica.Manifest{Cluster: k.Cluster, Job: k.Job, Part: k.Part, Generation: k.Generation, Rank: 0, Incarnation: job.Ranks[0].Incarnation,
		Bytes: 1 << 20, ChunkBytes: 1 << 20, Chunks: []replica.Digest{{1}}}
	seal := func(m replica.Manifest) (transfer.Key, replica.Manifest) { // a root that is the manifest's own
		m.Root = xxh3.Hash128(m.RootInput()).Bytes()
		k := k
		k.Root = m.Root
		return k, m
	}
	for name, change := range map[string]func(*replica.Manifest){
		"a part of others":        func(*replica.Manifest) {},
		"2^63 bytes":              func(m *replica.Manifest) { m.Bytes = 1 << 63 },
		"chunks of no bytes":      func(m *replica.Manifest) { m.ChunkBytes = 0 },
		"chunks of 4 GiB":         func(m *replica.Manifest) { m.ChunkBytes = 1<<32 - 1 },
		"fewer chunks than bytes": func(m *replica.Manifest) { m.Bytes = 1 << 40 },
		"100,000 chunks of one byte": func(m *replica.Manifest) {
			m.ChunkBytes, m.Bytes, m.Chunks = 1, 100_000, make([]replica.Digest, 100_000)
		},
		"100,000 regions":   func(m *replica.Manifest) { m.Regions = make([]replica.Region, 100_000) },
		"100,000 condemned": func(m *replica.Manifest) { m.Condemned = make([]replica.Generation, 100_000) },
	} {
		m := good
		change(&m)
		key, m := seal(m)
		for _, kind := range []wire.Kind{kindPush, kindWhole} {
			if err := a.refusedRequest(ctx, e, name, kind, body{1: key, 2: m}); err != nil {
				return err
			}
		}
	}
	_, m := seal(good)
	k.Root = replica.Digest{9}
	return a.refusedRequest(ctx, e, "a root that is not the manifest's", kindPush, body{1: k, 2: m})
}

func bulkGarbage(ctx context.Context, a *attack) error {
	e, _, err := a.peer()
	if err != nil {
		return err
	}
	open := func(ctx context.Context) (*endpoint.Stream, error) { return a.open(ctx, e, endpoint.Bulk) }
	whole := broken()
	for name := range whole { // a stream of this class may be quiet for 30 s
		if strings.HasPrefix(name, "cut") || name == "one byte" {
			delete(whole, name)
		}
	}
	if err := a.cases(ctx, whole, open, 10*time.Second); err != nil {
		return err
	}
	cut := header(kindPush, 1<<20)
	conn, err := a.dial(ctx, e, endpoint.Bulk)
	if err != nil {
		return err
	}
	return a.until(ctx, func(i int) error {
		s, err := conn.Open(ctx)
		if err != nil {
			return err
		}
		b := make([]byte, 4096)
		_, _ = rand.Read(b) // never fails
		if i%2 == 0 {
			copy(b, cut)
		}
		_, _ = s.Write(b)
		a.count("streams", 1)
		if i%4 < 2 {
			s.Abort(endpoint.CodeDone)
			return nil
		}
		_ = s.Close() // the victim has refused it by now, or will
		return nil
	})
}
