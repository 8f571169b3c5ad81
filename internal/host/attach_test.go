package host

import (
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Two claims are under way, and the answer to the second, a refusal, comes first: it says how the first one's regions differ all the same.
func TestRefusalThatOvertakesAnAnswer(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	first := fixture.Geometry(t, false)
	second, err := replica.NewGeometry([]replica.Region{{Name: "weight", DType: replica.F32, Shape: []uint64{50, 50}, Bytes: 10000}})
	if err != nil {
		t.Fatal(err)
	}
	waiting := &attaching{geometry: first, claim: replica.Claim{Job: fixture.JobID, Rank: 0}}
	d.attaching[1] = waiting
	refused := replica.Claim{Job: fixture.JobID, Rank: 1}
	if text := d.otherThanPeers(lj, refused, second); text != "" {
		t.Errorf("of a process that has not asked for its rank: %q", text)
	}
	waiting.request = 5
	if text := d.otherThanPeers(lj, refused, second); !strings.Contains(text, "beside rank 0: ") {
		t.Errorf("%q, want the difference to rank 0", text)
	}
}

// The library refuses a private window region without InWindow; a daemon that hears of one from another client does so by itself.
func TestUnregistrableRegionIsRefused(t *testing.T) {
	d := newRig(t)
	d.put(opening())
	p, r := d.hello(nil)
	r.reads() // the welcome
	regions := fixture.Geometry(t, false).Regions
	regions[1].Class = replica.Window
	d.handleSession(session.Attach{Peer: p, Header: wire.RankHeader{Request: 2}, Regions: regions})
	if code, text := r.refused(); code != wire.CodeInvalid || !strings.Contains(text, `"rng": private and of class window`) {
		t.Errorf("refused with %d %q", code, text)
	}
	if claims := fixture.Only[control.ClaimRequest](d.says()); len(claims) != 0 {
		t.Errorf("claimed %+v", claims)
	}
}

// A process that was welcomed and has not sent ATTACH yet waits for no answer: one that tells it why it can't have the rank goes with
// the answer to ATTACH. It used to be sent at once, unheard, and ATTACH was answered with "attach before hello was answered".
func TestLostToAnotherBeforeAttach(t *testing.T) {
	d := newRig(t)
	lj := d.put(opening())
	p, r := d.hello(nil)
	r.reads() // the welcome
	lj.job = fixture.Changed(lj.job, func(j *replica.Job) { j.Ranks[0] = fixture.Job().Ranks[1] })
	d.serveAttaching()
	d.attachFor(p)
	h, body := r.reads()
	v, err := wire.ParseRefused(body)
	if err != nil || h.Type != wire.MRefused || h.Request != 2 || v.Code != wire.CodeRefused || !strings.Contains(v.Text, "on node n2: it is not free") {
		t.Errorf("answered %+v %+v (%v), want a refusal of ATTACH that names who holds the rank", h, v, err)
	}
}
