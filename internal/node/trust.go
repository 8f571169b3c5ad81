package node

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/atomicfile"
	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

const (
	revokedFile = "revoked.json" // in the state_dir
	resetFile   = "reset.key"    // likewise

	maxRevokedFile = 8 << 20 // bytes: more than lock lets a list become
)

// trust makes revocations true on this node: their connections end, and a daemon that is started again knows them before it has a link. What
// was learned counts at once, for every connection that comes up; run does the rest.
type trust struct {
	id      *pki.Identity
	path    string
	log     *journal.Journal
	audit   *journal.Auditor
	recheck func()
	news    chan struct{}

	mu     sync.Mutex // guards passed
	passed map[passedOver]passing
}

// passedOver is a revocation that this node does not believe, and who is said to have ordered it.
type passedOver struct {
	role     replica.Role
	name     string
	operator string
}

// passing is why, and when it was heard first.
type passing struct {
	epoch replica.CertEpoch
	why   string
	at    time.Time
}

// maxPassed is how many of these are kept, the newest: a log has no more, and a leader that lies may make up any number.
const maxPassed = 1024

func newTrust(id *pki.Identity, stateDir string, log *journal.Journal, a *journal.Auditor, recheck func()) *trust {
	return &trust{id: id, path: filepath.Join(stateDir, revokedFile), log: log, audit: a, recheck: recheck, news: make(chan struct{}, 1), passed: map[passedOver]passing{}}
}

// learn takes revocations in, from the log or from a leader's word, and returns those that go beyond what was known. One that no operator
// signed is passed over, whoever tells it, and so is one whose operator's certificate is over or revoked by now: with that operator's key a node
// that leads could revoke every node. One that no log takes is a leader's invention: it is dropped, and no text of it is kept or shown. From any
// goroutine.
func (t *trust) learn(list []replica.Revocation) (news []replica.Revocation) {
	list = slices.DeleteFunc(slices.Clone(list), func(r replica.Revocation) bool {
		err := lock.CheckRevoked([]replica.Revocation{r})
		if err != nil {
			t.log.Retried("revocation", "of no form", fmt.Sprintf("it is among the revocations that no log takes, and is dropped: the node that leads lies, or is damaged: %.200s", err))
		}
		return err != nil
	})
	slices.SortStableFunc(list, func(a, b replica.Revocation) int { return -cmp.Compare(a.Role, b.Role) }) // operators first
	for _, r := range list {
		if t.id.Revokes(r) {
			continue
		}
		by, err := signer(t.id, r, func(certificate, message, signature []byte) (string, error) {
			name, _, err := t.id.CheckOperator(certificate, message, signature, time.Now())
			return name, err
		})
		if err != nil {
			t.passes(r, err)
			t.log.Retried("revocation", fmt.Sprintf("%v %s, up to epoch %d", r.Role, r.Name, r.Epoch),
				fmt.Sprintf("it is passed over: no operator ordered it whose word counts now: %v: if it is meant, have another operator order it again (replicad revoke %v %s --until %d), else a node that leads lies", err, r.Role, r.Name, r.Epoch))
			continue
		}
		if t.id.Revoke(r) {
			news = append(news, r)
			t.log.Revoked(r, by)
			t.audit.Note("revoked", audit.Fields{"role": r.Role.String(), "name": r.Name, "epoch": fmt.Sprint(r.Epoch), "by": "operator " + by})
		}
	}
	if len(news) > 0 {
		select {
		case t.news <- struct{}{}:
		default: // run has yet to look, and looks at all of it
		}
	}
	return news
}

// passes keeps that a revocation counts for nothing here. Where there is no room the one that was heard first makes it.
func (t *trust) passes(r replica.Revocation, why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := passedOver{r.Role, r.Name, pki.Signer(r.Certificate)}
	was, known := t.passed[of]
	if !known && len(t.passed) >= maxPassed {
		oldest, first := of, time.Now()
		for p, heard := range t.passed {
			if heard.at.Before(first) {
				oldest, first = p, heard.at
			}
		}
		delete(t.passed, oldest)
	}
	is := passing{r.Epoch, why.Error(), time.Now()}
	if known && was.epoch >= r.Epoch {
		is.epoch, is.at = was.epoch, was.at
	}
	t.passed[of] = is
}

// passedOver counts, by operator, the revocations that were heard and are not believed by now.
func (t *trust) passedOver() (out []control.PassedOver) {
	t.mu.Lock()
	defer t.mu.Unlock()
	by := map[string]control.PassedOver{}
	for of, p := range t.passed {
		if t.id.Revokes(replica.Revocation{Role: of.role, Name: of.name, Epoch: p.epoch}) {
			delete(t.passed, of)
			continue
		}
		s := by[of.operator]
		s.Operator, s.Count = of.operator, s.Count+1
		if p.at.After(s.At) {
			s.Of, s.Why, s.At = fmt.Sprintf("%v %s, up to epoch %d", of.role, of.name, p.epoch), p.why, p.at
		}
		by[of.operator] = s
	}
	for _, operator := range slices.Sorted(maps.Keys(by)) {
		out = append(out, by[operator])
	}
	return out
}

// signer is the operator who ordered what a revocation says, of whom check knows whether their word counts.
func signer(id *pki.Identity, r replica.Revocation, check func(certificate, message, signature []byte) (string, error)) (string, error) {
	by, err := check(r.Certificate, r.Order, r.Signature)
	if err != nil {
		return "", err
	}
	o, err := control.ReadSigned(r.Order)
	if err != nil {
		return "", fmt.Errorf("operator %s signed something else: %w", by, err)
	}
	role, name, revokes := o.Order.Revokes()
	if !o.Of(id.Cluster) || !revokes || !r.Of(role, name) || o.Order.Until != r.Epoch {
		return "", fmt.Errorf("operator %s signed another order", by)
	}
	return by, nil
}

// parseRevoked reads the file's list. Who ordered its revocations is not asked here.
func parseRevoked(b []byte) (list []replica.Revocation, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&list); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("bytes behind its end")
	}
	return list, lock.CheckRevoked(list)
}

// load reads what an earlier start of this daemon knew.
func (t *trust) load() error {
	fail := func(err error) error {
		return fmt.Errorf("%s: %w: restore it; or remove it, and this node trusts revoked certificates until its first link tells it which those are", t.path, err)
	}
	st, err := os.Stat(t.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && (!st.Mode().IsRegular() || st.Size() > maxRevokedFile) {
		err = fmt.Errorf("it has %d bytes and mode %v: want a file of at most %d", st.Size(), st.Mode(), maxRevokedFile)
	}
	if err != nil {
		return fail(err)
	}
	b, err := os.ReadFile(t.path)
	if err != nil {
		return fail(err)
	}
	list, err := parseRevoked(b)
	if err != nil {
		return fail(err)
	}
	for _, r := range list {
		if _, err := signer(t.id, r, t.id.CheckRevoker); err != nil { // what this node once believed stays true
			return fail(err)
		}
		t.id.Revoke(r)
	}
	return nil
}

// run ends connections and writes the file whenever there are news, until ctx ends.
func (t *trust) run(ctx context.Context) {
	for {
		select {
		case <-t.news:
			t.enforce()
		case <-ctx.Done():
			select {
			case <-t.news:
				t.enforce()
			default:
			}
			return
		}
	}
}

func (t *trust) enforce() {
	t.recheck()
	b, err := json.Marshal(t.id.Revoked())
	if err == nil {
		err = atomicfile.Write(t.path, b)
	}
	if err != nil {
		t.log.Failed("revocation", t.path, err.Error()+": after a restart this daemon trusts revoked certificates until it has a link")
	}
}

func revokedStatus(id *pki.Identity) (out []control.RevokedStatus) {
	for _, r := range id.Revoked() {
		out = append(out, control.RevokedStatus{Role: r.Role.String(), Name: r.Name, Epoch: r.Epoch})
	}
	return out
}

// resetKey is what this node resets forgotten connections with: the same at each start, or its peers would notice one by their idle timeout
// alone; and no other's.
func resetKey(stateDir string) (key [32]byte, err error) {
	path := filepath.Join(stateDir, resetFile)
	b, err := readShort(path)
	if err == nil && len(b) == len(key) {
		return [32]byte(b), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return key, fmt.Errorf("state_dir: %w", err)
	}
	rand.Read(key[:])
	if err := atomicfile.Write(path, key[:]); err != nil {
		return key, fmt.Errorf("state_dir %s: %w: is it writable, and its disk not full?", stateDir, err)
	}
	return key, nil
}
