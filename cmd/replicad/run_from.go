package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// fromPatience is how long a launcher looks for the generation that --from names.
const fromPatience = time.Minute

// origin finds the generation that --from names. What can't be found now may be that of a job which runs already, and goes on without it: the leader
// judges that, and has the reason. A name that can't be one is refused here.
func (f *runFlags) origin(ctx context.Context, std stdio) (from *wire.From, err error) {
	if f.from == "" {
		if f.fromJob != "" {
			return nil, usage.Wrong(errors.New("--from-job names a job of the place that --from names: give both"))
		}
		return nil, nil
	}
	asked, err := fromName(f.from, f.fromJob)
	if err != nil {
		return nil, usage.Wrong(fmt.Errorf("--from: %w", err))
	}
	from = &wire.From{Origin: replica.Origin{Asked: asked}}
	ctx, cancel := context.WithTimeoutCause(ctx, fromPatience, fmt.Errorf("no answer for %v", fromPatience))
	defer cancel()
	if f.lease, err = (ckpt{std, place.Finder{Notes: std.err, Keyring: new(place.Keyring)}}).origin(ctx, &from.Origin); err != nil {
		from.Failed = replica.Line(err.Error(), wire.MaxRefusedText)
	}
	return from, nil
}

// fromName is the argument of --from with its job, and with the whole path of a directory: ranks may run elsewhere.
func fromName(arg, job string) (string, error) {
	root, _, err := place.Parse(arg)
	if err != nil {
		return "", err
	}
	tail := strings.TrimPrefix(arg, root)
	if root == "" || len(arg) > replica.MaxOrigin/2 {
		return "", fmt.Errorf("%.80q has %d bytes: want URL[@STEP], of at most %d", arg, len(arg), replica.MaxOrigin/2)
	}
	if strings.Contains(root, "://") && strings.ContainsAny(root, "@?#") {
		return "", errors.New("the URL has more than a place: keys, tokens and regions come from the environment")
	}
	if !strings.Contains(root, "://") {
		if root, err = filepath.Abs(root); err != nil {
			return "", err
		}
	}
	if job != "" {
		if err := replica.CheckJobName(job); err != nil {
			return "", fmt.Errorf("--from-job: %w", err)
		}
		root = strings.TrimRight(root, "/") + "/" + job
	}
	return root + tail, nil
}

// origin fills in what Asked names, which is kept until the lease ends.
func (c ckpt) origin(ctx context.Context, o *replica.Origin) (lease *originLease, err error) {
	w, err := c.Find(ctx, o.Asked, place.DefaultWho())
	if err != nil {
		return nil, err
	}
	defer func() {
		if lease == nil {
			w.Close()
		}
	}()
	err = w.Read(ctx, func(f catalog.Found) (err error) {
		lease, err = c.begins(ctx, w, f, o)
		return err
	})
	return lease, err
}

// begins fills in a generation that a job begins with.
func (c ckpt) begins(ctx context.Context, w *place.Place, f catalog.Found, o *replica.Origin) (*originLease, error) {
	if err := f.Readable(); err != nil {
		return nil, err
	}
	o.URL, o.Job, o.Run, o.Place, o.Generation, o.World = w.Cat.URL(), f.Job, f.Commit.Run, f.Where(), f.Generation, f.Layout.World
	if err := o.Check(); err != nil {
		return nil, err
	}
	l, refused := w.Cat.Lease(ctx, f.Run, f.Generation, "a job begins with it")
	if errors.Is(refused, catalog.ErrNone) {
		return nil, fmt.Errorf("step %d of %s/%s: %w", f.Generation.Step, w.Cat.URL(), f.Job, refused)
	}
	if _, err := w.Cat.Holds(ctx, f.Job, f.Commit.Run, f.Generation); err != nil { // it is kept now: another look would find the same
		if refused == nil {
			err = errors.Join(err, l.End(ctx))
		}
		return nil, fmt.Errorf("step %d of %s/%s: %s", f.Generation.Step, w.Cat.URL(), f.Job, catalog.Plain(err))
	}
	if refused != nil {
		console.Printf(c.std.err, "--from is kept by no lease, so that it may be deleted before the ranks have read it: %v\n", refused)
		return nil, nil
	}
	return holdLease(ctx, l, w.Close), nil
}

// originEnd is how long the end of a launcher waits for that of its lease. One that is not ended ends by itself.
const originEnd = 5 * time.Second

// originLease keeps what a job begins with from retention until the ranks have read it. Each rank takes a lease of its own when it opens the generation.
type originLease struct {
	let   func()
	ended chan struct{}
}

func holdLease(ctx context.Context, l *catalog.Lease, done func()) *originLease {
	end := make(chan struct{})
	o := &originLease{sync.OnceFunc(func() { close(end) }), make(chan struct{})}
	go func() {
		defer close(o.ended)
		_ = l.Keep(context.WithoutCancel(ctx), end)
		done()
	}()
	return o
}

// begun lets the generation go, and waits for nothing; nil: none is kept.
func (o *originLease) begun() {
	if o != nil {
		o.let()
	}
}

// end lets it go at the end of the launcher.
func (o *originLease) end() {
	if o == nil {
		return
	}
	o.let()
	t := time.NewTimer(originEnd)
	defer t.Stop()
	select {
	case <-o.ended:
	case <-t.C:
	}
}
