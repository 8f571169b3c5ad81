package host

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// A host says what it knows by itself; of a question that got no answer nothing is kept.
func TestWhatAHostKnows(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	d.live(d.attach(lj, 0), 3, 7, replica.Updating)
	var st Status
	d.serves(func() { st, _ = d.Status(d.ctx) })
	if !st.Linked || len(st.Nodes) != 3 || len(st.Jobs) != 1 || st.Jobs[0].Position != (replica.Position{Epoch: 3, Step: 5}) || len(st.Jobs[0].Ranks) != 2 || st.Adopting || st.KeeperLost {
		t.Errorf("status %+v", st)
	}
	if s := st.Sizes; len(s) != 1 || s[0].Job != fixture.JobID || s[0].Trained == 0 || s[0].Own == 0 || s[0].Slots < 2 {
		t.Errorf("sizes %+v", s)
	}
	var w Witness
	d.serves(func() { w, _ = d.Witness(d.ctx) })
	if _, itself := w.Nodes["n1"]; itself || len(w.Nodes) != 2 || w.Live[fixture.JobID] != 7 {
		t.Errorf("it is a witness with %+v", w)
	}
	ask := func(answered bool) (reply any, ok bool) {
		ctx, cancel := context.WithCancel(d.ctx)
		defer cancel()
		d.serves(func() {
			reply, ok = d.Ask(ctx, fixture.Patience, func(id uint64) any {
				if answered {
					d.work.Go(func() { d.ask(d.ctx, calls(func() { d.leaderSays(control.StatusReply{ID: id}) })) })
				} else {
					cancel() // who asked has gone
				}
				return control.StatusRequest{ID: id}
			})
		})
		return reply, ok
	}
	if reply, ok := ask(true); !ok || fixture.Only[control.StatusReply]([]any{reply}) == nil {
		t.Errorf("the answer is %+v, %v", reply, ok)
	}
	if reply, ok := ask(false); ok {
		t.Errorf("no answer is %+v", reply)
	}
	if len(d.questions) != 0 {
		t.Errorf("%d questions are kept that nobody waits for", len(d.questions))
	}
	d.link = nil
	if _, ok := ask(true); ok {
		t.Error("an answer without a link")
	}
}

// Where the lost node led, its successor is told at once whom this node suspects; of one that answers again, nothing.
func TestSuspicionIsSaidToTheNextLeader(t *testing.T) {
	d := newRig(t)
	silent := control.Suspect{Target: replica.Holder{Node: "n2", Incarnation: 22}}
	next := func(suspects []control.Suspect) []control.Suspect {
		t.Helper()
		d.handle(LinkDown{Link: d.link})
		d.serves(func() { d.Suspect(d.ctx, suspects) })
		near, far := net.Pipe()
		t.Cleanup(func() { near.Close(); far.Close() })
		d.handle(LinkUp{Link: control.NewLink(near, control.ToLeader), Leader: "n3", Welcome: control.Welcome{OK: true, Term: 10}})
		return fixture.Only[control.Suspect](d.says())
	}
	if said := next([]control.Suspect{silent}); len(said) != 1 || said[0].Target != silent.Target {
		t.Errorf("a new leader is told %+v, want the node that is silent", said)
	}
	if said := next(nil); len(said) != 0 {
		t.Errorf("a new leader is told %+v of a node that answers again", said)
	}
}

// A daemon whose keeper ends says so, and goes on; once another keeper has all that the first one held, of this very life, it says that too.
func TestLostKeeper(t *testing.T) {
	d := newRig(t)
	d.put(fixture.Job())
	d.link = nil // nobody to be asked
	socket := filepath.Join(d.cfg.StateDir, "k.sock")
	first, second := d.keeperAt(socket), make(chan struct{})
	k, err := shm.DialKeeper(d.ctx, socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	back := func(ctx context.Context) (holding.Returned, error) {
		select {
		case <-second:
			return shm.ReturnToKeeper(ctx, socket, d.self.Incarnation, d.self.Session)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	d.hands.Custody = holding.NewCustodian(k, back, d.config.Journal, arenaListPath(d.cfg))
	held := d.arena(shm.Spec{Geometry: fixture.Geometry(t, false)}) // parked with it
	ctx := d.ctx                                                    // Run writes the host's own
	running, stop := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() { defer close(over); d.Run(running) }()
	defer func() {
		stop()
		<-over
		d.ended = make(chan struct{}) // the rig's cleanup closes it once more
	}()
	until := func(lost bool) {
		t.Helper()
		for late := time.After(fixture.Patience); ; {
			if st, ok := d.Status(ctx); ok && st.KeeperLost == lost && len(st.Jobs) == 1 {
				return
			}
			select {
			case <-late:
				t.Fatalf("keeper_lost does not become %v", lost)
			default:
			}
		}
	}
	until(false)
	first()
	until(true)
	defer d.keeperAt(socket)()
	close(second)
	until(false)
	for _, want := range []string{`"level":"error"`, `"event":"keeper"`, `"event":"keeper_back","descriptors":1`} {
		if n := d.log.Count(want); n != 1 {
			t.Errorf("%s is logged %d times", want, n)
		}
	}
	next, err := shm.DialKeeper(ctx, socket) // a daemon that starts again
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	files, err := next.All()
	for _, f := range files {
		f.Close()
	}
	if err != nil || len(files) != 1 || files[held.Key()] == nil || next.Incarnation() != d.self.Incarnation || next.Session() != d.self.Session+1 {
		t.Errorf("the next daemon finds %v (%v), incarnation %d, session %d", files, err, next.Incarnation(), next.Session())
	}
}

// keeperAt runs a keeper at a socket, and returns what kills it.
func (d *rig) keeperAt(socket string) (kill func()) {
	d.t.Helper()
	server, err := shm.ListenKeeper(socket)
	if err != nil {
		d.t.Fatal(err)
	}
	life, end := context.WithCancel(context.Background())
	dead := make(chan error, 1)
	go func() { dead <- server.Run(life) }()
	return func() {
		end()
		if err := <-dead; err != nil {
			d.t.Error(err)
		}
	}
}
