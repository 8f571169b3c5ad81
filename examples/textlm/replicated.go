package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"

	"github.com/replicad/replicad/examples/textlm/model"
	"github.com/replicad/replicad/libreplicad"
	"github.com/replicad/replicad/replica"
)

// replicated trains one rank of a job that `replicad run` started, in whose environment it finds its place.
func replicated(ctx context.Context, o options, stdout io.Writer) (err error) {
	place, err := placeFromEnvironment(o.shards)
	if err != nil {
		return err
	}
	out := newEvents(stdout, new(sync.Mutex), place.rank)
	out.emit(event{Event: "start"})

	// Live state lies in memory that replicad may read behind the program's back.
	memory := map[string]*libreplicad.Memory{}
	m, err := newModel(o, place.rank, place.world, func(name string, bytes int) ([]byte, error) {
		b, err := libreplicad.Alloc(bytes)
		if err != nil {
			return nil, err
		}
		memory[name] = b
		return b.Bytes(), nil
	})
	if err != nil {
		return err
	}
	session, err := libreplicad.Open(ctx, libreplicad.Options{Rank: place.rank, World: uint32(place.world), Group: replica.GroupID(place.group)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	if err := session.Register(regions(m, memory)...); err != nil {
		return err
	}
	if err := session.Attach(ctx); err != nil {
		return err
	}
	t := &trainer{Rank: session, model: m, rank: place.rank, world: place.world, host: place.host, opt: o, out: out}
	t.begin = func(ctx context.Context) (begun, own bool, err error) {
		from, err := session.From(ctx)
		if err != nil || from == nil {
			return false, false, err
		}
		own = from.Seals != nil && *from.Seals != replica.Rank(place.rank)
		return true, own, begin(ctx, &from.Origin, m, place, o.shards, own)
	}
	return t.train(ctx)
}

// regions tells replicad what the state is made of and when each piece may change.
func regions(m *model.Model, memory map[string]*libreplicad.Memory) (list []libreplicad.Region) {
	types := map[model.DType]replica.DType{model.U8: replica.U8, model.F32: replica.F32, model.U64: replica.U64}
	kinds := map[model.Kind]replica.Kind{model.Replicated: replica.Replicated, model.Private: replica.Private}
	classes := map[model.Class]replica.Class{model.Window: replica.Window, model.Volatile: replica.Volatile, model.Frozen: replica.Frozen}
	for _, r := range m.Regions {
		list = append(list, libreplicad.Region{Name: r.Name, DType: types[r.DType], Kind: kinds[r.Kind], Class: classes[r.Class], Shape: r.Shape, Data: memory[r.Name]})
	}
	return list
}

// place is which rank this process is.
type place struct {
	rank, world, group int
	host               string
}

func placeFromEnvironment(shards int) (p place, err error) {
	number := func(name string) int {
		v, e := strconv.Atoi(os.Getenv(name))
		if e != nil || v < 0 {
			err = errors.Join(err, fmt.Errorf("%s=%q: want a number; start ranks with `replicad run`, or train without replicad with --baseline", name, os.Getenv(name)))
		}
		return v
	}
	p = place{rank: number("REPLICAD_RANK"), world: number("REPLICAD_WORLD"), group: number("REPLICAD_GROUP"), host: os.Getenv("REPLICAD_HOST")}
	if p.host == "" {
		p.host = "127.0.0.1"
	}
	if err == nil && (p.world%shards != 0 || p.rank >= p.world || p.group != p.rank%shards) {
		err = fmt.Errorf("rank %d of %d in group %d: with --shards %d rank r holds shard r %% %d, so --world must be a multiple of it and --groups 0,...,%d again and again", p.rank, p.world, p.group, shards, shards, shards-1)
	}
	return p, err
}
