package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// fromPatience is how long a launcher looks for the generation that --from names.
const fromPatience = time.Minute

// origin finds the generation that --from names. What can't be found now may be that of a job which runs already, and goes on without it: the leader
// judges that, and has the reason. A name that can't be one is refused here.
func (f *runFlags) origin(ctx context.Context, std stdio) (*wire.From, error) {
	if f.from == "" {
		if f.fromJob != "" {
			return nil, coded(exitUsage, errors.New("--from-job names a job of the place that --from names: give both"))
		}
		return nil, nil
	}
	asked, err := fromName(f.from, f.fromJob)
	if err != nil {
		return nil, coded(exitUsage, fmt.Errorf("--from: %w", err))
	}
	from := &wire.From{Origin: replica.Origin{Asked: asked}}
	ctx, cancel := context.WithTimeoutCause(ctx, fromPatience, fmt.Errorf("no answer for %v", fromPatience))
	defer cancel()
	if err := (ckpt{std, new(keyring)}).origin(ctx, &from.Origin); err != nil {
		from.Failed = replica.Line(err.Error(), wire.MaxRefusedText)
	}
	return from, nil
}

// fromName is the argument of --from with its job, and with the whole path of a directory: ranks may run elsewhere.
func fromName(arg, job string) (string, error) {
	root, _, err := parseWhere(arg)
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
		if err := replica.CheckName(job); err != nil {
			return "", fmt.Errorf("--from-job: %w", err)
		}
		root = strings.TrimRight(root, "/") + "/" + job
	}
	return root + tail, nil
}

// origin fills in what Asked names.
func (c ckpt) origin(ctx context.Context, o *replica.Origin) error {
	w, err := c.find(ctx, o.Asked, "")
	if err != nil {
		return err
	}
	defer w.close()
	t, f, err := c.one(ctx, w)
	if err == nil {
		err = f.Readable()
	}
	if err != nil {
		return err
	}
	if !f.Old() {
		if _, err := w.cat.Holds(ctx, f.Job, f.Commit.Run, f.Generation); err != nil {
			return fmt.Errorf("step %d of %s/%s: %s", f.Generation.Step, t.URL(), f.Job, catalog.Plain(err))
		}
	}
	o.URL, o.Job, o.Run, o.Place, o.Generation, o.World = t.URL(), f.Job, f.Commit.Run, f.Where(), f.Generation, f.Layout.World
	return o.Check()
}
