package leader

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/rendezvous"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// kvGather is how long a new leader waits for nodes that hold no rank of a job before it serves the job's rendezvous. A live
// one links within about a second; one that is down must not be waited for. (A fault against it ends with the next Resume, while
// the witnesses go on saying that it is silent.)
const kvGather = 3 * time.Second

// rendezvous serves the ranks' key-value store and barrier: soft state, which the daemons bring to the next leader.
func (l *Leader) rendezvous(from *nodeLink, m control.KVRequest) {
	reply := func(r control.KVReply) { r.ID = m.ID; from.SendFor(m.Job, r) }
	led := l.jobs[m.Job]
	if led == nil || led.job.Phase == replica.Ended || m.Epoch <= led.job.ClosedEpoch {
		reply(control.KVReply{Fenced: true})
		return
	}
	if uint32(m.Rank) >= led.job.Layout.World {
		reply(control.KVReply{Refused: fmt.Sprintf("rank %d at the rendezvous of job %q, which has %d", m.Rank, led.job.Name, led.job.Layout.World)})
		return
	}
	if m.Epoch > led.job.ClosedEpoch+2 { // of the next one a node may hear first
		reply(control.KVReply{Refused: fmt.Sprintf("epoch %d at the rendezvous of job %q, of which epoch %d comes next", m.Epoch, led.job.Name, led.job.ClosedEpoch+1)})
		return
	}
	if missing := l.ungathered(led); len(missing) > 0 {
		l.putOff(led, from, m.Rank, missing)
		reply(control.KVReply{Again: true})
		return
	}
	switch l.standing(led, from, m.Rank) {
	case early:
		l.putOff(led, from, m.Rank, nil)
		reply(control.KVReply{Again: true})
		return
	case strange:
		text := fmt.Sprintf("rank %d of job %q is held on node %s: node %s may not write to its rendezvous", m.Rank, led.job.Name, led.job.Ranks[m.Rank].Node, from.node.Name)
		l.audit.Refused("rendezvous", from.node.Name, audit.Fields{"job": led.job.Name, "rank": fmt.Sprint(m.Rank), "refused": text})
		reply(control.KVReply{Refused: text})
		return
	case own:
	}
	err := l.accounts.mayMeet(l.view, l.kv, led.job, m)
	if err != nil {
		l.audit.Refused("rendezvous", from.node.Name, audit.Fields{"job": led.job.Name, "rank": fmt.Sprint(m.Rank), "refused": err.Error()})
		reply(control.KVReply{Refused: err.Error()})
		return
	}
	switch m.Op {
	case control.KVGet:
		err = l.kv.Wait(m.Job, m.Epoch, m.Key, rendezvous.Token{Rank: m.Rank, Nonce: m.Nonce}, func(v []byte) { reply(control.KVReply{Value: v}) })
	case control.KVCheck:
		_, ok := l.kv.Get(m.Job, m.Epoch, m.Key)
		reply(control.KVReply{Missing: !ok})
	case control.KVBarrier:
		err = l.kv.Barrier(m.Job, m.Epoch, m.Key, m.Rank, m.Members, func() { reply(control.KVReply{}) })
	default:
		var r rendezvous.Result
		w := rendezvous.Write{Op: writes[m.Op], Key: m.Key, Value: m.Value, Expect: m.Expect, Delta: m.Delta, By: rendezvous.Token{Rank: m.Rank, Nonce: m.Nonce, Once: m.Once}}
		if r, err = l.kv.Write(m.Job, m.Epoch, w); err == nil {
			reply(control.KVReply{Value: r.Value, Seq: r.Seq, Total: r.Total})
		}
	}
	if err != nil {
		reply(control.KVReply{Refused: err.Error()})
	}
}

var writes = map[control.KVOp]rendezvous.Op{control.KVSet: rendezvous.Set, control.KVAdd: rendezvous.Add, control.KVCompareSet: rendezvous.CompareSet, control.KVDelete: rendezvous.Delete}

// ungathered are the nodes that may keep something for the job's rendezvous and have not brought it. One whose link breaks later brings
// nothing new.
func (l *Leader) ungathered(led *ledJob) []replica.NodeName {
	if led.gathered {
		return nil
	}
	missing := l.unbrought(led)
	led.gathered = len(missing) == 0
	return missing
}

// unbrought are the nodes that are waited for now.
func (l *Leader) unbrought(led *ledJob) []replica.NodeName {
	brought := func(n replica.NodeName) bool { link := l.links.of[n]; return link != nil && l.brought[n] == link }
	return recovery.Ungathered(led.job, l.view.Nodes, brought, l.suspected, l.now()-l.since >= kvGather)
}

// kept takes what a node's ranks contributed under earlier leaders.
func (l *Leader) kept(from *nodeLink, m control.KVKept) {
	if m.Done {
		l.brought[from.node.Name] = from
		return
	}
	led := l.jobs[m.Job]
	if led == nil || led.job.Phase == replica.Ended || m.Epoch <= led.job.ClosedEpoch {
		return
	}
	for _, e := range m.Entries {
		op, write := writes[e.Op]
		if uint32(e.Rank) >= led.job.Layout.World || !write && e.Op != control.KVBarrier {
			continue
		}
		// A rank may have met others from one node and been claimed on another since. Once this leader serves, it has what was contributed.
		if led.gathered && l.standing(led, from, e.Rank) != own {
			l.audit.Refused("rendezvous", from.node.Name, audit.Fields{"job": led.job.Name, "rank": fmt.Sprint(e.Rank), "refused": "brought after the leader had begun to serve, for a rank of another node"})
			continue
		}
		var err error
		if e.Op == control.KVBarrier {
			err = l.kv.RestoreBarrier(m.Job, m.Epoch, e.Key, e.Rank, e.Members)
		} else {
			w := rendezvous.Write{Op: op, Key: e.Key, Value: e.Value, Delta: e.Delta, By: rendezvous.Token{Rank: e.Rank, Nonce: e.Nonce, Once: e.Once}}
			err = l.kv.Restore(m.Job, m.Epoch, w, rendezvous.Result{Seq: e.Seq, Total: e.Total})
		}
		if err != nil { // the leader before this one had room for it
			l.log.Retried("rendezvous", fmt.Sprintf("job %q, epoch %d", led.job.Name, m.Epoch), fmt.Sprintf("%v (brought by node %s, rank %d, key %q)", err, from.node.Name, e.Rank, e.Key))
		}
	}
}
