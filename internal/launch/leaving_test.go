package launch

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/wire"
)

// SIGTERM reaches the processes once the daemon says that they have ended the step that they were in; or when the grace is over, or the daemon
// has gone. Whatever it was, the launcher ends by the signal.
func TestRanksEndTheirStepBeforeSIGTERM(t *testing.T) {
	for _, tc := range []struct {
		name  string
		grace time.Duration
		then  func(p *peer)
	}{
		{"a hangup", patience, func(p *peer) { p.send(wire.MRunLeave, nil) }},
		{"the daemon says so", patience, func(p *peer) { p.send(wire.MRunLeave, nil) }},
		{"the grace is over", 50 * time.Millisecond, func(*peer) {}},
		{"the job is done", patience, func(p *peer) { p.done(0, "finished") }},
		{"the job is stopped", patience, func(p *peer) { p.done(wire.DoneStopped, "stopped by an operator") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDaemon(t)
			ready := filepath.Join(t.TempDir(), "ready")
			if err := syscall.Mkfifo(ready, 0o600); err != nil {
				t.Fatal(err)
			}
			// SIGTERM itself ends it, at once: a program that did so by a trap could be killed first, when the grace is over again.
			j := run(d, 1, `echo > `+ready+`; `+forever, func(o *Options) { o.Grace = tc.grace })
			p := d.welcome()
			p.start(0, 1)
			p.running()
			if _, err := os.ReadFile(ready); err != nil {
				t.Fatal(err)
			}
			signal := syscall.SIGTERM
			if tc.name == "a hangup" { // its processes end in order too
				signal = syscall.SIGHUP
			}
			j.cancel(Signaled{signal})
			p.process(wire.MRunLeaving)
			p.start(0, 1) // nothing is started any more
			tc.then(p)
			if x := p.exited(); x.Status != 128+int32(syscall.SIGTERM) {
				t.Errorf("exit %+v, want SIGTERM's", x)
			}
			want := 128 + int(signal)
			if tc.name == "the job is stopped" {
				want = 0
			}
			if code, err := j.wait(); code != want || err != nil {
				t.Errorf("code %d, want %d; %v", code, want, err)
			}
		})
	}
}

// A SIGTERM after a hangup is the first of two, as without one: it is said, and the launcher ends by it.
func TestSIGTERMAfterAHangupCounts(t *testing.T) {
	d := newDaemon(t)
	again := make(chan error, 1)
	j := run(d, 1, forever, func(o *Options) { o.Grace, o.Again = patience, again })
	p := d.welcome()
	p.start(0, 1)
	p.running()
	j.cancel(Signaled{syscall.SIGHUP})
	p.process(wire.MRunLeaving)
	again <- Signaled{syscall.SIGTERM}
	j.log.await(t, "terminated: 1 process(es) get it too")
	p.send(wire.MRunLeave, nil)
	p.exited()
	if code, err := j.wait(); code != 128+int(syscall.SIGTERM) || err != nil {
		t.Errorf("code %d, want SIGTERM's; %v", code, err)
	}
}
