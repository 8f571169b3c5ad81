package sim

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// answer is what the rendezvous said to a request of a rank.
type answer struct {
	request uint32
	code    int32
}

// meet is what processes do before the first collective of an epoch: each says its address at the rendezvous, and hears the others'.
// False: the epoch is closed, or the process is to end.
func (r *rank) meet() bool {
	if !r.ask(wire.MKVSet, wire.KV{Key: address(r.of), Value: []byte(r.m.name), Once: 1}) {
		return false
	}
	for other := range replica.Rank(r.w.world) {
		if other != r.of && !r.ask(wire.MKVGet, wire.KV{Key: address(other)}) {
			return false
		}
	}
	return true
}

func address(r replica.Rank) string { return fmt.Sprintf("address of rank %d", r) }

// ask asks the rendezvous until it answers, as libreplicad's callers do: in slices, and again after "come again".
func (r *rank) ask(op uint16, kv wire.KV) bool {
	for {
		r.answered = answer{request: r.next()}
		asked, told := r.answered, r.peer
		if told != nil {
			r.say(session.KV{Peer: told, Header: r.head(op, asked.request), Op: op, KV: kv})
		}
		for until := time.Now().Add(time.Second); time.Now().Before(until) && r.peer == told; {
			if r.fenced(r.epoch) || r.stopped || r.excepts() {
				return false
			}
			r.look(20 * time.Millisecond)
			if r.answered.code != asked.code {
				break
			}
		}
		switch r.answered.code {
		case answeredOK:
			return true
		case wire.CodeAgain:
			r.sleep(100*time.Millisecond + r.delay())
		case wire.CodeFenced:
			for !r.fenced(r.epoch) && !r.stopped {
				r.look(20 * time.Millisecond)
			}
			return false
		}
	}
}

// answeredOK stands for wire.CodeOK, which is zero: not answered.
const answeredOK = 1

// heard takes an answer of the rendezvous.
func (r *rank) heard(request uint32, code int32) {
	if request != r.answered.request {
		return
	}
	if r.answered.code = code; code == wire.CodeOK {
		r.answered.code = answeredOK
	}
}
