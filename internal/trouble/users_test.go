//go:build cgo

package trouble_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	harness "github.com/replicad/replicad/chaos/cluster"
)

// replicadsDaemon is how those learn whom to believe who may not read the daemon's configuration.
var replicadsDaemon = fmt.Sprintf("REPLICAD_DAEMON_UID=%d", replicadUser)

// users of one host. Nobody else runs as them.
const replicadUser, alice, bob, mallory = 61000, 61001, 61002, 61003

// host is a node whose daemon has a user of its own, and what its other users have.
type host struct {
	*node
	open string // a directory that all can pass
	self string // this test binary, for all to run
}

// shared starts a node for alice and bob.
func shared(t *testing.T) *host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can start processes of several users")
	}
	h := &host{newCluster(t, "n1").nodes[0], shortDir(t), ""}
	h.self = filepath.Join(h.open, "trouble.test")
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.OpenFile(h.self, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(to, from)
	if err := closing(err, to.Close(), os.Chmod(h.open, 0o755), os.Chown(h.open, replicadUser, replicadUser)); err != nil {
		t.Fatal(err)
	}
	h.User, h.cfg.RankUsers, h.cfg.JobSecret = replicadUser, []string{fmt.Sprint(alice), fmt.Sprint(bob)}, "0123456789abcdef"
	h.cfg.Socket = filepath.Join(h.open, "ranks.sock")
	h.cfg.Timing.HangLeast, h.cfg.Timing.HangFirst = time.Second, time.Second
	h.write()
	if err := os.MkdirAll(filepath.Dir(h.cfg.KeeperSocket), 0o700); err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(h.all.Dir, func(path string, _ os.DirEntry, err error) error {
		return closing(err, os.Lchown(path, replicadUser, replicadUser))
	})
	if err != nil {
		t.Fatal(err)
	}
	h.start()
	return h
}

// closing is the first error.
func closing(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// as starts a program of a user.
func (h *host) as(user uint32, name string, env []string, program string, args ...string) *process {
	h.t.Helper()
	return follow(h.t, func(hear func([]byte)) (*harness.Process, error) {
		return spawner.StartAs(user, name, os.DevNull, env, harness.Output{Both: hear}, program, args...)
	})
}

// launch has a user run a job, with a token in a file of its own.
func (h *host) launch(user uint32, job, token string) *process {
	h.t.Helper()
	file := filepath.Join(h.open, fmt.Sprintf("token-%d-%s-%d", user, job, len(token)))
	if err := closing(os.WriteFile(file, []byte(token), 0o600), os.Chown(file, int(user), int(user))); err != nil {
		h.t.Fatal(err)
	}
	l := h.as(user, fmt.Sprintf("launcher of %s by %d", job, user), append(rankSpec{}.env(), replicadsDaemon), replicad,
		"run", "--socket", h.cfg.Socket, "--token-file", file, "--job", job, "--world", "1", "--chunk-mb", "1", "--durable-every", "0", "--", "sh", "-c", h.self+"; exit $?") // a wrapper, as many are: the rank is not the launcher's own child
	h.t.Cleanup(func() { l.Signal(syscall.SIGTERM); l.exit() }) // which it passes on to what is below the wrapper
	return l
}

// TestUsersApart: two users have a job each on one node whose daemon is a third one's; neither gets at the other's, with its token either, nor at
// the node's keys; a user whom nobody named gets nothing. A rank that stands still is killed and goes on, though it is not the daemon's user's.
func TestUsersApart(t *testing.T) {
	t.Parallel()
	h := shared(t)
	tokenA, tokenB := h.cfg.JobToken("a"), h.cfg.JobToken("b")
	a, b := h.launch(alice, "a", tokenA), h.launch(bob, "b", tokenB)
	a.await("step", fields{"step": 5})
	b.await("step", fields{"step": 5})
	for name, uid := range map[string]float64{"a": alice, "b": bob} {
		p := h.as(replicadUser, "replicad status", nil, replicad, "status", "--json", "--socket", h.cfg.AdminSocket)
		p.exit()
		contains(t, p.output(), fmt.Sprintf(`"name": %q`, name), fmt.Sprintf(`"owner": %.0f`, uid))
	}

	if code, out := call(t, "status", "--socket", h.cfg.AdminSocket); code != exitNobody || !strings.Contains(out, replicadsDaemon) { // root is another user, too
		t.Errorf("a daemon whose user nobody has named: code %d\n%s", code, out)
	}

	for _, tc := range []struct {
		what       string
		user       uint32
		job, token string
		says       string
	}{
		{"another job's token", bob, "a", tokenB, "the token is not the job's"},
		{"a token that leaked", bob, "a", tokenA, "is user 61001's, and this process is user 61002's"},
		{"no user of ranks", mallory, "a", tokenA, "rank_users"},
	} {
		l := h.launch(tc.user, tc.job, tc.token)
		if code := l.exit(); code == 0 || !strings.Contains(l.output(), tc.says) {
			t.Errorf("%s: code %d\n%s", tc.what, code, l.output())
		}
		env := append(rankSpec{Token: tc.token}.env(), "REPLICAD_SOCKET="+h.cfg.Socket, "REPLICAD_JOB="+tc.job, "REPLICAD_RANK=0", "REPLICAD_WORLD=1", "REPLICAD_GROUP=0", replicadsDaemon)
		r := h.as(tc.user, "rank of "+tc.job, env, h.self)
		if code := r.exit(); code != 1 || !strings.Contains(r.output(), tc.says) {
			t.Errorf("%s, a rank: code %d\n%s", tc.what, code, r.output())
		}
	}
	for _, secret := range []string{h.File, h.cfg.PKI.Key, h.cfg.PKI.GossipKey, h.cfg.KeeperSocket} {
		if p := h.as(alice, "stat", nil, "/usr/bin/stat", secret); p.exit() == 0 {
			t.Errorf("alice reaches %s:\n%s", secret, p.output())
		}
	}

	step := a.await("step", nil)
	pid := int(step.fields["pid"].(float64))
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	h.daemon.await("fault", fields{"job": "a"})
	a.awaitLine(a.mark(), "another process", func(l line) bool { return l.is("step", nil) && l.fields["pid"] != float64(pid) })
	b.awaitFrom(b.mark(), "step", nil)
}
