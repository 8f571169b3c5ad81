package launch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/wire"
)

// Create sees that the job is there, as Run would, and starts nothing: its ranks are started by another launcher (torchrun, say).
// It waits up to Options.Patience for a daemon with a leader. A job of that name that runs with the same layout is that job.
func Create(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	o = o.withDefaults()
	parent := ctx
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	patience := time.AfterFunc(o.Patience, func() { cancel(fmt.Errorf("no answer for %v", o.Patience)) })
	defer patience.Stop()
	o.Capacity, o.Ranks, o.Spare = 0, nil, true // the daemon is to start nothing here
	l := &link{socket: o.Socket, daemons: o.Daemons, hello: o.hello(), wait: o.helloWait, events: make(chan linkEvent)}
	done, end := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); l.run(done) }()
	defer func() { end(); <-ended }()
	var away error
	var refused *refusedError
	for {
		select {
		case e := <-l.events:
			switch {
			case e.conn != nil:
				return nil
			case e.typ == wire.MRunNote:
				n, err := wire.ParseRefused(e.body)
				if err != nil {
					return err
				}
				if n.Text != "" {
					o.Logf("%s", n.Text)
				}
				patience.Reset(o.Patience)
				continue
			case errors.As(e.err, &refused) && refused.Code != wire.CodeAgain:
				return fmt.Errorf("job %q: %w", o.Job, e.err)
			case stranger(e.err):
				return fmt.Errorf("job %q: %w", o.Job, o.nobody(e.err))
			}
			if away == nil || !errors.Is(e.err, context.DeadlineExceeded) && !errors.Is(e.err, context.Canceled) { // the last try ends with the patience, which says less than those before
				away = e.err
			}
		case <-ctx.Done():
			err := errors.Join(context.Cause(ctx), away)
			if parent.Err() == nil && !errors.As(away, &refused) {
				return fmt.Errorf("job %q: %w", o.Job, o.nobody(err))
			}
			return fmt.Errorf("job %q, daemon on %s: %w", o.Job, o.Socket, err)
		}
	}
}

// Environ is what the ranks of another launcher need: their place comes from it (RANK and WORLD_SIZE), the rest from here.
func (o Options) Environ() []string {
	env := make([]string, 0, len(o.Env)+6)
	for _, e := range o.Env {
		if name, _, _ := strings.Cut(e, "="); !ofALauncher(name) {
			env = append(env, e)
		}
	}
	env = append(hashing(env), "REPLICAD_SOCKET="+o.Socket, "REPLICAD_JOB="+o.Job, "REPLICAD_HOST="+o.withDefaults().Host)
	if groups := groupsVariable(o.Named, o.Groups); groups != "" {
		env = append(env, groups)
	}
	return append(env, o.access()...)
}
