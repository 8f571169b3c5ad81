package host

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/host/writer"
	"github.com/replicad/replicad/replica"
)

// laying lays down in the spool what this node holds of what is committed and not in the store, before its daemon ends. It belongs to the goroutine of
// Leave; what it starts runs beside that.
type laying struct {
	h      *Host
	down   map[writer.Laid]bool  // what lies in the spool
	failed map[writer.Laid]error // what could not be laid there
	mine   []*writer.Write       // that were laid down here: a durable write that is under way has the others
	run    *layRun               // nil: none is under way
}

// layRun is one round. What it found is read once done is closed.
type layRun struct {
	behind
	errs   []error // of each write of behind
	cancel context.CancelFunc
	done   chan struct{}
}

// behind asks the host what is to be laid down, and holds it.
type behind struct {
	known  map[writer.Laid]bool
	there  []writer.Laid
	writes []*writer.Write
	failed map[writer.Laid]error
}

func (b *behind) serve(h *Host) {
	b.failed = map[writer.Laid]error{}
	for _, j := range h.jobs.all {
		is := h.writer.Behind(time.Now(), j.View(), func(l writer.Laid) bool { return b.known[l] })
		b.there, b.writes = append(b.there, is.There...), append(b.writes, is.Writes...)
		maps.Copy(b.failed, is.Failed)
	}
}

func newLaying(h *Host) *laying {
	return &laying{h: h, down: map[writer.Laid]bool{}, failed: map[writer.Laid]error{}}
}

// begin begins a round, unless one is under way.
func (l *laying) begin(ctx context.Context) {
	if l.run != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &layRun{behind: behind{known: maps.Clone(l.down)}, cancel: cancel, done: make(chan struct{})}
	l.run = r
	go func() { // ends with ctx, and take or end wait for it
		defer close(r.done)
		if !l.h.ask(ctx, &r.behind) {
			r.behind = behind{}
			return
		}
		for _, w := range r.writes {
			r.errs = append(r.errs, w.Lay(ctx, l.h.hands.Spool))
		}
	}()
}

// under tells whether a round is under way.
func (l *laying) under() bool { return l.run != nil }

// done is closed when the round under way has ended.
func (l *laying) done() <-chan struct{} {
	if l.run == nil {
		return nil
	}
	return l.run.done
}

// take takes in what a round has laid down.
func (l *laying) take() {
	r := l.run
	if r == nil {
		return
	}
	<-r.done
	r.cancel()
	l.run = nil
	for _, is := range r.there {
		l.down[is] = true
	}
	maps.Copy(l.failed, r.failed)
	for i, w := range r.writes {
		if r.errs[i] != nil {
			l.failed[w.Is()] = r.errs[i]
			continue
		}
		delete(l.failed, w.Is())
		l.down[w.Is()], l.mine = true, append(l.mine, w)
	}
}

// end ends the round under way.
func (l *laying) end() {
	if l.run != nil {
		l.run.cancel()
		l.take()
	}
}

// drop removes what was laid down here: the leader knows who has it, or it is in the store.
func (l *laying) drop(ctx context.Context) {
	l.end()
	for _, w := range l.mine {
		w.Drop(ctx)
	}
}

// without has the daemon end without a leader's consent, and says what is not in the store by then, as far as is known here, and where it is.
func (l *laying) without(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveQuiet) // a host that hangs must not hold up the end
	defer cancel()
	p := parting{down: l.down, failed: l.failed}
	if !l.h.ask(ctx, &p) || len(p.owed) == 0 {
		return ""
	}
	return "; " + strings.Join(p.owed, "; ") + memoryHas
}

const memoryHas = "; memory has that for as long as the keepers run: start the daemons again"

// parting has the daemon end, whatever a leader says. owed says what is not in the store.
type parting struct {
	down   map[writer.Laid]bool
	failed map[writer.Laid]error
	owed   []string
}

func (p *parting) serve(h *Host) {
	for _, j := range h.jobs.all {
		if !j.Job.Undurable() {
			continue
		}
		text := p.of(j.Job)
		p.owed = append(p.owed, text)
		h.launchers.Of(j).Note("warning: the daemon of node " + string(h.self.Name) + " was asked to end, and ends; " + text + memoryHas)
	}
	slices.Sort(p.owed)
	if !h.informed {
		p.owed = []string{"NOT on disk: what jobs have committed, unless it was written before (no leader has told this daemon of any)"}
	}
	h.leaving.goes = true
	h.send(control.Leaving{Goes: true})
}

// of says where what a job has committed is.
func (p *parting) of(job *replica.Job) string {
	step := fmt.Sprintf("step %d of job %s", job.Committed.Step, job.Name)
	var lie []string
	why := ""
	for _, part := range job.Parts {
		is := writer.Laid{Job: job.ID, Generation: job.Committed, Part: part.Part}
		if err := p.failed[is]; err != nil && why == "" {
			why = fmt.Sprintf(" (%v: %v)", part.Part, err)
		}
		if p.down[is] {
			lie = append(lie, part.Part.String())
		}
	}
	switch {
	case len(lie) == 0 || why != "":
		return "NOT on disk: " + step + why
	case len(lie) == len(job.Parts):
		return "not in the store, and whole in this node's spool: " + step + ", which replicad run --resume finishes"
	}
	return fmt.Sprintf("not in the store: %s; this node's spool has %s of it, and replicad run --resume finishes it with what the spools of the other nodes have", step, strings.Join(lie, ", "))
}
