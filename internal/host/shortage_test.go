package host

import (
	"fmt"
	"github.com/replicad/replicad/internal/host/job"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/host/restore"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
	"golang.org/x/sys/unix"
)

// A process that has its rank and ends for want of something, and a restore that fails for it, make their node short, which its report says.
func TestWantsOfARank(t *testing.T) {
	for name, meets := range map[string]func(*rig, *job.Job, session.Peer){
		"its process": func(d *rig, lj *job.Job, peer session.Peer) {
			d.handleSession(session.RunExited{Peer: peer, RunExited: wire.RunExited{Rank: 0, Status: wire.StatusWant, PID: uint64(lj.Ranks[0].PID)}})
		},
		"its restore": func(d *rig, lj *job.Job, _ session.Peer) {
			d.do(d.restores, restore.Failed{Job: lj.Job.ID, Rank: 0, Err: fmt.Errorf("part: %w", unix.EMFILE)})
		},
	} {
		d := newRig(t)
		lj := d.put(fixture.Job())
		peer, _ := d.listener()
		d.attach(lj, 0)
		meets(d, lj, peer)
		var said []string
		for _, r := range fixture.Only[replica.NodeReport](d.says()) {
			said = append(said, r.Short)
		}
		if len(said) == 0 || said[len(said)-1] == "" || d.log.Count(`"short"`) == 0 {
			t.Errorf("%s: reports say %q", name, said)
		}
	}
}
