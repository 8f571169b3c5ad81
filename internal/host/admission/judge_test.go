package admission

import (
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// TestJudge: a process that asks for rank 1 of a job whose ranks n1 and n2 hold, on node n1, and one thing that is otherwise.
func TestJudge(t *testing.T) {
	type asked struct {
		process
		peer                *peer
		informed, launching bool
		job                 *replica.Job
		here                *Rank // the rank's process on this node
	}
	const rank = 1
	free := func(a *asked) { a.job.Ranks[rank] = replica.Claimed{} }
	held := func(a *asked) {
		free(a)
		a.here = &Rank{Incarnation: 5, PID: 99, Start: 9, Alive: true}
	}
	for _, c := range []struct {
		what   string
		change func(*asked)
		to     standing
		code   int32
		text   string
	}{
		{"nothing", free, welcomed, 0, ""},
		{"it was welcomed and asks for its arena", func(a *asked) { free(a); a.welcomed, a.attach = true, 2 }, claims, 0, ""},
		{"it was welcomed and asks for nothing", func(a *asked) { a.welcomed = true }, waits, 0, ""},
		{"another ABI", func(a *asked) { a.hello.ABI++; a.informed = false }, refused, wire.CodeVersion, "use the library of this daemon's release"},
		{"no leader was reached", func(a *asked) { free(a); a.informed = false }, waits, 0, ""},
		{"no job", func(a *asked) { a.job = nil }, refused, wire.CodeRefused, "start it with `replicad run --job "},
		{"a launcher creates the job", func(a *asked) { a.job, a.launching = nil, true }, waits, 0, ""},
		{"another user", func(a *asked) { free(a); a.peer.User, a.job.Owner = 12345, 54321 }, refused, wire.CodeRefused, "user 12345's"},
		{"the job's user", func(a *asked) { free(a); a.peer.User, a.job.Owner = 12345, 12345 }, welcomed, 0, ""},
		{"another world", func(a *asked) { free(a); a.hello.World++ }, refused, wire.CodeRefused, "that rank's group is"},
		{"its rank lives on another node", func(*asked) {}, refused, wire.CodeRefused, "held by incarnation 5 on node n2"},
		{"its rank lives here", held, refused, wire.CodeRefused, "held by live process 99"},
		{"it holds the rank itself", func(a *asked) { held(a); a.peer.Process, a.peer.Began = 99, 9 }, attachedAlready, wire.CodeRefused, "use one handle"},
		{"its pid is that of the rank's, and it is another process", func(a *asked) { held(a); a.peer.Process = 99 }, refused, wire.CodeRefused, "held by live process 99"},
		{"its predecessor here was superseded", func(a *asked) { held(a); a.here.Incarnation = 4; a.job.Ranks[rank].Incarnation = 5 }, waits, 0, ""},
		{"its predecessor here is dead", func(a *asked) { held(a); a.here.Alive = false }, welcomed, 0, ""},
	} {
		job := fixture.Job()
		a := &asked{peer: &peer{roomtest.Peer{Process: 7, Began: 70}}, informed: true, job: job}
		a.helloReq = 1
		a.hello = wire.Hello{ABI: wire.RankABI, Job: job.Name, Rank: rank, World: job.Layout.World, Group: job.Layout.Groups[rank]}
		c.change(a)
		a.process.peer = a.peer
		var known Job
		if a.job != nil {
			lj := &localJob{job: a.job, ranks: map[replica.Rank]*Rank{}}
			if a.here != nil {
				lj.ranks[rank] = a.here
			}
			known = lj
		}
		v := a.judge("n1", a.informed, known, a.launching)
		if v.to != c.to || v.code != c.code || !strings.Contains(v.text, c.text) || (v.text == "") != (c.text == "") {
			t.Errorf("%s: it is judged %+v, want %d with code %d and %q", c.what, v, c.to, c.code, c.text)
		}
	}
}
