package checkpoint

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/replicad/replicad/internal/durable/retain"
	"github.com/replicad/replicad/replica"
)

// gen is a generation of the first epoch.
func gen(step replica.Step) replica.Generation { return replica.Generation{Epoch: 1, Step: step} }

// wrote writes generations, the oldest first.
func wrote(t *testing.T, s *Store, steps ...replica.Step) {
	t.Helper()
	for _, step := range steps {
		if err := writeGeneration(t.Context(), s, testRegions(t), gen(step)); err != nil {
			t.Fatal(err)
		}
	}
}

// flipLast turns a bit of a file's last byte over: a tensor's, where it is a shard.
func flipLast(t *testing.T, name string) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// shardOf is the path of a file of a generation.
func shardOf(s *Store, step replica.Step, file string) string {
	return filepath.Join(s.dir, jobName, job.String(), generationDir(gen(step)), file)
}

// readBack reads the generation of a step whole, as one that is found or that a mark says is damaged.
func readBack(t *testing.T, s *Store, step replica.Step) error {
	t.Helper()
	found, skipped := find(t, s, job)
	for _, sk := range skipped {
		if sk.Whole != nil {
			found = append(found, *sk.Whole)
		}
	}
	for _, f := range found {
		if f.Generation.Step == step {
			return s.ReadBack(t.Context(), f, How{Cold: true})
		}
	}
	t.Fatalf("step %d is not there to be read", step)
	return nil
}

// steps are those that are found, newest first.
func steps(t *testing.T, s *Store) string {
	t.Helper()
	found, _ := find(t, s, job)
	var out []string
	for _, f := range found {
		out = append(out, fmt.Sprintf("%d %v", f.Generation.Step, f.State()))
	}
	return strings.Join(out, ", ")
}

// A run went on from the older of two, since the newer one was damaged; the next write used to delete the older, good one and to keep the
// newer.
func TestRetentionPrefersWhatIsGood(t *testing.T) {
	s := open(t, t.TempDir())
	wrote(t, s, 10, 20)
	flipLast(t, shardOf(s, 20, "group-0.safetensors"))
	if err := readBack(t, s, 20); !errors.Is(err, ErrCorrupt) || Plain(err) != "group-0.safetensors, chunk 2: digest differs" {
		t.Fatalf("%v: %q", err, Plain(err))
	}
	if err := readBack(t, s, 10); err != nil {
		t.Fatal(err)
	}
	again := open(t, s.dir) // another daemon, another day
	if got := steps(t, again); got != "10 good" {
		t.Errorf("finds %s", got)
	}
	if err := again.Holds(jobName, job, gen(20)); err == nil || !strings.Contains(err.Error(), "failed a read: group-0.safetensors, chunk 2: digest differs") {
		t.Errorf("the damaged one passes for durable: %v", err)
	}
	if err := again.Holds(jobName, job, gen(10)); err != nil {
		t.Error(err)
	}
	prune := func(want string) {
		t.Helper()
		if err := again.Prune(jobName, job, 2); err != nil {
			t.Fatal(err)
		}
		if got := steps(t, again); got != want {
			t.Errorf("keeps %s, want %s", got, want)
		}
	}
	wrote(t, again, 30)
	prune("30 unread, 10 good")
	if _, err := os.Stat(shardOf(s, 20, markerName)); err != nil {
		t.Errorf("what is damaged is not kept aside, though it is newer than all that is good: %v", err)
	}
	wrote(t, again, 40)
	prune("40 unread, 30 unread, 10 good")
	if err := readBack(t, again, 30); err != nil {
		t.Fatal(err)
	}
	prune("40 unread, 30 good, 10 good")
	if _, err := os.Stat(shardOf(s, 20, markerName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what is damaged stays beside a newer one that is good: %v", err)
	}
	if err := readBack(t, again, 40); err != nil {
		t.Fatal(err)
	}
	prune("40 good, 30 good")
}

// What a run went on from stays until as many newer ones were read back as are kept.
func TestWhatARunWentOnFromStays(t *testing.T) {
	s := open(t, t.TempDir())
	wrote(t, s, 10)
	if err := errors.Join(s.WentOn(jobName, job, gen(10)), s.WentOn(jobName, job, gen(99))); err != nil {
		t.Fatal(err)
	}
	wrote(t, s, 20, 30, 40)
	for _, step := range []replica.Step{0, 40, 30} {
		if step != 0 {
			if err := readBack(t, s, step); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Prune(jobName, job, 2); err != nil {
			t.Fatal(err)
		}
		if got, want := strings.Contains(steps(t, s), "10 "), step != 30; got != want {
			t.Errorf("with step %d read back it keeps %s", step, steps(t, s))
		}
	}
}

// A mark is evidence of one read of one marker: nothing is believed of another, of damage that does not come again, or of a disk that refuses.
func TestMarks(t *testing.T) {
	s := open(t, t.TempDir())
	s.Configure(Settings{Reader: "n1"})
	wrote(t, s, 10)
	before := time.Now().UnixMilli()
	if err := readBack(t, s, 10); err != nil {
		t.Fatal(err)
	}
	found, _ := find(t, s, job)
	if m := found[0].Read; m == nil || m.By != "n1" || m.At < uint64(before) || m.Damage != nil || found[0].Bytes() == 0 {
		t.Errorf("after a read the mark is %+v", m)
	}
	mark := shardOf(s, 10, readName)
	good, err := os.ReadFile(mark)
	if err != nil {
		t.Fatal(err)
	}
	for what, bend := range map[string]func() error{
		"flipped": func() error {
			return os.WriteFile(mark, append(bytes.Clone(good[:len(good)-1]), good[len(good)-1]^1), 0o600)
		},
		"cut":    func() error { return os.WriteFile(mark, good[:9], 0o600) },
		"empty":  func() error { return os.WriteFile(mark, nil, 0o600) },
		"long":   func() error { return os.WriteFile(mark, make([]byte, maxMark+1), 0o600) },
		"a pipe": func() error { return errors.Join(os.Remove(mark), syscall.Mkfifo(mark, 0o600)) },
		"a link": func() error { return errors.Join(os.Remove(mark), os.Symlink(readName, mark)) },
	} {
		if err := bend(); err != nil {
			t.Fatal(err)
		}
		if got := steps(t, s); got != "10 unread" {
			t.Errorf("%s: %s", what, got)
		}
		if err := readBack(t, s, 10); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got := steps(t, s); got != "10 good" {
			t.Errorf("%s, and read again: %s", what, got)
		}
	}
	// The mark of another generation, which somebody copied here.
	wrote(t, s, 20)
	if err := os.WriteFile(shardOf(s, 20, readName), good, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := steps(t, s); got != "20 unread, 10 good" {
		t.Errorf("with a mark of another generation: %s", got)
	}
	// A disk that refuses to read today says nothing of the bytes, and the former mark stands.
	shard := shardOf(s, 10, "private-0.safetensors")
	if err := errors.Join(os.Rename(shard, shard+".away"), os.Symlink(filepath.Base(shard), shard)); err != nil {
		t.Fatal(err)
	}
	if err := s.ReadBack(t.Context(), found[0], How{}); SkipKindOf(err) != Unreadable {
		t.Errorf("a disk that refuses: %v", err)
	}
	if err := errors.Join(os.Remove(shard), os.Rename(shard+".away", shard)); err != nil {
		t.Fatal(err)
	}
	if got := steps(t, s); got != "20 unread, 10 good" {
		t.Errorf("after a disk that refused: %s", got)
	}
	// What a person mends is found good by the next read.
	flipLast(t, shard)
	if err := readBack(t, s, 10); !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
	if got := steps(t, s); got != "20 unread" {
		t.Errorf("with a private part damaged: %s", got)
	}
	flipLast(t, shard)
	if err := readBack(t, s, 10); err != nil {
		t.Fatal(err)
	}
	if got := steps(t, s); got != "20 unread, 10 good" {
		t.Errorf("mended: %s", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	found, _ = find(t, s, job)
	if err := s.ReadBack(ctx, found[0], How{}); !errors.Is(err, context.Canceled) || steps(t, s) != "20 unread, 10 good" {
		t.Errorf("a read that was broken off: %v, %s", err, steps(t, s))
	}
}

// Damage that a second read of the disk does not find again was none of the disk's.
func TestDamageIsRepeatedBeforeItIsBelieved(t *testing.T) {
	s := open(t, t.TempDir())
	wrote(t, s, 10)
	shard := shardOf(s, 10, "group-0.safetensors")
	flipLast(t, shard)
	found, _ := find(t, s, job)
	noted := 0
	s.Configure(Settings{Note: func(err error) {
		if noted++; noted == 1 && errors.Is(err, ErrCorrupt) {
			flipLast(t, shard) // the second read finds it whole
		}
	}})
	if err := s.ReadBack(t.Context(), found[0], How{}); err != nil || noted != 1 || steps(t, s) != "10 good" {
		t.Errorf("%v, noted %d times: %s", err, noted, steps(t, s))
	}
}

// What a restore finds damaged has a mark, though the last whole read found it good; a file that is good after all has not.
func TestSuspect(t *testing.T) {
	s := open(t, t.TempDir())
	wrote(t, s, 10)
	if err := readBack(t, s, 10); err != nil {
		t.Fatal(err)
	}
	shard := shardOf(s, 10, "private-1.safetensors")
	found, _ := find(t, s, job)
	read := func() error {
		r, err := s.OpenShard(found[0], replica.OfRank(1))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		_, err = r.ReadChunk(0, nil)
		return err
	}
	flipLast(t, shard)
	bad := read()
	flipLast(t, shard)
	for _, err := range []error{nil, syscall.EIO, errors.New("no place can be freed"), bad} {
		s.Suspect(t.Context(), found[0], err)
		if got := steps(t, s); got != "10 good" {
			t.Errorf("after a read that ended with %v: %s", err, got)
		}
	}
	flipLast(t, shard)
	s.Suspect(t.Context(), found[0], read())
	if got := steps(t, s); got != "" {
		t.Errorf("damaged: %s", got)
	}
}

// A byte of the frozen part voids every generation. The next write, which has it in memory, mends it, and what marks said against it is over.
func TestFrozenPartIsMended(t *testing.T) {
	s := open(t, t.TempDir())
	wrote(t, s, 10, 20)
	files, err := filepath.Glob(filepath.Join(s.dir, jobName, job.String(), frozenDir, "*"+shardExt))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	whole, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	mended := func() {
		t.Helper()
		if b, err := os.ReadFile(files[0]); err != nil || !bytes.Equal(b, whole) {
			t.Errorf("the frozen part is not as it was written: %v", err)
		}
	}
	flipLast(t, files[0])
	for _, step := range []replica.Step{10, 20} {
		if err := readBack(t, s, step); !errors.Is(err, ErrCorrupt) || !strings.HasPrefix(Plain(err), "frozen/group-0-") {
			t.Fatalf("%v: %s", err, Plain(err))
		}
	}
	if got := steps(t, s); got != "" {
		t.Errorf("finds %s", got)
	}
	other := open(t, s.dir) // another node, which has read nothing itself
	wrote(t, other, 30)
	mended()
	if got := steps(t, s); got != "30 unread, 20 unread, 10 unread" {
		t.Errorf("once it is mended: %s", got)
	}
	for _, step := range []replica.Step{10, 20, 30} {
		if err := readBack(t, s, step); err != nil {
			t.Error(err)
		}
	}
	// A daemon that has looked once looks again only when a read has failed.
	flipLast(t, files[0])
	wrote(t, other, 40)
	if b, err := os.ReadFile(files[0]); err != nil || bytes.Equal(b, whole) {
		t.Errorf("it is read at each write: %v", err)
	}
	found, _ := find(t, other, job)
	r, err := other.OpenShard(found[0], replica.FrozenOf(0))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReadChunk(0, nil); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	r.Close()
	wrote(t, other, 50)
	mended()
	// Or when it begins anew. What somebody brought back is not written again.
	flipLast(t, files[0])
	wrote(t, open(t, s.dir), 60)
	mended()
	flipLast(t, files[0])
	if err := readBack(t, s, 60); !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
	flipLast(t, files[0])
	wrote(t, other, 70)
	mended()
	if got := steps(t, s); !strings.HasPrefix(got, "70 unread, 60 unread, 50 unread") {
		t.Errorf("brought back: %s", got)
	}
}

// Each start without --resume used to leave its directory for ever.
func TestFormerRuns(t *testing.T) {
	s := open(t, t.TempDir())
	left := func() (runs []string) {
		t.Helper()
		entries, err := os.ReadDir(filepath.Join(s.dir, jobName))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			runs = append(runs, e.Name()[:2])
		}
		return runs
	}
	for i := range 6 {
		id := replica.JobID{byte(i + 1)}
		run(t, s, id, 10, time.Unix(1e9+int64(i), 0))
		run(t, s, id, 20, time.Unix(1e9+int64(i), 0))
		if i == 0 {
			found, _, err := s.Find(jobName, id)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.ReadBack(t.Context(), found[0], How{}); err != nil { // the only one that is known to be good
				t.Fatal(err)
			}
		}
	}
	present := replica.JobID{6}
	if err := s.Prune(jobName, present, 1); err != nil {
		t.Fatal(err)
	}
	if got := left(); len(got) != 6 {
		t.Errorf("without keep_runs it leaves %v", got)
	}
	s.Configure(Settings{KeepRuns: 2})
	if err := s.Prune(jobName, present, 1); err != nil {
		t.Fatal(err)
	}
	if got := left(); !reflect.DeepEqual(got, []string{"01", "02", "03", "04", "05", "06"}) {
		t.Errorf("with nothing read back but in the oldest it leaves %v", got)
	}
	found, _, err := s.Find(jobName, present)
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	if err := s.ReadBack(t.Context(), found[0], How{}); err != nil {
		t.Fatal(err)
	}
	old, _, err := s.Find(jobName, replica.JobID{2})
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.OpenShard(old[0], replica.OfRank(0)) // somebody reads it
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Prune(jobName, present, 1); err != nil {
		t.Fatal(err)
	}
	if got := left(); !reflect.DeepEqual(got, []string{"02", "04", "05", "06"}) {
		t.Errorf("it leaves %v", got)
	}
	r.Close()
	if err := s.Prune(jobName, present, 1); err != nil {
		t.Fatal(err)
	}
	if got := left(); !reflect.DeepEqual(got, []string{"04", "05", "06"}) {
		t.Errorf("it leaves %v", got)
	}
	// A run that has written nothing yet makes no room.
	s.Configure(Settings{KeepRuns: 1})
	if err := s.Prune(jobName, replica.JobID{9}, 1); err != nil {
		t.Fatal(err)
	}
	if got := left(); len(got) != 3 {
		t.Errorf("for a run that has written nothing it leaves %v", got)
	}
}

// TestCrashWhileMarking dies at each step of writing a mark: what is found is whole, and its mark is the former or the new one.
func TestCrashWhileMarking(t *testing.T) {
	for at, finished := 0, false; !finished; at++ {
		s := openUnsynced(t, t.TempDir())
		wrote(t, s, 10)
		if err := s.WentOn(jobName, job, gen(10)); err != nil {
			t.Fatal(err)
		}
		crash := newCrashDisk(rooted{s.tree.root}, at, errCrash)
		s.tree.disk = crash
		err := readBack(t, s, 10)
		crash.powerCut(t, s.tree.root)
		if err != nil {
			t.Fatalf("step %d: a mark that could not be written makes a good generation bad: %v", at, err)
		}
		got := steps(t, openUnsynced(t, s.dir))
		if finished = got == "10 good"; !finished && got != "10 unread" {
			t.Fatalf("step %d: %s", at, got)
		}
		if at > 50 {
			t.Fatal("it never finishes")
		}
	}
}

// The bytes of a mark keep their meaning.
func TestBytesOfMarks(t *testing.T) {
	m := ReadMark{Version: markVersion, Of: replica.Digest{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, At: 1700000000000, By: "a1", Damage: &Damage{"1-10/group-0.safetensors", 9, "digest differs"}, Resumed: 1700000000001}
	frame := framed(t, kindRead, &m)
	if got, err := parseMark(frame); err != nil || !reflect.DeepEqual(got, &m) {
		t.Errorf("%+v comes back as %+v: %v", m, got, err)
	}
	if got := hex.EncodeToString(frame); got != goldenMark {
		t.Errorf("the bytes are\n%s, and were\n%s", got, goldenMark)
	}
}

const goldenMark = "52505731015200005c000000a6010102500102030405060708090a0b0c0d0e0f10031b0000018bcfe568000462613105a3017818312d31302f67726f75702d302e7361666574656e736f72730209036e6469676573742064696666657273061b0000018bcfe568016bff24f10a73c4e4"

// FuzzMark: a mark that is taken names a file below the job's directory and one line of text, and is written as it was read.
func FuzzMark(f *testing.F) {
	for _, m := range []ReadMark{
		{Version: markVersion, Of: replica.Digest{1}, At: 1, By: "n1"},
		{Version: markVersion, Of: replica.Digest{1}, Resumed: 1},
		{Version: markVersion, Of: replica.Digest{1}, At: 1, By: "n1", Damage: &Damage{"1-10/group-0.safetensors", WholeFile, "it is damaged"}, Resumed: 2},
	} {
		body, err := cbor.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	f.Add([]byte{0xa0})
	f.Fuzz(func(t *testing.T, body []byte) {
		if m, err := parseMark(body); err == nil {
			t.Fatalf("a body without a frame is read as %+v", m)
		}
		m, err := parseMark(framed(t, kindRead, cbor.RawMessage(body)))
		if err != nil {
			return
		}
		if d := m.Damage; d != nil && (!filepath.IsLocal(d.File) || strings.ContainsAny(d.String(), "\n\r\x1b") || len(d.String()) > 3*maxMarkText) {
			t.Fatalf("a mark that was taken says %q", d)
		}
		again, err := parseMark(framed(t, kindRead, m))
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Fatalf("%+v comes back as %+v: %v", m, again, err)
		}
	})
}

// What is said of a read that failed is short, and names the file.
func TestPlain(t *testing.T) {
	for want, err := range map[string]error{
		"group-0.safetensors, chunk 9: digest differs": fmt.Errorf("read: %w", &damaged{Damage{"1-4/group-0.safetensors", 9, "digest differs"}, ErrCorrupt}),
		"frozen/group-0-ab.manifest: it is damaged":    &damaged{Damage{"frozen/group-0-ab.manifest", WholeFile, "it is damaged"}, ErrCorrupt},
		"input/output error":                           syscall.EIO,
	} {
		if got := Plain(err); got != want {
			t.Errorf("says %q, want %q", got, want)
		}
	}
	if d, bad := DamageOf(&damaged{Damage{"a", 1, "x"}, syscall.EIO}); bad {
		t.Errorf("a disk that refuses blames %v", d)
	}
	if retain.Good.String() != "good" {
		t.Error(retain.Good)
	}
}

// A job of the same name may train in another cluster that has the same directory: its runs are no former ones, also those that are unfinished.
func TestRunsOfOtherClustersAreLeftAlone(t *testing.T) {
	s := open(t, t.TempDir())
	s.Configure(Settings{KeepRuns: 1})
	noon := time.Unix(1e9, 0)
	own, other := replica.ClusterID{1}, replica.ClusterID{2}
	for i := range byte(4) {
		runIn(t, s, own, replica.JobID{i + 1}, 10, noon.Add(time.Duration(2*i)*time.Minute))
		runIn(t, s, other, replica.JobID{i + 11}, 10, noon.Add(time.Duration(2*i+1)*time.Minute))
	}
	writing := generationPath(s, replica.JobID{11}, 20)
	if err := os.MkdirAll(writing, 0o700); err != nil {
		t.Fatal(err)
	}
	present := replica.JobID{4}
	runIn(t, s, own, present, 20, noon.Add(time.Hour))
	for _, step := range []replica.Step{10, 20} {
		found, _ := find(t, s, present)
		for _, f := range found {
			if f.Generation.Step == step {
				if err := s.ReadBack(t.Context(), f, How{}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if err := s.Prune(jobName, present, 2); err != nil {
		t.Fatal(err)
	}
	for i := range byte(4) {
		if found, _ := find(t, s, replica.JobID{i + 11}); len(found) != 1 {
			t.Errorf("run %d of the other cluster has %d generations left", i, len(found))
		}
		want := 1
		if i == 3 {
			want = 2
		} else if i < 2 {
			want = 0
		}
		if found, _ := find(t, s, replica.JobID{i + 1}); len(found) != want {
			t.Errorf("run %d of this cluster has %d generations left, want %d", i, len(found), want)
		}
	}
	if _, err := os.Stat(writing); err != nil {
		t.Errorf("what another cluster is writing: %v", err)
	}
}
