//go:build cgo

package trouble_test

import (
	"strings"
	"syscall"
	"testing"
)

// TestBeginsFromAnotherRun: a new job of another world begins at the step of another run's generation, on all ranks, and is named by its launchers, status
// and its own generations. A rank that is killed goes on from the job's own memory, a fleet that is lost from the job's own disk, with the same command.
func TestBeginsFromAnotherRun(t *testing.T) {
	t.Parallel()
	n := one(t)
	l := n.run("lm", 1, rankSpec{}, "--durable-every", "5")
	n.daemon.awaitFrom(n.daemon.mark(), "durable", nil)
	id := l.await("loaded", nil).fields["job"].(string)
	l.kill()
	if code, out := call(t, "job", "end", "lm", "--config", n.File, "--now"); code != 0 {
		t.Fatalf("code %d: %s", code, out)
	}
	url := "file://" + n.cfg.DurableDir
	newest := n.daemon.newestDurable()

	run := func(flags ...string) *process {
		return n.run("wide", 2, rankSpec{}, append([]string{"--durable-every", "5", "--from", url, "--from-job", "lm"}, flags...)...)
	}
	l = run()
	at := l.await("begins", fields{"url": url})
	if step := int(at.fields["step"].(float64)); step < newest || !strings.HasPrefix(at.fields["place"].(string), "lm/") {
		t.Errorf("it begins with %v, and step %d was durable", at.fields, newest)
	}
	begun := at.fields["step"]
	l.await("begins", fields{"step": begun, "rank": 1})
	l.await("loaded", fields{"step": begun, "source": "own-ram"})
	l.says("from: step ", " of "+url+"/lm (world 1, now 2)")
	if s := n.statusWhen(func(s status) bool { return s.job("wide").Position.Step > int(begun.(float64)) }); s.job("wide").From.URL != url || s.job("wide").From.Run != id {
		t.Errorf("status says %+v", s.job("wide").From)
	}

	from := l.mark()
	if err := syscall.Kill(n.pid("wide", 1), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	l.awaitFrom(from, "loaded", fields{"rank": 1})
	if strings.Contains(l.text(from, l.mark()), `"begins"`) {
		t.Error("a rank that was killed has begun anew")
	}
	late := n.run("wide", 2, rankSpec{}, "--spare", "--from", url+"/lm@1")
	if code := late.exit(); code == 0 {
		t.Error("a launcher that asks for another beginning has joined")
	}
	late.says("began with step ", "not with "+url+"/lm@1", "leave --from out")
	if code, out := call(t, "exec", "--config", n.File, "--job", "wide", "--world", "2", "--from", url, "--from-job", "lm", "--", "true"); code != 0 || !strings.Contains(out, "replicad exec: from: the job began with step ") {
		t.Errorf("exec: code %d: %s", code, out)
	}

	mark := n.daemon.mark()
	n.daemon.awaitFrom(mark, "durable", nil)
	code, out := call(t, "ckpt", "show", n.cfg.DurableDir+"/wide")
	if code != 0 || !strings.Contains(out, "of "+url+"/lm (world 1)") {
		t.Errorf("ckpt show: code %d: %s", code, out)
	}
	l.kill()
	n.die()
	n.afresh()
	l = run("--resume")
	l.await("loaded", fields{"source": "durable"})
	l.awaitText(0, "is not used: job \"wide\" has a durable state of its own")
	if strings.Contains(l.output(), `"begins"`) {
		t.Error("a job that has a state of its own has begun anew")
	}
}

// TestBeginsFromNothing: where --from names nothing that can be loaded no process is started; of what is wrong with it is said what.
func TestBeginsFromNothing(t *testing.T) {
	t.Parallel()
	n := one(t)
	url := "file://" + n.cfg.DurableDir
	for name, c := range map[string]struct {
		flags []string
		says  string
	}{
		"nothing there":     {[]string{"--from", url}, "no checkpoints of replicad's are there"},
		"no such directory": {[]string{"--from", url + "/away/lm"}, "no checkpoints of replicad's are there"},
		"no store":          {[]string{"--from", "ftp://b/lm"}, "are not known"},
		"no generation":     {[]string{"--from", url + "@newest"}, "@newest names no generation"},
		"a password":        {[]string{"--from", "s3://me:secret@b/lm"}, "keys, tokens and regions come from the environment"},
		"a job of nothing":  {[]string{"--from-job", "lm"}, "give both"},
	} {
		l := n.run("fresh", 1, rankSpec{}, c.flags...)
		if code := l.exit(); code == 0 {
			t.Errorf("%s: the launcher has ended with 0", name)
		}
		l.says(c.says)
		if out := l.output(); strings.Contains(out, `"attached"`) || strings.Contains(out, "secret") {
			t.Errorf("%s: %s", name, out)
		}
	}
}
