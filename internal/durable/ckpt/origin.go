package ckpt

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
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// fromPatience is how long a launcher looks for the generation that --from names.
const fromPatience = time.Minute

// Origin finds the generation that a new job is to begin with, and keeps it until the lease ends. What cannot be found is a failure that
// the leader judges; a name that can be none is an error.
func Origin(ctx context.Context, finder place.Finder, arg, job string) (from *wire.From, lease *Lease, err error) {
	asked, err := fromName(arg, job)
	if err != nil {
		return nil, nil, err
	}
	from = &wire.From{Origin: replica.Origin{Asked: asked}}
	ctx, cancel := context.WithTimeoutCause(ctx, fromPatience, fmt.Errorf("no answer for %v", fromPatience))
	defer cancel()
	if lease, err = originAt(ctx, finder, &from.Origin); err != nil {
		from.Failed = replica.Line(err.Error(), wire.MaxRefusedText)
	}
	return from, lease, nil
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

// originAt fills in what Asked names, which is kept until the lease ends.
func originAt(ctx context.Context, c place.Finder, o *replica.Origin) (lease *Lease, err error) {
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
		lease, err = begins(ctx, w, f, o)
		return err
	})
	return lease, err
}

// begins fills in a generation that a job begins with.
func begins(ctx context.Context, w *place.Place, f catalog.Found, o *replica.Origin) (*Lease, error) {
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
		console.Printf(w.Notes, "--from is kept by no lease, so that it may be deleted before the ranks have read it: %v\n", refused)
		return nil, nil
	}
	return holdLease(ctx, l, w.Close), nil
}

// originEnd is how long the end of a launcher waits for that of its lease. One that is not ended ends by itself.
const originEnd = 5 * time.Second

// Lease keeps what a job begins with from retention until the ranks have read it. Each rank takes a lease of its own when it opens the
// generation.
type Lease struct {
	let   func()
	Ended chan struct{} // closed when it has ended
}

func holdLease(ctx context.Context, l *catalog.Lease, done func()) *Lease {
	end := make(chan struct{})
	o := &Lease{sync.OnceFunc(func() { close(end) }), make(chan struct{})}
	go func() {
		defer close(o.Ended)
		_ = l.Keep(context.WithoutCancel(ctx), end)
		done()
	}()
	return o
}

// Begun lets the generation go, and waits for nothing; nil: none is kept.
func (o *Lease) Begun() {
	if o != nil {
		o.let()
	}
}

// End lets it go at the end of the launcher.
func (o *Lease) End() {
	if o == nil {
		return
	}
	o.let()
	t := time.NewTimer(originEnd)
	defer t.Stop()
	select {
	case <-o.Ended:
	case <-t.C:
	}
}
