package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

const (
	guest     = "guest" // a node without ranks, whose daemon runs for patterns that restart it
	restarts  = 3
	mostDelay = time.Second // by which an attack may delay a link, beyond the slowest without it
	onset     = time.Second // after which an attack is in full swing
)

// relink restarts the guest's daemon so often and returns the longest time that it took to link to the leader.
func (r *runner) relink(ctx context.Context) (most time.Duration, err error) {
	n := r.cluster.Node(guest)
	defer func() { n.Hear = nil }()
	for range restarts {
		linked := make(chan struct{}, 1)
		n.Hear = func(line []byte) {
			if bytes.Contains(line, []byte(`"event":"linked"`)) {
				select {
				case linked <- struct{}{}:
				default:
				}
			}
		}
		began := time.Now()
		if err := r.cluster.Start(n); err != nil {
			return most, err
		}
		t := time.NewTimer(patience)
		select {
		case <-linked:
		case <-n.Daemon.Gone:
			err = fmt.Errorf("the daemon of %s ended: %s", guest, n.Daemon.State())
		case <-t.C:
			err = fmt.Errorf("the daemon of %s has no link %v after its start", guest, patience)
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		t.Stop()
		most = max(most, time.Since(began))
		n.Daemon.Signal(syscall.SIGTERM)
		<-n.Daemon.Gone
		if err != nil {
			return most, err
		}
	}
	return most, nil
}

// besides is misbehave for a pattern beside which the guest must link about as fast as without it.
func (r *runner) besides(ctx context.Context, p Pattern, victim string) (Done, error) {
	calm, err := r.relink(ctx)
	if err != nil {
		return Done{}, err
	}
	type relinked struct {
		most time.Duration
		err  error
	}
	result := make(chan relinked, 1)
	go func() {
		sleep(ctx, onset)
		most, err := r.relink(ctx)
		result <- relinked{most, err}
	}()
	d, err := r.misbehave(ctx, p, victim)
	got := <-result
	if err != nil || got.err != nil {
		return d, errors.Join(err, got.err)
	}
	if d.Did == nil {
		d.Did = map[string]int{}
	}
	d.Did["ms to link"], d.Did["ms without the flood"] = int(got.most.Milliseconds()), int(calm.Milliseconds())
	if got.most > calm+mostDelay && d.Failed == "" {
		d.Failed = fmt.Sprintf("a node's link took %v, %v without the attack", got.most.Round(time.Millisecond), calm.Round(time.Millisecond))
	}
	return d, nil
}
