package place

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"unicode"

	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/usage"
)

// IdentityVariable names a file with keys where no flag does.
const IdentityVariable = sealed.IdentityVariable

// RecipientsVariable names to whom generations are encrypted that a command or a program writes: recipients of age, with spaces or commas
// between.
const RecipientsVariable = "REPLICAD_RECIPIENTS"

// Sealing are to whom generations are encrypted that a command writes, as the flag or else the environment names them, and what reads.
// nil: neither is named. own: what is written is read back with these keys before it counts, so that one of them has to open it.
func (k *Keyring) Sealing(flag []string, own bool) (*sealed.Keys, error) {
	from, names := "--recipient", flag
	if len(names) == 0 {
		from = RecipientsVariable
		names = strings.FieldsFunc(os.Getenv(RecipientsVariable), func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
	}
	if len(names) == 0 {
		return k.keys()
	}
	ids, err := k.Identities()
	if err != nil {
		return nil, err
	}
	keys, err := sealed.New(names, ids)
	if err == nil && own {
		if err = keys.Check(); errors.Is(err, sealed.ErrLocked) {
			err = fmt.Errorf("a generation is read back by who wrote it: name the file with the key of one recipient in %s",
				IdentityVariable)
		}
	}
	if err != nil {
		return nil, usage.Wrong(fmt.Errorf("%s: %w", from, err))
	}
	return keys, nil
}

// maxIdentity bounds such a file, in bytes.
const maxIdentity = 1 << 20

// Keyring are the keys of --identity, or of the environment. The file is read once: it may be a pipe.
type Keyring struct {
	File string // the flag's
	once sync.Once
	ids  []sealed.Identity
	err  error
}

// keys are nil where nothing names a file.
func (k *Keyring) keys() (*sealed.Keys, error) {
	ids, err := k.Identities()
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	return sealed.New(nil, ids)
}

// Identities are the keys; none where nothing names a file.
func (k *Keyring) Identities() ([]sealed.Identity, error) {
	k.once.Do(func() {
		from, path := "--identity", k.File
		if path == "" {
			from, path = IdentityVariable, os.Getenv(IdentityVariable)
		}
		if path == "" {
			return
		}
		if sealed.HoldsKey(path) {
			k.err = usage.Wrong(fmt.Errorf("%s: it is a key itself (not shown), which other users of this host may have read by now: put "+
				"a new one into a file of mode 0600, and name that", from))
			return
		}
		if k.ids, k.err = identities(path); k.err != nil {
			k.err = usage.Wrong(fmt.Errorf("%s %s: %w", from, path, k.err))
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
