package keep

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// LeastGrace is longer than a write and any request of it take: what no COMMIT names and is younger may be on its way to one.
const LeastGrace = time.Hour

// Swept is what Sweep did.
type Swept struct {
	Finished []replica.Generation // deletions that somebody had broken off
	Objects  []string             // that no COMMIT names
	Uploads  int                  // that were never completed
}

// Sweep finishes deletions, removes pins that have ended, and what no COMMIT names and is older than the grace, by the store's own times:
// objects of attempts that failed, frozen parts, unfinished uploads. So go pins and records of reads of what is gone. Beside a live writer
// the grace must be LeastGrace or longer. Where a COMMIT or an index cannot be read, what it might name stays.
func (c *Keeper) Sweep(ctx context.Context, r find.Run, grace time.Duration) (s Swept, err error) {
	if s, err = c.sweep(ctx, r, grace); err != nil {
		return s, fmt.Errorf("sweep run %s of job %s: %w", r.Run, r.Job, err)
	}
	return s, nil
}

func (c *Keeper) sweep(ctx context.Context, r find.Run, grace time.Duration) (s Swept, err error) {
	prefix := r.Prefix()
	var all []store.Info
	err = c.objects.List(ctx, prefix, "", func(info store.Info) error {
		all = append(all, info)
		return nil
	})
	if err != nil {
		return s, err
	}
	uploads, err := c.objects.Unfinished(ctx, prefix)
	if err != nil {
		return s, err
	}
	var loose []store.Info
	for _, info := range all {
		if n := format.ParseName(strings.TrimPrefix(info.Key, prefix)); n.Kind == format.TrashKind {
			if err := c.Drop(ctx, r, n.Generation, "a deletion was broken off"); errors.Is(err, ErrPinned) {
				loose = append(loose, info) // who put the entry died before he took it back
			} else if err != nil {
				return s, err
			}
			s.Finished = append(s.Finished, n.Generation)
		}
	}
	ended, err := c.ended(ctx, r, all)
	if err != nil {
		return s, err
	}
	loose = append(loose, ended...)
	named, attempts, unknown, err := c.named(ctx, r, all)
	if err != nil {
		return s, err
	}
	has := filled(r, all)
	for _, info := range all {
		name := strings.TrimPrefix(info.Key, prefix)
		n := format.ParseName(name)
		of := n.Kind == format.ShardKind || n.Kind == format.IndexKind || n.Kind == format.SharedKind && !unknown && superseded(named, n)
		orphan := (n.Kind == format.ReadKind || n.Kind == format.PinKind) && !has[n.Generation]
		if !named[name] && !attempts[n.Generation] && of || orphan {
			loose = append(loose, info)
		}
	}
	if len(loose)+len(uploads) == 0 {
		return s, nil
	}
	now, err := c.StoreTime(ctx, r, "sweep", fmt.Sprintf("%d objects and %d uploads that no commit names", len(loose), len(uploads)))
	if err != nil {
		return s, err
	}
	for _, info := range loose {
		if now.Sub(info.Modified) < grace || info.Modified.IsZero() {
			continue
		}
		if err := c.objects.Remove(ctx, info.Key); err != nil {
			return s, err
		}
		s.Objects = append(s.Objects, info.Key)
	}
	for _, u := range uploads {
		if now.Sub(u.Began) < grace {
			continue
		}
		if err := c.objects.Abort(ctx, u); err != nil {
			return s, err
		}
		s.Uploads++
	}
	return s, nil
}

// ended lists the pins with an end, each as if it had been written then. What is older than a grace had a reader who died, or somebody
// pinned for some time.
func (c *Keeper) ended(ctx context.Context, r find.Run, all []store.Info) (list []store.Info, err error) {
	for _, info := range all {
		n := format.ParseName(strings.TrimPrefix(info.Key, r.Prefix()))
		if n.Kind != format.PinKind {
			continue
		}
		b, _, err := c.objects.Get(ctx, info.Key)
		if errors.Is(err, store.ErrAbsent) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if p, err := format.ParsePin(b, n); err == nil && p.Until > 0 && !info.Modified.IsZero() {
			info.Modified = info.Modified.Add(find.Length(p))
			list = append(list, info)
		}
	}
	return list, nil
}

// superseded reports whether commits name another frozen part of the same group. The first one of a group may be waiting for its commit,
// and is written once for all tries.
func superseded(named map[string]bool, n format.Name) bool {
	for key := range named {
		if o := format.ParseName(key); o.Kind == format.SharedKind && o.Group == n.Group && (o.Root != n.Root || o.Seal != n.Seal) {
			return true
		}
	}
	return false
}

// filled tells of which generations more is there than words about them: a COMMIT, files, or the entry of a deletion.
func filled(r find.Run, all []store.Info) map[replica.Generation]bool {
	has := make(map[replica.Generation]bool)
	for _, info := range all {
		switch n := format.ParseName(strings.TrimPrefix(info.Key, r.Prefix())); n.Kind {
		case format.CommitKind, format.ShardKind, format.IndexKind, format.TrashKind:
			has[n.Generation] = true
		case format.Stray, format.ClaimKind, format.SharedKind, format.KeptKind, format.PinKind, format.ReadKind, format.RunKind,
			format.SummaryKind:
		}
	}
	return has
}

// named lists what COMMITs name. Of generations in attempts nothing may go, since their COMMIT or index cannot be read; unknown: so it is
// with some generation, whose frozen parts nobody knows.
func (c *Keeper) named(ctx context.Context, r find.Run, all []store.Info) (named map[string]bool, attempts map[replica.Generation]bool,
	unknown bool, err error) {
	named, attempts = make(map[string]bool), make(map[replica.Generation]bool)
	prefix := r.Prefix()
	has := filled(r, all)
	for _, info := range all { // who has read it has seen its COMMIT: where that is gone and files are there, somebody may bring it back
		if n := format.ParseName(strings.TrimPrefix(info.Key, prefix)); n.Kind == format.ReadKind && has[n.Generation] {
			attempts[n.Generation], unknown = true, true
		}
	}
	for _, info := range all {
		if n := format.ParseName(strings.TrimPrefix(info.Key, prefix)); n.Kind == format.CommitKind {
			delete(attempts, n.Generation)
		}
	}
	unknown = unknown && len(attempts) > 0
	for _, info := range all {
		n := format.ParseName(strings.TrimPrefix(info.Key, prefix))
		if n.Kind != format.CommitKind {
			continue
		}
		com, err := c.find.ReadCommit(ctx, r, n.Generation)
		if errors.Is(err, store.ErrAbsent) {
			continue // its deletion was finished just now
		}
		var x *format.Index
		switch {
		case err == nil && com.Sealed != nil:
			x = &format.Index{Files: com.Sealed.Files}
		case err == nil:
			var b []byte
			if b, _, err = c.objects.Get(ctx, r.Under(com.Index.Key)); err == nil {
				x, err = c.find.ParseIndex(b, com)
			}
		}
		if ferr := damage.Fatal(err); ferr != nil {
			return nil, nil, false, ferr
		}
		if err != nil {
			attempts[n.Generation] = true
			unknown = unknown || com == nil
		}
		if com != nil {
			named[com.Index.Key] = true
			for _, key := range com.Frozen {
				named[key] = true
			}
		}
		if x != nil {
			for _, f := range x.Files {
				named[f.Key] = true
			}
		}
	}
	return named, attempts, unknown, nil
}
