package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// most is what a command may have resident whatever it is given, in bytes: several times what it needs for small files, and a fraction of what those ask for.
const most = 384 << 20

// ran is what came of a command.
type ran struct {
	code int // -1: it had to be killed
	said string
	rss  uint64 // the most that it had resident, in bytes
}

// program runs replicad in a folder, for at most a minute.
func (a *attack) program(ctx context.Context, dir string, env []string, args ...string) (r ran) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, a.Program, args...)
	var said bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = dir, append(os.Environ(), env...), &said, &said, time.Second
	err := cmd.Run()
	r.said = said.String()
	if len(r.said) > 600 {
		r.said = r.said[:600] + "..."
	}
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		return ran{code: -1, said: err.Error() + ": " + r.said}
	}
	r.code = cmd.ProcessState.ExitCode()
	if u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		r.rss = uint64(u.Maxrss) << 10
	}
	return r
}

// refuses runs a command that must end by itself with an error, with no more memory than commands may have.
func (a *attack) refuses(ctx context.Context, what, dir string, env []string, args ...string) error {
	r := a.program(ctx, dir, env, args...)
	a.count("MiB "+what, int(r.rss>>20))
	switch {
	case r.code < 0:
		return fmt.Errorf("%s: it has not ended after a minute: %s", what, r.said)
	case r.code == 0:
		return fmt.Errorf("%s: taken: %s", what, r.said)
	case r.rss > most:
		return fmt.Errorf("%s: %d MiB, limit %d: %s", what, r.rss>>20, most>>20, r.said)
	}
	return nil
}
