package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/store"
)

// Rows are the cases, in the order of the table.
func Rows() []Row {
	return []Row{
		{"put if absent: new, there", putNew},
		{"put if unchanged: right, wrong, none, no key", putUnchanged},
		{"a deleted key is as if it never was", deleted},
		{"each content has its own version", versions},
		{"racers: 20 keys x 16, one wins each", racers},
		{"no lost update: 8 x 10 increments", increments},
		{"readers beside a writer see whole contents", wholeContents},
		{"a put whose answer is lost is its own", lostAnswers},
		{"a put that is lost is sent again", lostRequests},
		{"get: too large, absent; small sizes", gets},
		{"read range: inside, past the end, absent", ranges},
		{"stat and list agree", stats},
		{"upload: any order, in parallel, again", uploads},
		{"upload: sizes around a part", uploadSizes},
		{"upload: refused parts, missing parts", uploadRefusals},
		{"upload whose completion is lost is its own", lostCompletion},
		{"upload that was cut: listed, aborted, gone", cutUpload},
		{"upload: nothing seen before its end", unseenUpload},
		{"list: 2,500 keys by key, after, until", longList},
		{"list: prefixes end where they say", prefixes},
		{"list: keys of others are passed over", foreignKeys},
		{"keys: longest, and each allowed byte", keyBounds},
		{"keys that are refused reach nothing", refusedKeys},
		{"no byte outside the prefix is touched", outside},
		{"symbolic links, pipes and directories are no objects", planted},
		{"calls end when their context does", contexts},
		{"calls end when the store does not answer", stalls},
		{"calls end when the store is closed", closes},
		{"the probe passes, and leaves nothing", probes},
		{"no secret is shown", secrets},
		{"generations by the catalog: written, listed, read whole, deleted", generations},
	}
}

func ctxOf(t testing.TB) context.Context { return t.Context() }

// want fails the test unless err is one of the store's answers.
func want(t testing.TB, what string, err, is error) {
	t.Helper()
	if !errors.Is(err, is) || is == nil && err != nil {
		t.Fatalf("%s: %v, want %v", what, err, is)
	}
}

func put(t testing.TB, s store.Store, key, text string) store.Version {
	t.Helper()
	v, err := s.PutNew(ctxOf(t), key, []byte(text))
	want(t, "put "+key, err, nil)
	if v == "" {
		t.Fatalf("put %s: no version", key)
	}
	return v
}

func reads(t testing.TB, s store.Store, key, text string) store.Version {
	t.Helper()
	b, v, err := s.Get(ctxOf(t), key, store.MaxSmall)
	want(t, "get "+key, err, nil)
	if string(b) != text {
		t.Fatalf("get %s: %.80q, want %.80q", key, b, text)
	}
	return v
}

func keysOf(t testing.TB, s store.Store, prefix, after string) (keys []string) {
	t.Helper()
	want(t, "list "+prefix, s.List(ctxOf(t), prefix, after, func(i store.Info) error {
		keys = append(keys, i.Key)
		return nil
	}), nil)
	return keys
}

func lists(t testing.TB, s store.Store, prefix, after string, keys ...string) {
	t.Helper()
	if got := keysOf(t, s, prefix, after); !slices.Equal(got, keys) {
		t.Fatalf("list %q after %q: %d keys, %.300s, want %d, %.300s", prefix, after, len(got), fmt.Sprint(got), len(keys), fmt.Sprint(keys))
	}
}

func putNew(t *testing.T, b Bed) {
	s := b.Open(t)
	v := put(t, s, "a/b.json", "one")
	if got := reads(t, s, "a/b.json", "one"); got != v {
		t.Fatalf("version %q, was put as %q", got, v)
	}
	_, err := s.PutNew(ctxOf(t), "a/b.json", []byte("two"))
	want(t, "put again", err, store.ErrExists)
	_, err = s.PutNew(ctxOf(t), "a/b.json", []byte("one"))
	want(t, "put the same again", err, store.ErrExists)
	reads(t, b.Open(t), "a/b.json", "one")
}

func deleted(t *testing.T, b Bed) {
	s := b.Open(t)
	first := put(t, s, "d/k", "one")
	second, err := s.PutUnchanged(ctxOf(t), "d/k", []byte("two"), first)
	want(t, "put if unchanged", err, nil)
	for range 2 {
		want(t, "delete", s.Delete(ctxOf(t), "d/k"), nil)
		lists(t, s, "", "")
		_, _, err := s.Get(ctxOf(t), "d/k", 100)
		want(t, "get", err, store.ErrAbsent)
		_, err = s.Stat(ctxOf(t), "d/k")
		want(t, "stat", err, store.ErrAbsent)
	}
	_, err = s.PutNew(ctxOf(t), "d/k", []byte("three"))
	if b.KeepsDeleted {
		want(t, "put if absent: the fault is mended, tell docs/stores.md", err, store.ErrExists)
		*b.says = "no"
		return
	}
	want(t, "put if absent", err, nil)
	reads(t, s, "d/k", "three")
	want(t, "delete", s.Delete(ctxOf(t), "d/k"), nil)
	for _, was := range []store.Version{first, second} {
		_, err = s.PutUnchanged(ctxOf(t), "d/k", []byte("four"), was)
		want(t, "put if unchanged", err, store.ErrChanged)
	}
	lists(t, s, "", "")
}

func putUnchanged(t *testing.T, b Bed) {
	s := b.Open(t)
	first := put(t, s, "last.json", "one")
	second, err := s.PutUnchanged(ctxOf(t), "last.json", []byte("two"), first)
	want(t, "right version", err, nil)
	if got := reads(t, s, "last.json", "two"); got != second {
		t.Fatalf("version %q, was put as %q", got, second)
	}
	for _, was := range []store.Version{first, "none", ""} {
		_, err = s.PutUnchanged(ctxOf(t), "last.json", []byte("three"), was)
		want(t, fmt.Sprintf("version %q", was), err, store.ErrChanged)
		_, err = s.PutUnchanged(ctxOf(t), "other.json", []byte("three"), was)
		want(t, fmt.Sprintf("version %q where nothing is", was), err, store.ErrChanged)
	}
	lists(t, s, "", "", "last.json")
	reads(t, b.Open(t), "last.json", "two")
}

func versions(t *testing.T, b Bed) {
	s := b.Open(t)
	seen := map[store.Version]string{}
	v := put(t, s, "k", "0")
	for i := range 12 {
		text := strings.Repeat("x", i%4) + strconv.Itoa(i)
		next, err := s.PutUnchanged(ctxOf(t), "k", []byte(text), v)
		want(t, text, err, nil)
		if former, there := seen[next]; there {
			t.Fatalf("version %q is that of %q and of %q", next, former, text)
		}
		seen[next], v = text, next
		if got := reads(t, s, "k", text); got != v {
			t.Fatalf("version %q, was put as %q", got, v)
		}
		info, err := s.Stat(ctxOf(t), "k")
		want(t, "stat", err, nil)
		if info.Size != int64(len(text)) || info.Version != "" && info.Version != v {
			t.Fatalf("stat %+v, want %d bytes of version %q or none", info, len(text), v)
		}
	}
}

const (
	raceKeys, raceEach = 20, 16
	counters, counts   = 8, 10
	clients            = 4
)

func several(t testing.TB, b Bed) (list []store.Store) {
	for range clients {
		list = append(list, b.Open(t))
	}
	return list
}

func racers(t *testing.T, b Bed) {
	stores := several(t, b)
	var wins [raceKeys]atomic.Int32
	var winner [raceKeys]atomic.Pointer[string]
	var g sync.WaitGroup
	start := make(chan struct{})
	for i := range raceKeys * raceEach {
		g.Go(func() {
			<-start
			key, text := i%raceKeys, fmt.Sprintf("racer %d", i)
			_, err := stores[i%clients].PutNew(ctxOf(t), fmt.Sprintf("epochs/%06d.json", key), []byte(text))
			switch {
			case err == nil:
				wins[key].Add(1)
				winner[key].Store(&text)
			case !errors.Is(err, store.ErrExists):
				t.Errorf("%s: %v, want %v", text, err, store.ErrExists)
			}
		})
	}
	close(start)
	g.Wait()
	for key := range raceKeys {
		if n := wins[key].Load(); n != 1 {
			t.Errorf("key %d: %d winners", key, n)
			continue
		}
		reads(t, stores[0], fmt.Sprintf("epochs/%06d.json", key), *winner[key].Load())
	}
}

func increments(t *testing.T, b Bed) {
	stores := several(t, b)
	put(t, stores[0], "counter", "0")
	var g sync.WaitGroup
	for i := range counters {
		g.Go(func() {
			s := stores[i%clients]
			for range counts {
				if err := Increment(ctxOf(t), s); err != nil {
					t.Errorf("counter %d: %v", i, err)
					return
				}
			}
		})
	}
	g.Wait()
	reads(t, stores[0], "counter", strconv.Itoa(counters*counts))
}

// Increment adds one to the object "counter", however many others do.
func Increment(ctx context.Context, s store.Store) error {
	for {
		b, v, err := s.Get(ctx, "counter", 100)
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(string(b))
		if err != nil {
			return err
		}
		if _, err := s.PutUnchanged(ctx, "counter", []byte(strconv.Itoa(n+1)), v); !errors.Is(err, store.ErrChanged) {
			return err
		}
	}
}

func wholeContents(t *testing.T, b Bed) {
	stores := several(t, b)
	text := func(i int) string { return strings.Repeat(string(rune('a'+i%26)), 1000+i) }
	v := put(t, stores[0], "k", text(0))
	done := make(chan struct{})
	var g sync.WaitGroup
	for _, s := range stores[1:] {
		g.Go(func() {
			for at := 0; ; {
				got, _, err := s.Get(ctxOf(t), "k", 10000)
				if err != nil || len(got) < 1000 || string(got) != text(len(got)-1000) || len(got)-1000 < at {
					t.Errorf("%v: %d bytes, %.20q, after content %d", err, len(got), got, at)
					return
				}
				at = len(got) - 1000
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for i := range 40 {
		next, err := stores[0].PutUnchanged(ctxOf(t), "k", []byte(text(i+1)), v)
		if err != nil {
			t.Errorf("put %d: %v", i+1, err)
			break
		}
		v = next
	}
	close(done)
	g.Wait()
}

func lostAnswers(t *testing.T, b Bed) {
	if b.LoseAnswer == nil {
		t.Skip("no answer can be lost here")
	}
	s := b.Open(t)
	b.LoseAnswer(t, "new")
	v := put(t, s, "new", "one")
	if got := reads(t, s, "new", "one"); got != v {
		t.Fatalf("version %q, was put as %q", got, v)
	}
	b.LoseAnswer(t, "new")
	v, err := s.PutUnchanged(ctxOf(t), "new", []byte("two"), v)
	want(t, "put if unchanged", err, nil)
	if got := reads(t, s, "new", "two"); got != v {
		t.Fatalf("version %q, was put as %q", got, v)
	}
	b.LoseAnswer(t, "new")
	_, err = s.PutNew(ctxOf(t), "new", []byte("three"))
	want(t, "put if absent, where an object is", err, store.ErrExists)
	b.LoseAnswer(t, "new")
	_, err = s.PutUnchanged(ctxOf(t), "new", []byte("three"), "none")
	if !errors.Is(err, store.ErrChanged) && !errors.Is(err, store.ErrDoubtful) {
		t.Fatalf("put if unchanged, where it has changed: %v", err)
	}
	reads(t, s, "new", "two")
}

func lostRequests(t *testing.T, b Bed) {
	if b.LoseRequest == nil {
		t.Skip("no request can be lost here")
	}
	s := b.Open(t)
	b.LoseRequest(t, "new")
	v := put(t, s, "new", "one")
	b.LoseRequest(t, "new")
	v, err := s.PutUnchanged(ctxOf(t), "new", []byte("two"), v)
	want(t, "put if unchanged", err, nil)
	if got := reads(t, s, "new", "two"); got != v {
		t.Fatalf("version %q, was put as %q", got, v)
	}
}

func gets(t *testing.T, b Bed) {
	s := b.Open(t)
	for _, n := range []int{0, 1, 4095, 4096, 1 << 20} {
		key, text := fmt.Sprintf("size-%d", n), strings.Repeat("z", n)
		put(t, s, key, text)
		reads(t, s, key, text)
		got, _, err := s.Get(ctxOf(t), key, int64(n))
		if want(t, "get at most its size", err, nil); len(got) != n {
			t.Fatalf("%d bytes, want %d", len(got), n)
		}
		if n > 0 {
			if _, _, err := s.Get(ctxOf(t), key, int64(n-1)); err == nil || errors.Is(err, store.ErrAbsent) {
				t.Fatalf("an object of %d bytes, of which at most %d were wanted: %v", n, n-1, err)
			}
		}
	}
	_, _, err := s.Get(ctxOf(t), "none", 10)
	want(t, "get", err, store.ErrAbsent)
	_, _, err = s.Get(ctxOf(t), "size-1/none", 10)
	want(t, "get below an object", err, store.ErrAbsent)
	_, err = s.Stat(ctxOf(t), "none")
	want(t, "stat", err, store.ErrAbsent)
	want(t, "delete", s.Delete(ctxOf(t), "none"), nil)
	want(t, "delete", s.Delete(ctxOf(t), "none/none"), nil)
	_, err = s.PutNew(ctxOf(t), "huge", make([]byte, store.MaxSmall+1))
	if err == nil {
		t.Fatal("an object of more than MaxSmall bytes is taken")
	}
}

func ranges(t *testing.T, b Bed) {
	s := b.Open(t)
	text := make([]byte, 100_000)
	for i := range text {
		text[i] = byte(i * 7 >> 3)
	}
	put(t, s, "k", string(text))
	for _, r := range [][2]int{{0, 1}, {0, len(text)}, {len(text) - 1, 1}, {4096, 65536}, {99_999, 1}, {17, 0}} {
		got := make([]byte, r[1])
		want(t, fmt.Sprint(r), s.ReadRange(ctxOf(t), "k", int64(r[0]), got), nil)
		if !bytes.Equal(got, text[r[0]:r[0]+r[1]]) {
			t.Fatalf("%v: other bytes", r)
		}
	}
	for _, r := range [][2]int{{0, len(text) + 1}, {len(text), 1}, {len(text) - 1, 2}, {1 << 30, 10}, {-1, 2}} {
		if err := s.ReadRange(ctxOf(t), "k", int64(r[0]), make([]byte, r[1])); err == nil || errors.Is(err, store.ErrAbsent) {
			t.Fatalf("%v: %v", r, err)
		}
	}
	want(t, "absent", s.ReadRange(ctxOf(t), "none", 0, make([]byte, 1)), store.ErrAbsent)
}

func stats(t *testing.T, b Bed) {
	s := b.Open(t)
	before := time.Now()
	for i := range 5 {
		put(t, s, fmt.Sprintf("d/%d", i), strings.Repeat("x", i*100))
	}
	n := 0
	want(t, "list", s.List(ctxOf(t), "d/", "", func(l store.Info) error {
		st, err := s.Stat(ctxOf(t), l.Key)
		want(t, "stat", err, nil)
		if st.Key != l.Key || st.Size != l.Size || st.Size != int64(n*100) || l.Version != "" && st.Version != "" && l.Version != st.Version {
			t.Errorf("list says %+v, stat %+v", l, st)
		}
		if d := st.Modified.Sub(before); !st.Modified.IsZero() && (d < -time.Hour || d > time.Hour) || st.Modified.Sub(l.Modified).Abs() > time.Second {
			t.Errorf("modified %v and %v, put at %v", l.Modified, st.Modified, before)
		}
		n++
		return nil
	}), nil)
	if n != 5 {
		t.Errorf("%d objects, want 5", n)
	}
}

func longList(t *testing.T, b Bed) {
	const n = 2500
	s := b.Open(t)
	var wanted []string
	for i := range n {
		wanted = append(wanted, fmt.Sprintf("commits/step-%08d.e%d.json", i, i%3))
	}
	shuffled := slices.Clone(wanted)
	rand.Shuffle(n, func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	var g sync.WaitGroup
	for part := range slices.Chunk(shuffled, n/10) {
		g.Go(func() {
			for _, key := range part {
				b.Raw(t, key, []byte(key))
			}
		})
	}
	g.Wait()
	lists(t, s, "", "", wanted...)
	lists(t, s, "commits/", wanted[999], wanted[1000:]...)
	lists(t, s, "commits/", wanted[n-1])
	lists(t, s, "commits/step-00001", "", wanted[1000:2000]...)
	enough := errors.New("enough")
	seen := 0
	err := s.List(ctxOf(t), "commits/", "", func(store.Info) error {
		if seen++; seen == 1200 {
			return enough
		}
		return nil
	})
	if want(t, "list", err, enough); seen != 1200 {
		t.Errorf("%d keys seen, want 1200", seen)
	}
}

func prefixes(t *testing.T, b Bed) {
	s := b.Open(t)
	// By byte: '+' '-' '.' '/' digits '=' '@' letters '_'; a walk that takes directories by their names alone has "a" before "a-b".
	keys := []string{"a+x/k", "a-b", "a.b/c", "a/b", "a/b.c", "a/bc/d", "a0", "a=", "a@", "aB", "a_", "ab/c", "b"}
	for _, i := range rand.Perm(len(keys)) {
		put(t, s, keys[i], keys[i])
	}
	lists(t, s, "", "", keys...)
	lists(t, s, "a/", "", "a/b", "a/b.c", "a/bc/d")
	lists(t, s, "a/b", "", "a/b", "a/b.c", "a/bc/d")
	lists(t, s, "a/b/", "")
	lists(t, s, "a/bc", "", "a/bc/d")
	lists(t, s, "a.", "", "a.b/c")
	lists(t, s, "ab", "", "ab/c")
	lists(t, s, "c", "")
	lists(t, s, "none/none/", "")
	for i, key := range keys {
		lists(t, s, "", key, keys[i+1:]...)
	}
	lists(t, s, "a/", "a/b", "a/b.c", "a/bc/d")
	lists(t, s, "a/", "a/bb", "a/bc/d")
	lists(t, s, "", "a/bc/dd", keys[6:]...)
	lists(t, s, "a/", "b")
	for _, prefix := range []string{"../", "/", "a//", "a b"} {
		if err := s.List(ctxOf(t), prefix, "", func(store.Info) error { return nil }); err == nil {
			t.Errorf("prefix %q is taken", prefix)
		}
	}
}

func foreignKeys(t *testing.T, b Bed) {
	s := b.Open(t)
	put(t, s, "d/k", "ours")
	for _, key := range []string{"d/a b", "d/ä", "d/~tmp", "e f/k", "d/x:y", "d/" + strings.Repeat("l", store.MaxSegment+1), "#d"} {
		b.Raw(t, key, []byte("theirs"))
	}
	b.Raw(t, "d/plain", []byte("not by us, and a key like ours"))
	lists(t, s, "", "", "d/k", "d/plain")
	lists(t, s, "d/", "d/k", "d/plain")
	reads(t, s, "d/plain", "not by us, and a key like ours")
	if _, _, err := s.Get(ctxOf(t), "d/a b", 100); err == nil {
		t.Error("a foreign key is read")
	}
}

func keyBounds(t *testing.T, b Bed) {
	s := b.Open(t)
	longest := strings.Repeat("l", store.MaxSegment) + "/" + strings.Repeat("m", store.MaxSegment) + "/" + strings.Repeat("n", store.MaxKey-2*store.MaxSegment-2)
	if len(longest) != store.MaxKey {
		t.Fatal(len(longest))
	}
	deepest := strings.Repeat("d/", store.MaxKey/2-1) + "kk"
	every := "ABC-xyz_0.9=+@"
	for _, key := range []string{longest, deepest, every, "..a/b..", "a.../b", ".hidden"} {
		v := put(t, s, key, "1 "+key)
		_, err := s.PutUnchanged(ctxOf(t), key, []byte("2 "+key), v)
		want(t, key, err, nil)
		reads(t, s, key, "2 "+key)
		lists(t, s, key, "", key)
		upload(t, s, "u"+key[1:], pattern(1000))
		_, err = s.Stat(ctxOf(t), "u"+key[1:])
		want(t, "stat of the upload", err, nil)
	}
}

func refusedKeys(t *testing.T, b Bed) {
	look := b.Outside(t)
	before := look()
	s := b.Open(t)
	put(t, s, "a/k", "x")
	for _, key := range []string{"", "/", "..", "../x", "a/../../x", "a/../k", "a//k", "a/", "/etc/passwd", "a/./k", "a\x00b", "a\nb", "%2e%2e/x", `..\x`, strings.Repeat("k", store.MaxSegment+1), strings.Repeat("k/", store.MaxKey/2) + "kk"} {
		_, err := s.PutNew(ctxOf(t), key, []byte("x"))
		_, err2 := s.PutUnchanged(ctxOf(t), key, []byte("x"), "none")
		_, _, err3 := s.Get(ctxOf(t), key, 10)
		_, err4 := s.Stat(ctxOf(t), key)
		_, err5 := s.Upload(ctxOf(t), key, 10)
		for i, err := range []error{err, err2, err3, err4, err5, s.Delete(ctxOf(t), key), s.ReadRange(ctxOf(t), key, 0, make([]byte, 1)), s.AbortPending(ctxOf(t), store.Pending{Key: key, ID: "x"})} {
			if err == nil || errors.Is(err, store.ErrAbsent) {
				t.Errorf("key %q, call %d: %v", key, i, err)
			}
		}
	}
	lists(t, s, "", "", "a/k")
	same(t, before, look())
}

func same(t testing.TB, before, after map[string]string) {
	t.Helper()
	for name, text := range before {
		if after[name] != text {
			t.Errorf("%s outside the root: %.50q, was %.50q", name, after[name], text)
		}
	}
	for name := range after {
		if _, there := before[name]; !there {
			t.Errorf("%s came to be outside the root", name)
		}
	}
}

func outside(t *testing.T, b Bed) {
	look := b.Outside(t)
	before := look()
	if len(before) == 0 {
		t.Fatal("there is nothing outside: this would see no touch of it")
	}
	s := b.Open(t)
	v := put(t, s, "k", "x")
	_, err := s.PutUnchanged(ctxOf(t), "k", []byte("y"), v)
	want(t, "put", err, nil)
	upload(t, s, "d/u", pattern(100_000))
	lists(t, s, "", "", "d/u", "k")
	u, err := s.Upload(ctxOf(t), "d/cut", 1<<20)
	want(t, "upload", err, nil)
	pending, err := s.Unfinished(ctxOf(t), "")
	if want(t, "unfinished", err, nil); len(pending) != 1 || pending[0].Key != "d/cut" {
		t.Errorf("unfinished %+v, want d/cut alone", pending)
	}
	want(t, "abort", u.Abort(ctxOf(t)), nil)
	for _, key := range keysOf(t, s, "", "") {
		want(t, "delete", s.Delete(ctxOf(t), key), nil)
	}
	lists(t, s, "", "")
	same(t, before, look())
}

func planted(t *testing.T, b Bed) {
	if b.Plant == nil {
		t.Skip("there are no such things here")
	}
	s := b.Open(t)
	put(t, s, "d/k", "x")
	for kind, key := range map[string]string{"symlink": "d/link", "symlinked directory": "away", "fifo": "d/pipe", "directory": "d/dir"} {
		b.Plant(t, kind, key)
		lists(t, s, "", "", "d/k")
		if kind == "symlinked directory" {
			key += "/file"
		}
		_, _, err := s.Get(ctxOf(t), key, 100)
		_, serr := s.Stat(ctxOf(t), key)
		rerr := s.ReadRange(ctxOf(t), key, 0, make([]byte, 1))
		if err == nil || serr == nil || rerr == nil {
			t.Errorf("%s: get %v, stat %v, read %v", kind, err, serr, rerr)
		}
		if _, err := s.PutNew(ctxOf(t), key, []byte("x")); err == nil {
			t.Errorf("%s: an object is put there", kind)
		}
		if _, err := s.PutUnchanged(ctxOf(t), key, []byte("x"), "none"); err == nil {
			t.Errorf("%s: an object is changed there", kind)
		}
	}
	reads(t, s, "d/k", "x")
}

func contexts(t *testing.T, b Bed) {
	s := b.Open(t)
	put(t, s, "k", "x")
	gone, cancel := context.WithCancel(ctxOf(t))
	cancel()
	for name, err := range every(gone, s) {
		want(t, name, err, context.Canceled)
	}
	reads(t, s, "k", "x")
}

// every makes each call of a store once.
func every(ctx context.Context, s store.Store) map[string]error {
	_, newErr := s.PutNew(ctx, "new", []byte("y"))
	_, changeErr := s.PutUnchanged(ctx, "k", []byte("y"), "none")
	_, _, getErr := s.Get(ctx, "k", 10)
	_, statErr := s.Stat(ctx, "k")
	_, upErr := s.Upload(ctx, "u", 10)
	_, pendingErr := s.Unfinished(ctx, "")
	return map[string]error{
		"put if absent": newErr, "put if unchanged": changeErr, "get": getErr, "stat": statErr, "upload": upErr, "unfinished": pendingErr,
		"read range": s.ReadRange(ctx, "k", 0, make([]byte, 1)),
		"list":       s.List(ctx, "", "", func(store.Info) error { return nil }),
		"delete":     s.Delete(ctx, "other"),
	}
}

func stalls(t *testing.T, b Bed) {
	if b.Stall == nil {
		t.Skip("nothing stalls here")
	}
	s := b.Open(t)
	put(t, s, "k", "x")
	end := b.Stall(t)
	stopped := errors.New("the test has seen enough")
	ctx, cancel := context.WithCancelCause(ctxOf(t))
	time.AfterFunc(100*time.Millisecond, func() { cancel(stopped) })
	for name, err := range every(ctx, s) {
		if err == nil {
			t.Errorf("%s: no error, while the store does not answer", name)
		}
	}
	end()
	reads(t, s, "k", "x")
}

func closes(t *testing.T, b Bed) {
	s := b.Open(t)
	put(t, s, "k", "x")
	var g sync.WaitGroup
	if b.Stall != nil {
		end := b.Stall(t)
		defer end()
		began := make(chan struct{})
		g.Go(func() {
			close(began)
			if _, _, err := s.Get(context.WithoutCancel(ctxOf(t)), "k", 10); err == nil {
				t.Error("a call that waited for the store ends without an error")
			}
		})
		<-began
	}
	want(t, "close", s.Close(), nil)
	want(t, "close again", s.Close(), nil)
	g.Wait()
	for name, err := range every(ctxOf(t), s) {
		if err == nil || errors.Is(err, store.ErrAbsent) || errors.Is(err, store.ErrChanged) {
			t.Errorf("%s after the close: %v", name, err)
		}
	}
}

func probes(t *testing.T, b Bed) {
	s := b.Open(t)
	want(t, "probe", store.Probe(ctxOf(t), s), nil)
	lists(t, s, "", "")
}

func secrets(t *testing.T, b Bed) {
	if b.Secret == "" {
		t.Skip("there is none here")
	}
	s := b.Open(t)
	gone, cancel := context.WithCancel(ctxOf(t))
	cancel()
	texts := []string{s.URL(), fmt.Sprintf("%+v %#v", s, s)}
	for _, err := range every(gone, s) {
		texts = append(texts, fmt.Sprint(err))
	}
	for _, text := range texts {
		if strings.Contains(text, b.Secret) {
			t.Errorf("%.200q shows the secret", text)
		}
	}
}
