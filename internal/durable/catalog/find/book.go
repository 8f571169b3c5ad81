package find

import (
	"context"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/objects"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// book is what listing says of one run.
type book struct {
	place   format.Place
	commits map[replica.Generation]store.Info
	claims  []format.Name
	pins    map[replica.Generation][]Keeper
	reads   map[replica.Generation]format.Name // the newest of each
	records []format.Name                      // all reads
	marked  map[replica.Generation]time.Time   // when the newest read was noted, by the store's times
	trash   map[replica.Generation]bool
	loose   map[replica.Generation]int // objects behind the newest commit, by generation
}

// adds reports whether a list has a commit that an earlier one lacks.
func (b *book) adds(was *book) bool {
	for g := range b.commits {
		if _, had := was.commits[g]; !had {
			return true
		}
	}
	return false
}

// book reads what listing says of the first run behind from, in three ranges of keys. next is where the run after it begins, empty where
// there is none.
func (c *Finder) book(ctx context.Context, job, from string) (b *book, next string, err error) {
	b = &book{commits: make(map[replica.Generation]store.Info), pins: make(map[replica.Generation][]Keeper),
		reads: make(map[replica.Generation]format.Name), marked: make(map[replica.Generation]time.Time),
		trash: make(map[replica.Generation]bool), loose: make(map[replica.Generation]int)}
	newest := ""
	err = c.objects.List(ctx, job+"/"+format.RunsBegin, from, func(info store.Info) error {
		p, name, ok := Split(info.Key)
		switch {
		case !ok:
			return nil // nothing of ours
		case b.place == (format.Place{}):
			b.place = p
		case p != b.place:
			return objects.ErrStop
		}
		if name >= format.FrozenPrefix {
			return objects.ErrStop
		}
		if n := format.ParseName(name); n.Kind == format.CommitKind {
			b.commits[n.Generation], newest = info, max(newest, format.StepName(n.Generation))
		} else if n.Kind == format.ClaimKind {
			b.claims = append(b.claims, n)
		}
		return nil
	})
	if err != nil || b.place == (format.Place{}) {
		return nil, "", err
	}
	prefix := b.place.Prefix()
	err = c.objects.List(ctx, prefix, prefix+format.PinPrefix[:1], func(info store.Info) error {
		name := strings.TrimPrefix(info.Key, prefix)
		if name >= format.StepPrefix {
			return objects.ErrStop
		}
		b.note(format.ParseName(name), info)
		return nil
	})
	if err != nil {
		return nil, "", err
	}
	err = c.objects.List(ctx, job+"/"+format.RunsBegin, prefix+max(newest+"0", format.StepPrefix), func(info store.Info) error {
		p, name, ok := Split(info.Key)
		if !ok {
			return nil
		}
		if p != b.place {
			next = after(b.place)
			return objects.ErrStop
		}
		b.note(format.ParseName(name), info)
		return nil
	})
	return b, next, err
}

// note takes one key of a run.
func (b *book) note(n format.Name, info store.Info) {
	switch n.Kind {
	case format.PinKind:
		b.pins[n.Generation] = append(b.pins[n.Generation], Keeper{n.Who, info.Modified})
	case format.ReadKind:
		b.records = append(b.records, n)
		if was, ok := b.reads[n.Generation]; !ok || n.Outweighs(was) {
			b.reads[n.Generation], b.marked[n.Generation] = n, info.Modified
		}
	case format.TrashKind:
		b.trash[n.Generation] = true
	case format.ShardKind, format.IndexKind:
		if _, committed := b.commits[n.Generation]; !committed {
			b.loose[n.Generation]++
		}
	case format.Stray, format.CommitKind, format.ClaimKind, format.SharedKind, format.KeptKind, format.RunKind, format.SummaryKind:
	}
}
