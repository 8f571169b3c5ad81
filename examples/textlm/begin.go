package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/replicad/replicad/examples/textlm/model"
	"github.com/replicad/replicad/replica"
)

// begin puts the generation of another run, which this job began with, into the model. The world may be another one: a shard's state is that of its
// replica group, and the place in the text is the same on all ranks. Random numbers are a rank's own, so one that was not there keeps the generator that
// model.New seeded for it. Another number of shards is refused: their hidden units would be others. own: another rank reads what the group has in common.
func begin(ctx context.Context, from *replica.Origin, m *model.Model, at place, shards int, own bool) error {
	s, err := openSource(ctx, from)
	if err != nil {
		return fmt.Errorf("begin with %v: %w", from, err)
	}
	defer s.close()
	if err := fill(s, m.Regions, at, shards, own); err != nil {
		return fmt.Errorf("begin with %v: %w", from, err)
	}
	return nil
}

// fill reads every region that the rank has to, by name. Nothing is read where anything does not fit.
func fill(s *source, regions []model.Region, at place, shards int, own bool) error {
	world := int(s.Commit.Layout.World)
	if groups := s.Commit.Layout.NumGroups(); groups != shards {
		return fmt.Errorf("it has %d replica groups, and --shards is %d: want as many", groups, shards)
	}
	there := map[string]tensor{}
	for _, t := range s.Index.Tensors {
		there[t.Name] = t
	}
	var list []piece
	for _, r := range regions {
		t, ok := there[r.Name]
		delete(there, r.Name)
		if r.Name == "rng" && at.rank >= world {
			continue
		}
		index, private := at.group, r.Kind == model.Private
		if private {
			index = at.rank % world
		}
		i := slices.IndexFunc(t.Pieces, func(p piece) bool { return p.Index == index })
		if !ok || i < 0 || private != (t.Class == "private") || !slices.Equal(t.Pieces[i].Shape, r.Shape) || t.Pieces[i].Bytes != len(r.Data) {
			return fmt.Errorf("region %q of %d bytes and shape %v is not there, or another one is: %s %+v: want the same --state-mb", r.Name, len(r.Data), r.Shape, t.Class, t.Pieces)
		}
		p := t.Pieces[i]
		p.name, p.into = t.Name, r.Data
		if p.part = "group"; t.Class == "private" || t.Class == "frozen" {
			p.part = t.Class
		}
		if private || !own {
			list = append(list, p)
		}
	}
	for name := range there {
		return fmt.Errorf("region %q is there alone: want the same --state-mb", name)
	}
	for _, p := range list {
		if err := s.read(p); err != nil {
			return fmt.Errorf("region %q: %w", p.name, err)
		}
	}
	return nil
}
