package catalog

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/diff"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/keep"
	"github.com/replicad/replicad/internal/durable/catalog/write"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/racing"
	"github.com/replicad/replicad/replica"
)

// pair makes a key, and keys that encrypt to it and to others.
func pair(t testing.TB, others ...string) (*age.X25519Identity, *sealed.Keys) {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	k, err := sealed.New(append([]string{id.Recipient().String()}, others...), []age.Identity{id})
	if err != nil {
		t.Fatal(err)
	}
	return id, k
}

// opening are keys that only read.
func opening(t testing.TB, id age.Identity) *sealed.Keys {
	t.Helper()
	k, err := sealed.New(nil, []age.Identity{id})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestEncrypted: what holds of a catalog holds of one that encrypts, at doubts, crashes and damage.
func TestEncrypted(t *testing.T) {
	_, encrypting = pair(t)
	defer func() { encrypting = nil }()
	for name, test := range map[string]func(*testing.T){
		"round trip": TestRoundTrip, "commit once": TestCommitOnce, "damage in pairs": TestDamageInPairs, "one bad read": TestOneBadReadIsNoDamage, "swapped": TestSwapped,
		"crash of the first": TestCrashOfTheFirst, "doubts": TestDoubtAtEveryCall, "crash of a copy": TestCopyCrash, "copy heals": TestCopyHealsFromTheTwin,
		"copy mends": TestCopyMendsItsTarget, "another cluster": TestFrozenOfAnotherCluster, "diff": TestDiff, "directory": TestOverADirectory, "kept by several": TestKeptFilesRace,
	} {
		t.Run(name, test)
	}
}

// TestAnEarlierTryIsTaken: what a try has left that came through unseen is taken by the next one, though it would encrypt to other bytes. What was
// damaged meanwhile is not.
func TestAnEarlierTryIsTaken(t *testing.T) {
	_, keys := pair(t)
	m := memory.New()
	c := with(m, 1, keys)
	com, err := wrote(t.Context(), c, gen(4), 1, 17)
	if err != nil {
		t.Fatal(err)
	}
	f := find0(t, c)[0]
	commit := f.Run.Key(format.Name{Kind: format.CommitKind, Generation: gen(4)})
	if err := m.Delete(t.Context(), commit); err != nil {
		t.Fatal(err)
	}
	again, err := wrote(t.Context(), with(m, 1, keys), gen(4), 1, 17)
	if err != nil || again.Index != com.Index || !slices.Equal(again.Sealed.Files, com.Sealed.Files) {
		t.Fatalf("%+v, was %+v: %v", again, com, err)
	}
	checkWhole(t, c, find0(t, c)[0], 1)
	m.Bend(f.Run.Under(f.Index.Files[len(f.Index.Files)-1].Key), func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	if err := m.Delete(t.Context(), commit); err != nil {
		t.Fatal(err)
	}
	if _, err := wrote(t.Context(), with(m, 1, keys), gen(4), 1, 17); err == nil {
		t.Error("what was damaged is taken")
	}
}

// TestAnEarlierTryIsNeverReplaced: a daemon that comes again, or a spool that is finished, writes a generation anew whose COMMIT is there already. A store
// that replaces what it has on completion is not asked to.
func TestAnEarlierTryIsNeverReplaced(t *testing.T) {
	id, keys := pair(t)
	m := memory.New()
	m.Replaces = true
	com, err := wrote(t.Context(), with(m, 1, keys), gen(4), 1, 17)
	if err != nil {
		t.Fatal(err)
	}
	again, err := wrote(t.Context(), with(m, 1, keys), gen(4), 1, 17)
	if err != nil || !again.Same(com) {
		t.Errorf("%+v, was %+v: %v", again, com, err)
	}
	c := with(m, 1, keys)
	if faults, err := c.Verify(t.Context(), find0(t, c)[0], nil); err != nil || len(faults) > 0 {
		t.Errorf("%v, %v", faults, err)
	}
	_, other := pair(t, id.Recipient().String()) // its daemon came again with others
	made := durabletest.Make(gen(4), 1)
	f := find0(t, c)[0]
	w, err := with(m, 1, other).WriteGroup(t.Context(), write.Attempt{Run: f.Run, Generation: gen(4), Write: 17}, part(made.Groups[0]))
	if err != nil || w.File.Key == f.Index.Files[1].Key {
		t.Errorf("%+v, %v", w.File, err)
	}
	if faults, err := c.Verify(t.Context(), f, nil); err != nil || len(faults) > 0 {
		t.Errorf("others: %v, %v", faults, err)
	}
}

// TestWritersAtOnce: a node that the leader gave up goes on while another one writes the same object, and completes it behind the COMMIT.
func TestWritersAtOnce(t *testing.T) {
	_, keys := pair(t)
	m := memory.New()
	m.Replaces = true
	slow := m.Client()
	committed := false
	slow.Before = func(call memory.Call) error {
		if call.Verb == "Complete" && !committed {
			committed = true
			mustWrite(t, with(m, 1, keys), gen(4), 1)
		}
		return nil
	}
	made := durabletest.Make(gen(4), 1)
	c := with(m, 1, keys)
	r, err := c.Begin(t.Context(), format.Run{Job: durabletest.JobName, ID: durabletest.Job, Owner: 7, Began: began.UnixMilli()})
	if err != nil {
		t.Fatal(err)
	}
	a := write.Attempt{Run: r, Generation: gen(4), Write: 17}
	if _, err := with(slow, 1, keys).WriteGroup(t.Context(), a, part(made.Groups[0])); err != nil || !committed {
		t.Fatal(committed, err)
	}
	f := find0(t, c)[0]
	if faults, err := c.Verify(t.Context(), f, nil); err != nil || len(faults) > 0 {
		t.Errorf("%v, %v", faults, err)
	}
	checkWhole(t, c, f, 1)
	if list, err := c.Tries(t.Context(), a, "group-0"); err != nil || len(list) != 2 {
		t.Errorf("%v, %v", list, err)
	}
	a.Write++
	if _, err := c.WriteGroup(t.Context(), a, part(made.Groups[0])); err != nil {
		t.Fatal(err)
	}
	if err := c.Discard(t.Context(), a, []string{"group-0"}); err != nil {
		t.Fatal(err)
	}
	if list, err := c.Tries(t.Context(), a, "group-0"); err != nil || len(list) != 0 {
		t.Errorf("what was given up stays: %v, %v", list, err)
	}
}

// TestWhatIsLockedIsNoDamage: a file of a generation that is as its index says, and that no key opens, is not damaged. One that was changed so that no key
// opens it is.
func TestWhatIsLockedIsNoDamage(t *testing.T) {
	_, keys := pair(t)
	_, others := pair(t)
	m := memory.New()
	mustWrite(t, with(m, 1, keys), gen(4), 1)
	c := with(m, 1, keys)
	f := find0(t, c)[0]
	made := durabletest.Make(gen(4), 1)
	w, err := with(m, 1, others).WriteGroup(t.Context(), write.Attempt{Run: f.Run, Generation: gen(4), Write: 18}, part(made.Groups[0]))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(f.Index.Files, func(file format.File) bool { return strings.Contains(file.Key, "group-0.w17") })
	was := f.Index.Files[i]
	f.Index.Files[i] = w.File // as a commit of before has it, which did not compare recipients
	_, err = c.OpenShard(t.Context(), f, replica.OfGroup(0))
	if !errors.Is(err, find.ErrLocked) || damage.Is(err) || !strings.Contains(err.Error(), "durable_identities") {
		t.Errorf("open: %v", err)
	}
	if _, err := c.Verify(t.Context(), f, nil); !errors.Is(err, find.ErrLocked) || damage.Is(err) {
		t.Errorf("verify: %v", err)
	}
	f.Index.Files[i] = was
	m.Bend(f.Run.Under(was.Key), func(b []byte) []byte { b[bytes.IndexByte(b, '\n')+12] ^= 1; return b })
	if _, err := c.OpenShard(t.Context(), f, replica.OfGroup(0)); !damage.Is(err) {
		t.Errorf("changed: %v", err)
	}
}

// TestFrozenTwinsThatBothRotted: what is encrypted once more lies under another name: no index that names the former files says its digest.
func TestFrozenTwinsThatBothRotted(t *testing.T) {
	_, keys := pair(t)
	m := memory.New()
	mustWrite(t, with(m, 1, keys), gen(4), 1)
	first := find0(t, with(m, 1, keys))[0]
	for _, key := range first.Commit.Frozen {
		m.Replace(first.Run.Under(key), func(b []byte) []byte { b[len(b)/2] ^= 1; b[30] ^= 1; return b })
	}
	mustWrite(t, with(m, 1, keys), gen(8), 1)
	c := with(m, 1, keys)
	second, err := c.Get(t.Context(), first.Run, gen(8))
	if err != nil {
		t.Fatal(err)
	}
	if second.Commit.Frozen[0] == first.Commit.Frozen[0] {
		t.Errorf("%s has other bytes than %v says", first.Commit.Frozen[0], first.Generation)
	}
	checkWhole(t, c, second, 1)
	if _, err := c.Verify(t.Context(), first, nil); !damage.Is(err) {
		t.Error(err)
	}
	mustWrite(t, with(m, 1, keys), gen(12), 1)
	if third, err := c.Get(t.Context(), first.Run, gen(12)); err != nil || third.Commit.Frozen[0] != second.Commit.Frozen[0] {
		t.Errorf("they are written once more: %v, %v", third.Commit.Frozen, err)
	}
}

// TestNothingIsReadable: no object that says something of the model has any of it as it was. What orders and keeps generations stays readable.
func TestNothingIsReadable(t *testing.T) {
	id, keys := pair(t)
	m := memory.New()
	mustWrite(t, with(m, 2, keys), gen(4), 2)
	made := durabletest.Make(gen(4), 2)
	sealedOnes := 0
	for _, key := range m.Keys() {
		b, _, err := m.Get(t.Context(), key, 1<<24)
		if err != nil {
			t.Fatal(err)
		}
		n := format.ParseName(strings.Join(strings.Split(key, "/")[min(2, strings.Count(key, "/")):], "/"))
		is := bytes.HasPrefix(b, []byte("age-encryption.org/v1\n"))
		if want := n.Kind == format.ShardKind || n.Kind == format.SharedKind || n.Kind == format.IndexKind; is != want {
			t.Errorf("%s is encrypted: %v", key, is)
		}
		if is {
			sealedOnes++
			if r, err := age.Decrypt(bytes.NewReader(b), id); err != nil || r == nil {
				t.Errorf("age does not open %s: %v", key, err)
			}
		}
		for _, p := range append(append(made.Groups, made.Frozen...), made.Private...) {
			for _, r := range p.Regions {
				if bytes.Contains(b, []byte(`"`+r.Name+`"`)) || r.Bytes > 16 && r.Offset+16 <= uint64(len(p.Bytes)) && bytes.Contains(b, p.Bytes[r.Offset:r.Offset+16]) && !bytes.Equal(p.Bytes[r.Offset:r.Offset+16], make([]byte, 16)) {
					t.Errorf("%s shows %s of %v", key, r.Name, p.Manifest.Part)
				}
			}
		}
	}
	if sealedOnes != 8 { // two groups, two frozen parts twice, a node's private ones, the index
		t.Errorf("%d objects are encrypted", sealedOnes)
	}
}

// TestEncryptedTakesNoMoreRequests: finding, opening and reading take as many requests as without encryption.
func TestEncryptedTakesNoMoreRequests(t *testing.T) {
	_, keys := pair(t)
	var count [2]int64
	for i, k := range []*sealed.Keys{nil, keys} {
		st := &ranged{Store: memory.New()}
		mustWrite(t, with(st, 1, k), gen(4), 2)
		c := with(st, 1, k, func(o *Options) { o.Block = 8 << 20 })
		found, _ := finds(t, c)
		st.requests.Store(0)
		checkWhole(t, c, found[0], 2)
		for _, p := range found[0].Index.Parts {
			rd, err := c.Open(t.Context(), found[0], p.Part)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := rd.ReadSpan(0, len(rd.Manifest().Chunks), nil); err != nil {
				t.Fatal(err)
			}
			rd.Close()
		}
		count[i] = st.requests.Load()
	}
	if count[0] != count[1] || count[0] == 0 {
		t.Errorf("%d requests, with encryption %d", count[0], count[1])
	}
}

// TestWithoutAKey: an encrypted generation is found, verified, copied and deleted without its key, and what lies in it refused with a sentence.
func TestWithoutAKey(t *testing.T) {
	_, keys := pair(t)
	stranger, _ := pair(t)
	for name, other := range map[string]*sealed.Keys{"none": nil, "another": opening(t, stranger)} {
		m := memory.New()
		mustWrite(t, with(m, 2, keys), gen(4), 2)
		c := with(m, 2, other)
		found, skipped := finds(t, c)
		if len(found) != 1 || len(skipped) != 0 {
			t.Fatal(found, skipped)
		}
		f := found[0]
		locked := func(what string, err error) {
			t.Helper()
			if want := "step 4 of " + m.URL() + "/" + f.Job + " is encrypted to " + keys.Recipients()[0] + ": no key that was given opens it: name its key's file in durable_identities"; !errors.Is(err, find.ErrLocked) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s, %s: %v", name, what, err)
			}
			if damage.Is(err) {
				t.Errorf("%s, %s: it counts as damage", name, what)
			}
		}
		locked("find", f.Readable())
		_, err := c.OpenShard(t.Context(), f, replica.OfGroup(0))
		locked("open", err)
		_, err = c.Tensors(t.Context(), f)
		locked("tensors", err)
		_, err = diff.Generations(t.Context(), c, f, c, f)
		locked("diff", err)
		locked("copy anew", c.CopyAnew(t.Context(), f, over(memory.New(), 1)))
		if _, err := c.Strip(t.Context(), f, "test", true); err == nil || !strings.Contains(err.Error(), "--decrypt") {
			t.Error(err)
		}
		if faults, err := c.Verify(t.Context(), f, nil); err != nil || len(faults) > 0 {
			t.Error(faults, err)
		}
		if list, err := c.List(t.Context(), f.Job); err != nil || len(list) != 1 || list[0].Row.Metrics["loss"] != 1 {
			t.Errorf("%+v, %v", list, err)
		}
		to := memory.New()
		if _, err := c.Copy(t.Context(), f, with(to, 2, other)); err != nil {
			t.Fatal(err)
		}
		copied := find0(t, with(to, 2, keys))
		checkWhole(t, with(to, 2, keys), copied[0], 2)
		if s, err := c.Sweep(t.Context(), f.Run, keep.LeastGrace); err != nil || len(s.Objects) > 0 {
			t.Errorf("%+v, %v", s, err)
		}
		for _, key := range []string{f.Index.Files[len(f.Index.Files)-1].Key, f.Commit.Index.Key} {
			bad := m.Clone()
			bad.Bend(f.Run.Under(key), func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
			_, skipped := finds(t, with(bad, 1, other))
			_, err := with(bad, 1, other).Verify(t.Context(), f, nil)
			if key == f.Commit.Index.Key {
				if len(skipped) != 1 || skipped[0].State != find.Damaged {
					t.Errorf("a damaged index: %+v", skipped)
				}
			} else if !damage.Is(err) {
				t.Errorf("%s: %v", key, err)
			}
		}
		if err := c.Delete(t.Context(), f.Run, f.Generation, "test"); err != nil {
			t.Fatal(err)
		}
		for _, key := range m.Keys() {
			if strings.Contains(key, "step-") && !strings.Contains(key, "/log/") {
				t.Errorf("%s stays", key)
			}
		}
	}
}

// TestOtherRecipients: who changes them, begins with them or ends with them writes frozen parts beside the former ones, and all generations stay readable.
func TestOtherRecipients(t *testing.T) {
	a, first := pair(t)
	_, second := pair(t, a.Recipient().String())
	m := memory.New()
	steps := []*sealed.Keys{nil, first, second, first, opening(t, a)}
	for i, k := range steps {
		mustWrite(t, with(m, 2, k), gen(replica.Step(10*(i+1))), 1)
	}
	found := find0(t, with(m, 2, first))
	if len(found) != len(steps) {
		t.Fatal(len(found))
	}
	for _, f := range found {
		checkWhole(t, with(m, 2, first), f, 1)
	}
	slices.Reverse(found)
	if found[0].Frozen[0] != found[4].Frozen[0] || found[1].Frozen[0] != found[3].Frozen[0] || found[1].Frozen[0] == found[2].Frozen[0] || found[0].Frozen[0] == found[1].Frozen[0] {
		t.Errorf("%v, %v, %v, %v, %v", found[0].Frozen, found[1].Frozen, found[2].Frozen, found[3].Frozen, found[4].Frozen)
	}
}

// TestNodesThatDiffer: a generation is not committed whose nodes have other recipients than the leader.
func TestNodesThatDiffer(t *testing.T) {
	id, keys := pair(t)
	_, others := pair(t)
	_, both := pair(t, id.Recipient().String())
	for name, tc := range map[string]struct {
		leader, node *sealed.Keys
		want         string
	}{
		"the leader alone":  {keys, nil, "durable_recipients is to be the same on all nodes"},
		"the node alone":    {nil, keys, "durable_recipients is to be the same on all nodes"},
		"others than those": {keys, others, fmt.Sprintf("encrypted to recipients with tag %q, this daemon writes encrypted to recipients with tag %q: durable_recipients is to be the same on all nodes", others.Tag(), keys.Tag())},
		"those and others":  {keys, both, fmt.Sprintf("encrypted to recipients with tag %q", both.Tag())},
	} {
		m := memory.New()
		made := durabletest.Make(gen(4), 1)
		leader, node := with(m, 1, tc.leader), with(m, 1, tc.node)
		r, err := leader.Begin(t.Context(), format.Run{Job: durabletest.JobName, ID: durabletest.Job, Owner: 7, Began: began.UnixMilli()})
		if err == nil {
			err = leader.Claim(t.Context(), r, fleet)
		}
		if err != nil {
			t.Fatal(err)
		}
		a := write.Attempt{Run: r, Generation: gen(4), Write: 17}
		w, err := node.WriteGroup(t.Context(), a, part(made.Groups[0]))
		if err != nil {
			t.Fatal(err)
		}
		w.Object = nil
		shared, err := node.WriteFrozen(t.Context(), r, part(made.Frozen[0]))
		if err != nil {
			t.Fatal(err)
		}
		_, err = leader.Commit(t.Context(), a, fleet, format.Commit{Layout: made.Layout}, nil, []format.Written{shared})
		if err == nil || !strings.Contains(err.Error(), "durable_recipients is to be the same on all nodes") || !strings.Contains(err.Error(), shared.File.Key) {
			t.Errorf("%s: %v", name, err)
		}
		_, err = leader.Commit(t.Context(), a, fleet, format.Commit{Layout: made.Layout}, map[replica.Part]replica.Digest{made.Groups[0].Manifest.Part: made.Groups[0].Manifest.Root}, []format.Written{w})
		if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), w.File.Key) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCopyAnew: a plain copy is what was never encrypted, and one to others is theirs. Whatever call it breaks off at, the next one comes through.
func TestCopyAnew(t *testing.T) {
	a, keys := pair(t)
	b, others := pair(t)
	src := memory.New()
	mustWrite(t, with(src, 2, keys), gen(4), 2)
	from := with(src, 2, opening(t, a))
	f := find0(t, from)[0]
	plain := memory.New()
	for range 2 {
		if err := from.CopyAnew(t.Context(), f, with(plain, 2, nil)); err != nil {
			t.Fatal(err)
		}
	}
	never := memory.New()
	mustWrite(t, with(never, 2, nil), gen(4), 2)
	got := find0(t, with(plain, 2, nil))[0]
	checkWhole(t, with(plain, 2, nil), got, 2)
	want := find0(t, with(never, 2, nil))[0]
	if !slices.Equal(got.Index.Files, want.Index.Files) || got.Sealed != nil || got.Index.Files[0].Sealed != 0 || got.At != f.At || got.Notes["lr"] != "0.1" {
		t.Errorf("%+v, want %+v", got.Index.Files, want.Index.Files)
	}
	theirs := memory.New()
	to, err := sealed.New(others.Recipients(), nil) // their key is theirs
	if err == nil {
		err = from.CopyAnew(t.Context(), f, with(theirs, 2, to))
	}
	if err != nil {
		t.Fatal(err)
	}
	c := with(theirs, 2, opening(t, b))
	checkWhole(t, c, find0(t, c)[0], 2)
	if f := find0(t, with(theirs, 2, opening(t, a)))[0]; f.Readable() == nil {
		t.Error("the former key opens a copy to others")
	}
	if err := from.CopyAnew(t.Context(), f, with(src.Clone(), 2, nil)); !errors.Is(err, write.ErrCommitted) {
		t.Errorf("over the encrypted one: %v", err)
	}
	broken := errors.New("broken")
	for at := 1; ; at += racing.Stride {
		to := memory.New()
		n := 0
		to.Before = func(memory.Call) error {
			if n++; n >= at {
				return broken
			}
			return nil
		}
		err := from.CopyAnew(t.Context(), f, with(to, 1, nil))
		if to.Before = nil; err != nil && !errors.Is(err, broken) {
			t.Fatal(err)
		}
		done := n < at
		if err := from.CopyAnew(t.Context(), f, with(to, 1, nil)); err != nil {
			t.Fatalf("after call %d broke: %v", at, err)
		}
		checkWhole(t, with(to, 1, nil), find0(t, with(to, 1, nil))[0], 2)
		if done {
			break
		}
	}
	var bad store.Store = src
	src.Bend(f.Run.Under(f.Index.Files[len(f.Index.Files)-1].Key), func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	if err := with(bad, 1, keys).CopyAnew(t.Context(), f, with(memory.New(), 1, nil)); !damage.Is(err) {
		t.Errorf("a damaged source: %v", err)
	}
}

// TestCopyAnewMendsItsTarget: a copy that is there is read before it counts, with or without a key of it. What is damaged is written anew, and said; another
// generation in its place, or one for others, is refused before a byte of the state is copied.
func TestCopyAnewMendsItsTarget(t *testing.T) {
	a, keys := pair(t)
	b, others := pair(t)
	src := memory.New()
	mustWrite(t, with(src, 2, keys), gen(4), 2)
	from := with(src, 2, opening(t, a))
	f := find0(t, from)[0]
	without, err := sealed.New(others.Recipients(), []age.Identity{a}) // their key is theirs
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ to, reads *sealed.Keys }{"plain": {nil, nil}, "to others": {without, opening(t, b)}, "to others, with their key": {others, others}} {
		st := memory.New()
		var said []string
		to := func() *Catalog {
			return with(st, 1, tc.to, noting(func(err error) { said = append(said, err.Error()) }))
		}
		if err := from.CopyAnew(t.Context(), f, to()); err != nil {
			t.Fatal(err)
		}
		before := st.Keys()
		if err := from.CopyAnew(t.Context(), f, to()); err != nil || !slices.Equal(st.Keys(), before) || len(said) > 0 {
			t.Errorf("%s, again: %v, %v", name, said, err)
		}
		for which, of := range map[string]func(g find.Found) []string{
			"index": func(g find.Found) []string { return []string{g.Commit.Index.Key} },
			"shard": func(g find.Found) []string { return []string{g.Index.Files[len(g.Index.Files)-1].Key} },
			"twins": func(g find.Found) []string { return g.Frozen[:2] }, // one bad twin is mended from the other
		} {
			for what, bend := range map[string]func(b []byte) []byte{"flipped": func(b []byte) []byte { b[len(b)-20] ^= 1; return b }, "gone": func([]byte) []byte { return nil }} {
				g := find0(t, with(st, 1, tc.reads))[0]
				said = nil
				for _, key := range of(g) {
					st.Bend(g.Run.Under(key), bend)
				}
				if err := from.CopyAnew(t.Context(), f, to()); err != nil || len(said) != 1 || !strings.Contains(said[0], "step 4 of job opticks was damaged in memory: and is written anew") {
					t.Fatalf("%s, %s %s: %q, %v", name, which, what, said, err)
				}
				c := with(st, 1, tc.reads)
				list := find0(t, c)
				if list[0].Write == g.Write {
					t.Errorf("%s, %s %s: names of what was deleted are used again", name, which, what)
				}
				checkWhole(t, c, list[0], 2)
				if faults, err := c.Verify(t.Context(), list[0], nil); err != nil || len(faults) > 0 {
					t.Errorf("%s, %s %s: %v, %v", name, which, what, faults, err)
				}
			}
		}
		g := find0(t, with(st, 1, tc.reads))[0]
		if err := with(st, 1, tc.reads).MarkRead(t.Context(), g, store.ErrCorrupt); err != nil {
			t.Fatal(err)
		}
		if err := from.CopyAnew(t.Context(), f, to()); err != nil {
			t.Error(err)
		}
		if n, ok, err := to().NewestRead(t.Context(), g.Run, gen(4)); err != nil || !ok || !n.Good {
			t.Errorf("%s: a record of a read that failed outlives one that did not: %+v, %v", name, n, err)
		}
		_, third := pair(t)
		uploads := 0
		st.Before = func(c memory.Call) error {
			if c.Verb == "Upload" {
				uploads++
			}
			return nil
		}
		if err := from.CopyAnew(t.Context(), f, with(st, 1, third)); !errors.Is(err, write.ErrCommitted) || uploads > 0 || !strings.Contains(err.Error(), "encrypted otherwise") {
			t.Errorf("%s, for others: %d uploads, %v", name, uploads, err)
		}
		st.Before = nil
		st.Bend(g.Run.Under(g.Index.Files[len(g.Index.Files)-1].Key), func([]byte) []byte { return nil })
		bad := src.Clone()
		bad.Bend(f.Run.Under(f.Index.Files[len(f.Index.Files)-1].Key), func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
		if err := with(bad, 1, keys).CopyAnew(t.Context(), f, to()); !damage.Is(err) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := to().ReadCommit(t.Context(), g.Run, gen(4)); err != nil {
			t.Errorf("%s: what was damaged went, for a source that is: %v", name, err)
		}
	}
}

// TestCopyAnewLeavesWhatIsNewer: what a newer program wrote is no damage, and stays.
func TestCopyAnewLeavesWhatIsNewer(t *testing.T) {
	a, keys := pair(t)
	src, st := memory.New(), memory.New()
	mustWrite(t, with(src, 2, keys), gen(4), 1)
	from := with(src, 2, opening(t, a))
	f := find0(t, from)[0]
	if err := from.CopyAnew(t.Context(), f, with(st, 1, nil)); err != nil {
		t.Fatal(err)
	}
	commit := f.Run.Key(format.Name{Kind: format.CommitKind, Generation: gen(4)})
	st.Bend(commit, func(b []byte) []byte {
		return bytes.Replace(b, fmt.Appendf(nil, `"format":%d`, format.Number), []byte(`"format":99`), 1)
	})
	before := st.Keys()
	if err := from.CopyAnew(t.Context(), f, with(st, 1, nil)); !errors.Is(err, format.ErrNewer) || !slices.Equal(st.Keys(), before) {
		t.Errorf("%v, %v", err, st.Keys())
	}
}
