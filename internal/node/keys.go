package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/owner"
	"github.com/replicad/replicad/replica"
)

// Bounds of what gives the keys.
const (
	keysPatience = 30 * time.Second
	maxKeys      = 1 << 20 // bytes
	maxKeysError = 300     // of what a command says is wrong
)

// durableKeys are to whom the durable tier is encrypted, and what opens it; nil: it is not. What is encrypted here must be readable here: a generation
// is committed by who reads its headers, and resumed from.
func durableKeys(ctx context.Context, c *config.Config) (*sealed.Keys, error) {
	var text []byte
	var err error
	from := "durable_identities " + c.DurableIdentities
	switch {
	case len(c.DurableIdentitiesCommand) > 0:
		from = "durable_identities_command " + c.DurableIdentitiesCommand[0]
		text, err = printed(ctx, c.DurableIdentitiesCommand)
	case c.DurableIdentities != "":
		text, err = secretFile(c.DurableIdentities)
	case len(c.DurableRecipients) == 0:
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	ids, err := sealed.ParseIdentities(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	k, err := sealed.New(c.DurableRecipients, ids)
	if err != nil {
		return nil, fmt.Errorf("durable_recipients: %w", err)
	}
	if !k.Seals() {
		return k, nil
	}
	if err := k.Check(); err != nil {
		return nil, fmt.Errorf("%s: it opens nothing that is encrypted to durable_recipients: %w: add the key of one of them", from, err)
	}
	return k, nil
}

// secretFile reads a file that its owner alone may read.
func secretFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a named pipe is to be refused, not waited for
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch {
	case !st.Mode().IsRegular():
		return nil, errors.New("it is no regular file")
	case st.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("it holds a secret but has mode %04o: chmod 600 %s", st.Mode().Perm(), path)
	}
	if err := owner.Check(path, st); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxKeys+1))
	if err == nil && len(b) > maxKeys {
		err = fmt.Errorf("it is larger than %d bytes", maxKeys)
	}
	return b, err
}

// printed runs a command, and takes what it prints. Nothing of that is shown.
func printed(ctx context.Context, command []string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, keysPatience, fmt.Errorf("it printed no keys for %v", keysPatience))
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.WaitDelay = time.Second // a process that it left may hold its output
	out, wrong := &bounded{most: maxKeys}, &bounded{most: maxKeysError}
	cmd.Stdout, cmd.Stderr = out, wrong
	err := cmd.Run()
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("%w: %s", err, replica.Line(string(wrong.b), maxKeysError))
	case out.over:
		return nil, fmt.Errorf("it printed more than %d bytes", maxKeys)
	}
	return out.b, nil
}

// bounded keeps the first bytes of what is written.
type bounded struct {
	b    []byte
	most int
	over bool
}

func (w *bounded) Write(p []byte) (int, error) {
	room := min(w.most-len(w.b), len(p))
	w.b, w.over = append(w.b, p[:room]...), w.over || room < len(p)
	return len(p), nil
}
