package remarks

import (
	"math"
	"slices"

	"github.com/replicad/replicad/replica"
)

// maxPoints bounds what is remembered of one metric. Where there are more, every second one goes: a durable write is of a step that may lie some
// way back, and the newer the step the finer is what is known of it.
const maxPoints = 32

// Book has a page for each rank here that has said something, and one for launchers. The zero value is empty.
type Book struct {
	pages map[replica.Rank]*page
	epoch replica.Epoch // the newest that was seen open
	sent  sent
}

// page is what one of them says.
type page struct {
	by     replica.Incarnation
	texts  []replica.Remark
	points map[series][]replica.Remark // by step, the newest last
}

type series struct {
	kind replica.RemarkKind
	name string
}

// sent is what the leader was told last; number 0: nothing.
type sent struct {
	number  uint64
	remarks []replica.Remark
}

// Say takes all that a rank says now, by a process of it. Metrics of earlier steps are remembered.
func (b *Book) Say(rank replica.Rank, by replica.Incarnation, list []replica.Remark) {
	p := b.pages[rank]
	if p == nil {
		p = &page{points: map[series][]replica.Remark{}}
		if b.pages == nil {
			b.pages = map[replica.Rank]*page{}
		}
		b.pages[rank] = p
	}
	if p.by > by {
		return // a process that has lost its rank
	}
	p.by, p.texts = by, nil
	for _, r := range list {
		r.Rank = rank
		if r.Kind.Stepped() {
			p.point(r)
		} else {
			p.texts = append(p.texts, r)
		}
	}
}

// point takes a number of a step. What is known of that step and of later ones was of a future that is gone.
func (p *page) point(r replica.Remark) {
	of := series{r.Kind, r.Name}
	list := before(p.points[of], r.Step)
	if len(list) == 0 && len(p.points) >= 2*replica.MaxRemarks && p.points[of] == nil {
		return // each process of the rank may say other names
	}
	if list = append(list, r); len(list) > maxPoints {
		list = thinned(list)
	}
	p.points[of] = list
}

// before are the points of earlier steps.
func before(list []replica.Remark, s replica.Step) []replica.Remark {
	for len(list) > 0 && list[len(list)-1].Step >= s {
		list = list[:len(list)-1]
	}
	return list
}

// thinned keeps every second point, the newest among them.
func thinned(list []replica.Remark) []replica.Remark {
	var out []replica.Remark
	for i := (len(list) - 1) % 2; i < len(list); i += 2 {
		out = append(out, list[i])
	}
	return out
}

// Learn follows the job. An epoch begins at a step: what was said of later ones is of a future that is gone.
func (b *Book) Learn(job *replica.Job) {
	switch {
	case job.Phase == replica.Ended:
		*b = Book{}
	case job.Phase == replica.Open && job.Epoch != b.epoch:
		b.epoch = job.Epoch
		for _, p := range b.pages {
			for of, list := range p.points {
				p.points[of] = before(list, job.Position.Step+1)
			}
		}
	}
}

// of lists what belongs to a step: all texts, and of each number the newest that is not of a later step. A metric that is NaN there has none: the
// value of an earlier step would pass for this one's.
func (b *Book) of(step replica.Step) []replica.Remark {
	var all []replica.Remark
	for _, p := range b.pages {
		all = append(all, p.texts...)
		for _, list := range p.points {
			if upto := before(list, step+1); len(upto) > 0 && !math.IsNaN(upto[len(upto)-1].Value) {
				all = append(all, upto[len(upto)-1])
			}
		}
	}
	out, _ := replica.Merge(all) // the leader says what there is no room for
	return out
}

// Report is what the leader is to hear of the durable write under way, and whether it has not heard it yet.
func (b *Book) Report(job *replica.Job) (list []replica.Remark, news bool) {
	w := job.Writer
	if w == nil || len(b.pages) == 0 {
		return nil, false
	}
	list = b.of(w.Position.Step)
	if b.sent.number == w.Number && slices.Equal(b.sent.remarks, list) || b.sent.number != w.Number && len(list) == 0 {
		return nil, false
	}
	b.sent = sent{w.Number, list}
	return list, true
}

// Linked says that a leader was reached who has heard nothing.
func (b *Book) Linked() { b.sent = sent{} }
