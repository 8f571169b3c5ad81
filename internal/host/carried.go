package host

import (
	"context"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/durable/kept"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/host/writer"
	"github.com/replicad/replicad/replica"
)

// What launchers here give their job to carry in the durable tier: which it is knows package carried.

// carrying is a store that sees to the files of a run before it writes a part. Each node with ranks writes some part of each generation, and the commit
// comes behind all of them: so it names the files, whichever node has them.
type carrying struct {
	Tier
	h   *Host
	tar *kept.Tar
}

func (c carrying) Write(ctx context.Context, a tier.Attempt, object string, frozen *tier.Part, parts ...tier.Part) (replica.Stored, error) {
	there, failed := c.keep(ctx, a)
	if failed == nil {
		c.h.Post(carriedNow{a.Job, there, nil})
	}
	s, err := c.Tier.Write(ctx, a, object, frozen, parts...)
	if failed != nil && err == nil { // else the write's own error is what is to be known
		c.h.Post(carriedNow{a.Job, "", failed})
	}
	return s, err
}

// keepPatience bounds how long a part waits for the files: a writer gives a store up that takes nothing of a part for half a minute, and files cost no
// generation.
const keepPatience = 10 * time.Second

func (c carrying) keep(ctx context.Context, a tier.Attempt) (there string, err error) {
	brief, cancel := context.WithTimeout(ctx, keepPatience)
	defer cancel()
	if there, err = c.KeepFiles(brief, a, c.tar); err != nil && brief.Err() != nil {
		err = fmt.Errorf("the store took longer than %v over these files: %w", keepPatience, err)
	}
	return there, err
}

// carriedNow is what a job's run carries: SHA-256 of its tar, or why that is not known.
type carriedNow struct {
	job   replica.JobID
	there string
	err   error
}

// storeOf is where parts of a job are written.
func (h *Host) storeOf(id replica.JobID) writer.Store {
	if lj := h.jobs[id]; lj != nil && lj.carried.Tar() != nil {
		return carrying{h.store, h, lj.carried.Tar()}
	}
	return h.store
}

func (h *Host) carries(ev carriedNow) {
	lj := h.jobs[ev.job]
	if lj == nil {
		return
	}
	texts, log := lj.carried.Put(ev.there, ev.err)
	if log != "" {
		h.log.Note2(lj.job, "keep_file", log)
	}
	for peer, text := range texts {
		if text != log {
			h.log.Note2(lj.job, "keep_file", text)
		}
		if l := h.launchers[peer]; l != nil {
			l.note(lj.job.Epoch, text)
		}
	}
}

// offers gives a job what its launcher has for it.
func (l *launcher) offers(h *Host, lj *localJob) {
	if l.kept == nil {
		return
	}
	if text := lj.carried.Offer(l.peer.ID(), l.kept); text != "" {
		l.note(lj.job.Epoch, text)
	}
	l.kept = nil
}

// withdraws lets go of what no job has taken.
func (l *launcher) withdraws() {
	if l.kept != nil {
		l.kept.Close()
		l.kept = nil
	}
}

// sayUnkept tells a launcher that ends when its files were not kept.
func (h *Host) sayUnkept(l *launcher, job *replica.Job) {
	if lj := h.jobs[job.ID]; lj != nil && lj.carried.Waits(l.peer.ID()) && !l.hello.Spare {
		l.note(job.Epoch, "--keep-file: this daemon has written no part of a durable generation of the job so far, and the files go with the first: where none follows, they are not kept")
	}
}

// unkeepable says why a launcher's files could not be kept; empty: they can.
func (h *Host) unkeepable(l *launcher) string {
	every := h.requestFor(l, 0).Options.DurableEvery
	if l.kept == nil || h.store != nil && (h.cfg.HasTier() || every != 0) {
		return ""
	}
	return "--keep-file: this node has no durable tier to keep files in: set durable_dir or durable in its configuration, or leave the flag out"
}
