package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/durable"
	"github.com/replicad/replicad/internal/durable/remote"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/launch"
)

// openStore opens the store that a URL or a path names. What a URL does not say, the environment does, as for Amazon's own tools. A store that
// does not do what it is asked is named on says at once: a command that waits for one is not silent.
func openStore(ctx context.Context, url string, says io.Writer) (store.Store, error) {
	n := notices{to: says, now: time.Now}
	return durable.Open(ctx, url, durable.Settings{Notice: n.print})
}

// identityEnv names a file with keys where no flag does: a launcher's ranks inherit it.
const identityEnv = launch.Identity

// maxIdentity bounds such a file, in bytes.
const maxIdentity = 1 << 20

// keyring are the keys of --identity, or of the environment. The file is read once: it may be a pipe.
type keyring struct {
	file string // the flag's
	once sync.Once
	ids  []sealed.Identity
	err  error
}

// keys are nil where nothing names a file.
func (k *keyring) keys() (*sealed.Keys, error) {
	ids, err := k.identities()
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	return sealed.New(nil, ids)
}

func (k *keyring) identities() ([]sealed.Identity, error) {
	k.once.Do(func() {
		from, path := "--identity", k.file
		if path == "" {
			from, path = identityEnv, os.Getenv(identityEnv)
		}
		if path == "" {
			return
		}
		if sealed.IsKey(path) {
			k.err = coded(exitUsage, fmt.Errorf("%s: it is a key itself (not shown), which other users of this host may have read by now: put a new one into a file of mode 0600, and name that", from))
			return
		}
		if k.ids, k.err = identities(path); k.err != nil {
			k.err = coded(exitUsage, fmt.Errorf("%s %s: %w", from, path, k.err))
		}
	})
	return k.ids, k.err
}

func identities(path string) ([]sealed.Identity, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxIdentity+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxIdentity {
		return nil, fmt.Errorf("it is larger than %d bytes", maxIdentity)
	}
	return sealed.ParseIdentities(b)
}

// noticeEvery is how much time lies between two lines about a store.
const noticeEvery = time.Second

// notices prints what goes on with a store, one line a second at most: a hundred parts may fail at once.
type notices struct {
	to  io.Writer
	now func() time.Time

	mu   sync.Mutex // guards last
	last time.Time
}

func (n *notices) print(s remote.Notice) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now := n.now(); now.Sub(n.last) >= noticeEvery {
		n.last = now
		printf(n.to, "%s\n", noticeText(s))
	}
}

func noticeText(s remote.Notice) string {
	text := fmt.Sprintf("replicad: the store is asked to %s %s: %v", s.Op, s.Key, s.Err)
	if s.Attempt > 0 {
		text += fmt.Sprintf("; attempt %d, the next one in %v", s.Attempt, s.Again.Round(100*time.Millisecond))
	}
	return text
}
