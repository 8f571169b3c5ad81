package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/replicad/replicad/internal/console"
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

// recipientsEnv names to whom generations are encrypted that a command or a program writes: recipients of age, with spaces or commas between.
const recipientsEnv = "REPLICAD_RECIPIENTS"

// sealing are to whom generations are encrypted that a command writes, as the flag or else the environment names them, and what reads. nil: neither is named. own:
// what is written is read back with these keys before it counts, so that one of them has to open it.
func (k *keyring) sealing(flag []string, own bool) (*sealed.Keys, error) {
	from, names := "--recipient", flag
	if len(names) == 0 {
		from = recipientsEnv
		names = strings.FieldsFunc(os.Getenv(recipientsEnv), func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
	}
	if len(names) == 0 {
		return k.keys()
	}
	ids, err := k.identities()
	if err != nil {
		return nil, err
	}
	keys, err := sealed.New(names, ids)
	if err == nil && own {
		if err = keys.Check(); errors.Is(err, sealed.ErrLocked) {
			err = fmt.Errorf("a generation is read back by who wrote it: name the file with the key of one recipient in %s", identityEnv)
		}
	}
	if err != nil {
		return nil, coded(exitUsage, fmt.Errorf("%s: %w", from, err))
	}
	return keys, nil
}

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
		if sealed.HoldsKey(path) {
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
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode(); mode.IsRegular() && mode.Perm()&0o077 != 0 { // a pipe's mode says nothing
		return nil, fmt.Errorf("mode %04o: other users can read the key: chmod 600 it", mode.Perm())
	}
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
		console.Printf(n.to, "%s\n", noticeText(s))
	}
}

func noticeText(s remote.Notice) string {
	what := "replicad: the store is asked to " + strings.TrimSpace(s.Op+" "+s.Key)
	if s.Err == nil {
		return what + ": " + s.Far
	}
	text := fmt.Sprintf("%s: %v", what, s.Err)
	if s.Attempt > 0 {
		text += fmt.Sprintf("; attempt %d, the next one in %v", s.Attempt, s.Again.Round(100*time.Millisecond))
	}
	return text
}
