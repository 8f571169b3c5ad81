package launchers

import (
	"context"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/durable/kept"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/replica"
)

// What launchers give their job to carry in the durable tier. Package carried decides which files those are.

// Store is where parts are written and the files of a run are kept: the durable tier.
type Store interface {
	Write(ctx context.Context, a tier.Attempt, object string, frozen *tier.Part, parts ...tier.Part) (replica.Stored, error)
	KeepFiles(ctx context.Context, a tier.Attempt, tar *kept.Tar) (there string, err error)
}

// Kept is what a job's run carries: SHA-256 of its tar, or why that is not known.
type Kept struct {
	Job   replica.JobID
	There string
	Err   error
}

// carrying is a store that sees to the files of a run before it writes a part. Each node with ranks writes some part of each generation,
// and the commit comes behind all of them: so it names the files, whichever node has them.
type carrying struct {
	Store
	tar  *kept.Tar
	post func(Kept)
}

// Store is where parts of the job are written. What becomes of its files goes to post, on the goroutine that writes; the owner hands it
// to Keeps.
func (b *Book) Store(to Store, post func(Kept)) Store {
	if b.carried.Tar() == nil {
		return to
	}
	return carrying{to, b.carried.Tar(), post}
}

func (c carrying) Write(ctx context.Context, a tier.Attempt, object string, frozen *tier.Part, parts ...tier.Part) (replica.Stored, error) {
	there, failed := c.keep(ctx, a)
	if failed == nil {
		c.post(Kept{a.Job, there, nil})
	}
	s, err := c.Store.Write(ctx, a, object, frozen, parts...)
	if failed != nil && err == nil { // else the write's own error is what is to be known
		c.post(Kept{a.Job, "", failed})
	}
	return s, err
}

// keepPatience bounds how long a part waits for the files. A writer gives a store up that takes nothing of a part for half a minute, and
// files cost no generation.
const keepPatience = 10 * time.Second

func (c carrying) keep(ctx context.Context, a tier.Attempt) (there string, err error) {
	brief, cancel := context.WithTimeout(ctx, keepPatience)
	defer cancel()
	if there, err = c.KeepFiles(brief, a, c.tar); err != nil && brief.Err() != nil {
		err = fmt.Errorf("the store took longer than %v over these files: %w", keepPatience, err)
	}
	return there, err
}

// Keeps takes what became of the job's files, and notifies the launchers that gave them.
func (v View) Keeps(k Kept) {
	job := v.job.Record()
	texts, log := v.job.Launched().carried.Put(k.There, k.Err)
	if log != "" {
		v.pool.log.Note2(job, "keep_file", log)
	}
	for peer, text := range texts {
		if text != log {
			v.pool.log.Note2(job, "keep_file", text)
		}
		if l := v.pool.all[peer]; l != nil {
			l.note(job.Epoch, text)
		}
	}
}

// take gives the job what its launcher has for it.
func (v View) take(l *launcher) {
	if l.kept == nil {
		return
	}
	if text := v.job.Launched().carried.Offer(l.peer.ID(), l.kept); text != "" {
		l.note(v.job.Record().Epoch, text)
	}
	l.kept = nil
}

// unkept notifies a launcher that ends when its files were not kept.
func (v View) unkept(l *launcher) {
	if v.job.Launched().carried.Waits(l.peer.ID()) && !l.hello.Spare {
		l.note(v.job.Record().Epoch, "--keep-file: this daemon has written no part of a durable generation of the job so far, and "+
			"the files go with the first: "+
			"where none follows, they are not kept")
	}
}

// unkeepable is why a launcher's files could not be kept; empty: they can.
func (p *Pool) unkeepable(l *launcher) string {
	every := p.request(l, 0).Options.DurableEvery
	if l.kept == nil || p.owner.HasStore() && (p.cfg.HasTier() || every != 0) {
		return ""
	}
	return "--keep-file: this node has no durable tier to keep files in: set durable_dir or durable in its configuration, or leave " +
		"the flag out"
}
