package kept

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// contents reads a tar.
func contents(t testing.TB, b []byte) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := Read(bytes.NewReader(b), func(f File, r io.Reader) error {
		data, err := io.ReadAll(r)
		if int64(len(data)) != f.Bytes {
			t.Errorf("%s: %d bytes, %d were announced", f.Name, len(data), f.Bytes)
		}
		got[f.Name] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// folder makes files below a folder of its own.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o700), os.WriteFile(p, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestCollect: names go by rsync's rule, links to files are read through, and neither order nor the files' own times and modes count.
func TestCollect(t *testing.T) {
	dir := folder(t, map[string]string{"config.json": "{}", "tok/tokenizer.json": "[1]", "tok/sub/é.txt": "", "cache/blob": "B"})
	long := "sub/" + strings.Repeat("x", 120) + "/" + strings.Repeat("y", 120)
	if err := errors.Join(os.Symlink("../cache/blob", filepath.Join(dir, "tok", "merges.txt")), os.Symlink("tok", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want map[string]string
	}{
		{[]string{"config.json", "tok/"}, map[string]string{"config.json": "{}", "tokenizer.json": "[1]", "sub/é.txt": "", "merges.txt": "B"}},
		{[]string{"tok"}, map[string]string{"tok/tokenizer.json": "[1]", "tok/sub/é.txt": "", "tok/merges.txt": "B"}},
		{[]string{"tok/.", "./config.json"}, map[string]string{"config.json": "{}", "tokenizer.json": "[1]", "sub/é.txt": "", "merges.txt": "B"}},
		{[]string{"link/sub"}, map[string]string{"sub/é.txt": ""}},
		{[]string{"tok", "tok", "tok/../tok"}, map[string]string{"tok/tokenizer.json": "[1]", "tok/sub/é.txt": "", "tok/merges.txt": "B"}},
		{[]string{"tok/", "tok/merges.txt"}, map[string]string{"tokenizer.json": "[1]", "sub/é.txt": "", "merges.txt": "B"}},
		{[]string{"tok/merges.txt", "cache/blob"}, map[string]string{"merges.txt": "B", "blob": "B"}},
	} {
		var args []string
		for _, a := range tc.args {
			args = append(args, dir+"/"+a)
		}
		b, err := Collect(args)
		if err != nil {
			t.Fatalf("%v: %v", tc.args, err)
		}
		if got := contents(t, b); !maps.Equal(got, tc.want) {
			t.Errorf("%v: %v", tc.args, got)
		}
		slices.Reverse(args)
		if again, err := Collect(args); err != nil || !bytes.Equal(again, b) {
			t.Errorf("%v: another tar in another order: %v", tc.args, err)
		}
	}
	if b, err := Pack([]Source{{long, []byte("L")}}); err != nil || contents(t, b)[long] != "L" {
		t.Errorf("a long name: %v", err)
	}
}

// TestCollectRefuses: what cannot be kept is named, with what to do.
func TestCollectRefuses(t *testing.T) {
	dir := folder(t, map[string]string{"a/x": "1", "b/x": "2", "tok/file": "3", "odd/new\nline": "4", "part/x/y": "5"})
	big, many := filepath.Join(dir, "big"), filepath.Join(dir, "many")
	err := errors.Join(os.Mkdir(filepath.Join(dir, "empty"), 0o700), os.Mkdir(many, 0o700), syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600), os.Symlink("../a", filepath.Join(dir, "tok", "out")), os.Symlink("gone", filepath.Join(dir, "broken")),
		os.WriteFile(big, nil, 0o600), os.Truncate(big, MaxBytes+1))
	for i := range MaxFiles + 1 {
		err = errors.Join(err, os.WriteFile(filepath.Join(many, fmt.Sprint(i)), nil, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"missing: no such file":                            {"missing"},
		"both be called \"x\": rename one":                 {"a/", "b/x"},
		"pipe is no file that can be kept (p---------)":    {"pipe"},
		"tok/out is a link to a folder":                    {"tok"},
		"broken: no such file":                             {"broken"},
		"no file is in":                                    {"empty"},
		"with " + big + " of 67108865 bytes they are more": {"big"},
		"more than 1000 files":                             {"many"},
		"control characters":                               {"odd"},
		"\"x\" is the name of a file and of a folder":      {"a/x", "part/"},
	} {
		for i := range args {
			args[i] = dir + "/" + args[i]
		}
		if b, err := Collect(args); err == nil || !strings.Contains(err.Error(), want) || b != nil {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
	// What fits as bytes may not as a tar.
	if _, err := Pack([]Source{{"x", make([]byte, MaxBytes-2048)}}); err == nil || !strings.Contains(err.Error(), "more than 64 MiB in all") {
		t.Error(err)
	}
	if b, err := Pack([]Source{{"x", make([]byte, MaxBytes-2560)}}); err != nil || len(b) != MaxBytes {
		t.Errorf("%d bytes: %v", len(b), err)
	}
}

func TestCheckName(t *testing.T) {
	for _, bad := range []string{"", ".", "..", "/etc/passwd", "a/../b", "a//b", "a/", "./a", "\xff", "a\x00b", "a\x1b[2J", Sums, Sums + "/a", strings.Repeat("x", 256)} {
		if CheckName(bad) == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	for _, good := range []string{"a", ".hidden", "a/b.json", "é", "a b", Sums + "x", strings.Repeat("x", 255)} {
		if err := CheckName(good); err != nil {
			t.Error(err)
		}
	}
}

// made is a tar with headers as they are, behind a list of their digests.
func made(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	sums := ""
	for _, h := range headers {
		sums += sumLine(sha256.Sum256(make([]byte, h.Size)), h.Name)
	}
	return listed(t, sums, headers...)
}

// listed is a tar with a list of digests as it is.
func listed(t testing.TB, sums string, headers ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if sums != "" {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: Sums, Size: int64(len(sums))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, sums); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, h.Size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// bad are tars that somebody else might make.
func bad(t testing.TB) map[string][]byte {
	file := func(name string, size int64) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size}
	}
	good := made(t, file("a", 600), file("b", 1))
	return map[string][]byte{
		"nothing":           {},
		"no file":           made(t),
		"no tar":            []byte(strings.Repeat("x", 2048)),
		"cut":               good[:1800],
		"bytes behind":      append(slices.Clone(good), 0),
		"out of the folder": made(t, file("../a", 1)),
		"absolute":          made(t, file("/a", 1)),
		"unordered":         made(t, file("b", 1), file("a", 1)),
		"twice":             made(t, file("a", 1), file("a", 1)),
		"folder and file":   made(t, file("a", 1), file("a/b", 1)),
		"a folder":          made(t, tar.Header{Typeflag: tar.TypeDir, Name: "a/"}),
		"a link":            made(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "/etc/passwd"}),
		"a hard link":       made(t, tar.Header{Typeflag: tar.TypeLink, Name: "a", Linkname: "b"}),
		"a device":          made(t, tar.Header{Typeflag: tar.TypeChar, Name: "a"}),
		"of other records":  made(t, tar.Header{Typeflag: tar.TypeReg, Name: "a", PAXRecords: map[string]string{"VENDOR.x": "y"}}),
		"without digests":   listed(t, "", file("a", 600)),
		"another digest":    listed(t, sumLine([32]byte{}, "a"), file("a", 600)),
		"digests of more":   listed(t, sumLine(sha256.Sum256(make([]byte, 600)), "a")+sumLine([32]byte{}, "b"), file("a", 600)),
		"long digests":      listed(t, strings.Repeat("x", maxSums+1), file("a", 600)),
		"a rotten file":     replaced(good, 1600),
		"a rotten digest":   replaced(good, 520),
		"digests as a file": made(t, file(Sums, 3)),
		"a global header":   made(t, tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "g", PAXRecords: map[string]string{"path": "y"}}),
	}
}

// replaced is b with another byte.
func replaced(b []byte, at int) []byte {
	b = slices.Clone(b)
	b[at] ^= 1
	return b
}

func TestReadRefuses(t *testing.T) {
	for what, b := range bad(t) {
		if _, err := List(bytes.NewReader(b)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
	own := errors.New("own")
	if err := Read(bytes.NewReader(made(t, tar.Header{Typeflag: tar.TypeReg, Name: "a"})), func(File, io.Reader) error { return own }); !errors.Is(err, own) {
		t.Error(err)
	}
}

// TestSealed: a tar comes through sealed memory as it is; memory that its owner might still change is refused, and so are other files.
func TestSealed(t *testing.T) {
	b, err := Pack([]Source{{"a", []byte("A")}, {"b/c", bytes.Repeat([]byte("x"), 5000)}})
	if err != nil {
		t.Fatal(err)
	}
	f, err := Seal(b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("x"), 0); err == nil {
		t.Error("it can still be written")
	}
	got, err := Open(f)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	again, err := got.Read()
	if err != nil || !bytes.Equal(again, b) || got.Bytes != int64(len(b)) || len(got.SHA256) != 64 {
		t.Errorf("%d bytes, %+v, %v", len(again), got, err)
	}
	for what, c := range map[string]struct {
		b     []byte
		seals int
		says  string
	}{
		"not sealed":         {b, 0, "sealed against writes"},
		"may grow":           {b, unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK, "sealed against writes"},
		"may be written":     {b, unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW, "sealed against writes"},
		"no tar":             {[]byte("hello"), seals, "no tar"},
		"with a bad name":    {bad(t)["absolute"], seals, "relative path"},
		"larger than a tar":  {make([]byte, MaxBytes+1), seals, "at most 67108864"},
		"without seal of it": {b, seals &^ unix.F_SEAL_SEAL, ""},
	} {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "test")
		if _, err := f.Write(c.b); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, c.seals); err != nil {
			t.Fatal(err)
		}
		_, err = Open(f)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %s", what, err, c.says)
		}
		_ = f.Close()
	}
	plain, err := os.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := Open(plain); err == nil {
		t.Error("a plain file is taken")
	}
}

// FuzzRead: what is taken has names that lead nowhere else, no more bytes than came, and makes an equal tar again.
func FuzzRead(f *testing.F) {
	for _, b := range bad(f) {
		f.Add(b)
	}
	good, err := Pack([]Source{{"a", []byte("A")}, {strings.Repeat("é", 80) + "/c", bytes.Repeat([]byte("x"), 700)}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		var files []Source
		total := 0
		err := Read(bytes.NewReader(b), func(f File, r io.Reader) error {
			data, err := io.ReadAll(r)
			files, total = append(files, Source{f.Name, data}), total+len(data)
			return err
		})
		if err != nil {
			return
		}
		if total > len(b) {
			t.Fatalf("%d bytes came out of %d", total, len(b))
		}
		again, err := Pack(files)
		if err != nil {
			t.Fatalf("what was read can't be packed: %v", err)
		}
		var got []Source
		err = Read(bytes.NewReader(again), func(f File, r io.Reader) error {
			data, err := io.ReadAll(r)
			got = append(got, Source{f.Name, data})
			return err
		})
		if err != nil || !slices.EqualFunc(got, files, func(a, b Source) bool { return a.Name == b.Name && bytes.Equal(a.Data, b.Data) }) {
			t.Fatalf("%d files, then %d: %v", len(files), len(got), err)
		}
	})
}
