package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/owner"
)

// Hangups are the SIGHUPs that come from now on, until stop: a terminal that goes away sends several. Where the signal is ignored from the
// start
// (nohup) it stays so, and none comes.
func Hangups() (told <-chan os.Signal, stop func()) {
	if signal.Ignored(syscall.SIGHUP) {
		return nil, func() {}
	}
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGHUP)
	return got, func() { signal.Stop(got) }
}

// UntilHangup is parent, and done at the first SIGHUP too, with a cause that names it. Of a parent that is done later, again has the cause.
func UntilHangup(parent context.Context) (_ context.Context, again <-chan error, stop func()) {
	told, unnotify := Hangups()
	ctx, cancel := context.WithCancelCause(parent)
	after := make(chan error, 1)
	go func() {
		select {
		case <-told:
			cancel(Signaled{Signal: syscall.SIGHUP})
		case <-ctx.Done():
			return
		}
		<-parent.Done() // or the process ends
		after <- context.Cause(parent)
	}()
	return ctx, after, func() { unnotify(); cancel(nil) }
}

// LeaveTerminal has a launcher and its processes ignore SIGHUP, and write to a file that the caller closes. What lies there already is
// refused where it
// is no file, or somebody else's, who would read what the job prints, or where a pipe would have the launcher wait for its reader.
func (o *Options) LeaveTerminal(stderr io.Writer) (*os.File, error) {
	name, err := filepath.Abs("replicad-" + o.Job + ".out")
	if err != nil {
		return nil, fmt.Errorf("--nohup: %w", err)
	}
	out, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--nohup: %w: start it in a directory that you may write, where nothing else has that name", err)
	}
	info, err := out.Stat()
	if err == nil {
		err = owner.Check(name, info)
	}
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file: remove it, or start in another directory", name)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("--nohup: %w", err), out.Close())
	}
	signal.Ignore(syscall.SIGHUP) // its processes inherit that
	console.Printf(stderr, "replicad run: what is printed from now on is in %s\n", name)
	o.Stdout, o.Stderr = out, out
	o.Logf = func(format string, args ...any) { console.Printf(out, "replicad run: "+format+"\n", args...) }
	return out, nil
}
