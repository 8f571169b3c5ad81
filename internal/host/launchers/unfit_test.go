package launchers

import (
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// Every way in which a program can end before it has its rank: what is committed outlives it, unless ranks that live would wait for nobody.
func TestProgramThatGetsNoRank(t *testing.T) {
	for _, final := range []bool{false, true} { // it ends with status 78; else five of them end with 1
		for _, turned := range []bool{false, true} { // the daemon refused it
			for _, others := range []bool{false, true} { // the other ranks live
				for _, committed := range []replica.Step{0, 5} {
					d := newRig(t)
					lj := d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) {
						j.Phase, j.ClosedEpoch, j.Position.Step = replica.Closed, j.Epoch, committed
						for r, c := range j.Ranks {
							if r == 0 || !others {
								j.Faults = append(j.Faults, replica.Fault{Epoch: j.Epoch, Kind: replica.ProcessDead, Rank: replica.Rank(r), Incarnation: c.Incarnation})
							}
						}
					}))
					peer, end := d.listener()
					l := d.all[peer.ID()]
					status, ends := int32(1), startTries
					if final {
						status, ends = wire.StatusFinal, 1
					}
					for range ends {
						if said := fixture.Only[control.EndRequest](d.says()); len(said) != 0 || l.done {
							t.Fatalf("too soon: %+v", said)
						}
						l.starts.asked(0, time.Now())
						l.starts.runs(0, 4711, time.Now())
						if turned {
							l.starts.refused(0, "rank 0 registers another geometry", true)
						}
						d.Handle(session.RunExited{Peer: peer, RunExited: wire.RunExited{Rank: 0, Status: status, PID: 4711}}, time.Now())
					}
					ended := fixture.Only[control.EndRequest](d.says())
					kept := committed > 0 && (final || turned || !others)
					switch {
					case kept && (len(ended) != 0 || !l.done):
						t.Errorf("final %v, turned %v, others %v, step %d: ends the job with %+v", final, turned, others, committed, ended)
					case !kept && (len(ended) != 1 || !strings.HasPrefix(ended[0].Reason, recovery.DoNotRequeue) || l.done):
						t.Errorf("final %v, turned %v, others %v, step %d: ends the job with %+v", final, turned, others, committed, ended)
					}
					if !kept {
						continue
					}
					h, body := end.Reads()
					done, err := wire.ParseRefused(body)
					if err != nil || h.Type != wire.MRunDone || done.Code != wire.ExitRefused || !strings.Contains(done.Text, "Job job is kept in memory at step 5") || turned != strings.Contains(done.Text, "another geometry") {
						t.Errorf("the launcher reads message %d, code %d, %q, %v", h.Type, done.Code, done.Text, err)
					}
					if n, _ := d.offers(lj.job); n != 0 {
						t.Errorf("a launcher that ends offers %d processes", n)
					}
				}
			}
		}
	}
}
