package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	filippo "filippo.io/age"
	"github.com/replicad/replicad/internal/durable/catalogtest"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/replica"
)

// encryptedRoot has steps 10, plain, and 20 and 30, which are encrypted.
func encryptedRoot(t *testing.T) (dir string, keys *sealed.Keys, file string) {
	t.Helper()
	dir = t.TempDir()
	keys, file = catalogtest.NewKey(t)
	catalogtest.Write(t, dir, 10, 1)
	for _, step := range []replica.Step{20, 30} {
		catalogtest.WriteTo(t, dir, durabletest.Make(replica.Generation{Epoch: 1, Step: step}, 2), 1, keys)
	}
	return dir, keys, file
}

// Commands that keep generations need no key; those that read what lies in them name it, and how to give it.
func TestCommandsWithoutAKey(t *testing.T) {
	dir, keys, file := encryptedRoot(t)
	to := keys.Recipients()[0]
	out := expect(t, exitOK, []string{"ls", dir}, "unread, encrypted")
	if strings.Count(out, "encrypted") != 2 {
		t.Error(out)
	}
	expect(t, exitOK, []string{"verify", "--all", dir}, "step 30 of", "step 10 of", "good")
	expect(t, exitOK, []string{"show", dir}, "encrypted", to, "loss", "tensors, generators and loaders are not shown: step 30 of file://"+dir+"/"+ckptJob+" is encrypted to "+to, "--identity or REPLICAD_IDENTITY")
	expect(t, exitOK, []string{"pin", dir + "@30"})
	sentence := "is encrypted to " + to + ": no key that was given opens it"
	empty := filepath.Join(t.TempDir(), "out")
	expect(t, exitFailed, []string{"diff", dir + "@20", dir + "@30"}, sentence)
	expect(t, exitFailed, []string{"export", dir, empty, "--to", "safetensors"}, sentence)
	target := t.TempDir()
	expect(t, exitFailed, []string{"cp", "--decrypt", dir, target}, sentence)
	if left, err := os.ReadDir(target); err != nil || len(left) > 0 {
		t.Errorf("something was copied: %v, %v", left, err)
	}
	f := runFlags{from: dir}
	if got, err := f.origin(t.Context(), stdio{err: &bytes.Buffer{}}); err != nil || !strings.Contains(got.Failed, sentence) {
		t.Errorf("%+v, %v", got, err)
	}
	var answer bytes.Buffer
	if code := run(t.Context(), []string{"ckpt", "pipe", dir}, stdio{strings.NewReader(`{"op":"open"}` + "\n"), &answer, &bytes.Buffer{}}); code != exitOK || !strings.Contains(answer.String(), sentence) {
		t.Errorf("the pipe: %d, %s", code, answer.String())
	}

	t.Setenv("REPLICAD_IDENTITY", file)
	if got, err := f.origin(t.Context(), stdio{err: &bytes.Buffer{}}); err != nil || got.Failed != "" || got.Generation.Step != 30 {
		t.Errorf("%+v, %v", got, err)
	}
	f.lease.End()
	answer.Reset()
	if code := run(t.Context(), []string{"ckpt", "pipe", dir}, stdio{strings.NewReader(`{"op":"open"}` + "\n"), &answer, &bytes.Buffer{}}); code != exitOK || !strings.Contains(answer.String(), `"tensors"`) {
		t.Errorf("the pipe: %d, %.300s", code, answer.String())
	}
	expect(t, exitOK, []string{"show", dir, "--tensors"}, "weight", to)
	expect(t, exitFailed, []string{"diff", dir + "@20", dir + "@30"}, "elements differ")
	expect(t, exitOK, []string{"export", dir, empty, "--to", "safetensors"}, "exported step 30")
}

// A key comes from a flag or the environment. One that is none is refused, and not shown.
func TestIdentity(t *testing.T) {
	dir, _, file := encryptedRoot(t)
	_, stranger := catalogtest.NewKey(t)
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("AGE-SECRET-KEY-1QQQQ"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, exitOK, []string{"show", dir, "--tensors", "--identity", file}, "weight")
	secret, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	if _, err := to.Write(secret); err != nil {
		t.Fatal(err)
	}
	to.Close()
	expect(t, exitOK, []string{"diff", filepath.Join(dir, ckptJob) + "@20", filepath.Join(dir, ckptJob) + "@20", "--identity", fmt.Sprintf("/dev/fd/%d", from.Fd())}, "equal")
	expect(t, exitOK, []string{"show", dir, "--identity", stranger}, "no key that was given opens it")
	if out := expect(t, exitUsage, []string{"ls", dir, "--identity", bad}, "--identity "+bad, "as age-keygen writes them"); strings.Contains(out, "QQQQ") {
		t.Error(out)
	}
	t.Setenv("REPLICAD_IDENTITY", bad+"x")
	expect(t, exitUsage, []string{"ls", dir}, "REPLICAD_IDENTITY "+bad+"x", "no such file")
	expect(t, exitOK, []string{"show", dir, "--tensors", "--identity", file}, "weight")
}

// cp takes what is encrypted as it is. --decrypt makes a plain copy, --recipient one for others; both keep job, run and step.
func TestCopyOfWhatIsEncrypted(t *testing.T) {
	dir, keys, file := encryptedRoot(t)
	others, theirs := catalogtest.NewKey(t)
	asIs, plain, anew := t.TempDir(), t.TempDir(), t.TempDir()
	expect(t, exitOK, []string{"cp", dir, asIs}, "copied step 30")
	expect(t, exitOK, []string{"show", asIs, "--tensors", "--identity", file}, "weight")
	for range 2 {
		expect(t, exitOK, []string{"cp", "--all", "--decrypt", dir, plain, "--identity", file}, "copied step 30", "copied step 20", "copied step 10")
	}
	expect(t, exitOK, []string{"log", plain}, "decrypted")
	if rows := ckptRows(t, plain); len(rows) != 3 || rows[0].Encrypted || rows[0].Step != 30 || rows[0].Run != ckptRows(t, dir)[0].Run {
		t.Errorf("%+v", rows)
	}
	expect(t, exitOK, []string{"verify", "--all", plain}, "step 30")
	expect(t, exitOK, []string{"diff", plain, dir, "--identity", file}, "equal")
	expect(t, exitOK, []string{"cp", dir, anew, "--identity", file, "--recipient", others.Recipients()[0]}, "copied step 30")
	expect(t, exitOK, []string{"diff", plain, anew, "--identity", theirs}, "equal")
	if out := expect(t, exitOK, []string{"show", "--json", anew}); strings.Contains(out, keys.Recipients()[0]) || !strings.Contains(out, others.Recipients()[0]) {
		t.Error(out)
	}
	var shown struct {
		Commit struct{ Sealed json.RawMessage }
	}
	if err := json.Unmarshal([]byte(expect(t, exitOK, []string{"show", "--json", plain})), &shown); err != nil || shown.Commit.Sealed != nil {
		t.Errorf("%s, %v", shown.Commit.Sealed, err)
	}
	expect(t, exitUsage, []string{"cp", dir, anew, "--decrypt", "--recipient", others.Recipients()[0]}, "give one of them")
	expect(t, exitUsage, []string{"cp", dir, anew, "--recipient", "age1x"}, `recipient "age1x"`)

	// One that broke off goes on, with a key of those that it is for and without.
	both := filepath.Join(t.TempDir(), "both")
	secrets := ""
	for _, name := range []string{file, theirs} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		secrets += string(b)
	}
	if err := os.WriteFile(both, []byte(secrets), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{file, both} {
		out := expect(t, exitOK, []string{"cp", "--all", dir, anew, "--identity", key, "--recipient", others.Recipients()[0]}, "copied step 30", "copied step 20", "copied step 10")
		if strings.Contains(out, "damaged") {
			t.Error(out)
		}
	}
	expect(t, exitFailed, []string{"cp", dir, anew, "--identity", file, "--decrypt"}, "step 30 is there, and is another one or encrypted otherwise")
}

// TestCkptImportEncrypts: to a recipient of the flag, or of the environment; with what a folder has beside its weights. What is no recipient is refused.
func TestCkptImportEncrypts(t *testing.T) {
	id, err := filippo.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "key.txt")
	if err := os.WriteFile(key, []byte(id.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	catalogtest.WriteMade(t, dir, durabletest.Make(replica.Generation{Epoch: 1, Step: 10}, 2, durabletest.Trained()...), 0)
	expect(t, exitOK, []string{"export", dir + "@10", out, "--to", "hf", "--only", "model"}, "exported")
	if err := os.WriteFile(filepath.Join(out, "config.json"), []byte(`{"token": "hf_t0k3n"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	flag, env := t.TempDir(), t.TempDir()
	expect(t, exitOK, []string{"import", out, "--to", flag, "--job", "new", "--recipient", id.Recipient().String()}, "imported")
	t.Setenv("REPLICAD_RECIPIENTS", " "+id.Recipient().String()+",")
	expect(t, exitOK, []string{"import", out, "--to", env, "--job", "new"}, "imported")
	const plain = "note: step 10 of opticks is not encrypted, nor is its copy"
	expect(t, exitOK, []string{"cp", dir + "@10", t.TempDir()}, "copied step 10", plain)
	for _, flags := range [][]string{{dir, "--recipient", id.Recipient().String()}, {flag}} {
		if text := expect(t, exitOK, append([]string{"cp", "--identity", key, "--json", flags[0], t.TempDir()}, flags[1:]...)); strings.Contains(text, "note: ") {
			t.Error(text)
		}
	}
	for _, root := range []string{flag, env} {
		expect(t, exitOK, []string{"verify", root}, "good")
		expect(t, exitFailed, []string{"export", root, filepath.Join(t.TempDir(), "out"), "--to", "hf"}, "is encrypted to "+id.Recipient().String())
		back := filepath.Join(t.TempDir(), "out")
		expect(t, exitOK, []string{"export", root, back, "--to", "hf", "--identity", key}, "exported")
		if b, err := os.ReadFile(filepath.Join(back, "config.json")); err != nil || !bytes.Contains(b, []byte("hf_t0k3n")) {
			t.Errorf("%s, %v", b, err)
		}
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := os.ReadFile(path)
			if bytes.Contains(b, []byte("hf_t0k3n")) || bytes.Contains(b, []byte("AGE-SECRET-KEY")) || bytes.Contains(b, []byte("weight")) {
				t.Errorf("%s shows what is encrypted", path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	// What says that tensors are tied is a frozen part. Who wrote it needs no key for it.
	const tied = `{"__metadata__":{"head.weight":"base"},"base":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`
	file := filepath.Join(out, "tied.safetensors")
	if err := os.WriteFile(file, append(binary.LittleEndian.AppendUint64(nil, uint64(len(tied))), tied+"12"...), 0o644); err != nil {
		t.Fatal(err)
	}
	expect(t, exitOK, []string{"import", file, "--to", flag, "--job", "tied", "--recipient", id.Recipient().String()}, "imported")
	expect(t, exitOK, []string{"verify", flag + "/tied"}, "good")
	back := filepath.Join(t.TempDir(), "out")
	expect(t, exitOK, []string{"export", flag + "/tied", back, "--to", "safetensors", "--map", "model.=", "--identity", key}, "exported")
	if b, err := os.ReadFile(filepath.Join(back, "state.safetensors")); err != nil || !bytes.Contains(b, []byte(`"head.weight":"base"`)) {
		t.Errorf("%s, %v", b, err)
	}
	text := expect(t, exitUsage, []string{"import", out, "--to", t.TempDir(), "--job", "new", "--recipient", id.String()}, "a recipient is a secret key (not shown)")
	if strings.Contains(text, id.String()) {
		t.Error(text)
	}
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	expect(t, exitUsage, []string{"export", env, filepath.Join(t.TempDir(), "out"), "--to", "hf", "--identity", key}, "mode 0644: other users can read the key: chmod 600 it")
}
