package shm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/unixsock"
)

const mib = 1 << 20

// fakeMemory writes a /proc and a cgroup tree; files are relative to the temporary directory.
func fakeMemory(t *testing.T, files map[string]string) memory {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return memory{filepath.Join(dir, "proc"), filepath.Join(dir, "cgroup")}
}

func TestAvailableMemory(t *testing.T) {
	meminfo := "MemTotal: 4096000 kB\nMemFree: 1 kB\nMemAvailable: 1024000 kB\n" // 1000 MiB
	n := func(m int) string { return fmt.Sprintf("%d\n", m*mib) }
	for _, c := range []struct {
		name  string
		files map[string]string
		want  uint64
		limit string
	}{
		{"host alone", map[string]string{"proc/meminfo": meminfo}, 1000, "meminfo"},
		{"no limit", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n", "cgroup/a/memory.max": "max\n", "cgroup/a/memory.current": n(10)}, 1000, "meminfo"},
		{"v2", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n", "cgroup/a/b/memory.max": n(500), "cgroup/a/b/memory.current": n(300)}, 200, "a/b/memory.max"},
		{"v2, cache is free", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n", "cgroup/a/memory.max": n(500), "cgroup/a/memory.current": n(300),
			"cgroup/a/memory.stat": "anon 1\ninactive_file " + n(100) + "active_file 5\n"}, 300, "a/memory.max"},
		{"v2, parent is tighter", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n", "cgroup/a/b/memory.max": n(500), "cgroup/a/b/memory.current": n(100),
			"cgroup/a/memory.max": n(600), "cgroup/a/memory.current": n(550)}, 50, "a/memory.max"},
		{"v2, another namespace's path", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/../../x\n", "cgroup/memory.max": n(70), "cgroup/memory.current": n(50)}, 20, "memory.max"},
		{"v2 beyond its limit", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n", "cgroup/a/memory.max": n(70), "cgroup/a/memory.current": n(80)}, 0, "a/memory.max"},
		{"v1", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/a\n", "cgroup/memory/a/memory.limit_in_bytes": n(500), "cgroup/memory/a/memory.usage_in_bytes": n(300),
			"cgroup/memory/a/memory.stat": "inactive_file 1\ntotal_inactive_file " + n(50)}, 250, "memory.limit_in_bytes"},
		{"v1 without a limit", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "4:hugetlb,memory:/\n", "cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "cgroup/memory/memory.usage_in_bytes": n(300)}, 1000, "meminfo"},
		{"hybrid", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "4:memory:/a\n0::/b\n", "cgroup/memory/a/memory.limit_in_bytes": n(500), "cgroup/memory/a/memory.usage_in_bytes": n(300),
			"cgroup/unified/b/memory.max": n(30), "cgroup/unified/b/memory.current": n(10)}, 20, "unified/b/memory.max"},
	} {
		m := fakeMemory(t, c.files)
		have, limit, err := m.available()
		if err != nil || have != c.want*mib || !strings.Contains(limit, c.limit) {
			t.Errorf("%s: %d MiB by %s (%v), want %d by %s", c.name, have/mib, limit, err, c.want, c.limit)
		}
	}
	if _, _, err := fakeMemory(t, map[string]string{"proc/meminfo": "MemTotal: 5 kB\n"}).available(); err == nil {
		t.Error("no MemAvailable: no error")
	}
}

func TestTooLittleMemory(t *testing.T) {
	m := fakeMemory(t, map[string]string{"proc/meminfo": "MemAvailable: 204800 kB\n"}) // 200 MiB
	f, err := NewMemfd("test")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(170 * mib); err != nil {
		t.Fatal(err)
	}
	var lacked []uint64
	others := uint64(0)
	lacks := func(n uint64) uint64 { lacked = append(lacked, n/mib); return others }
	taken := func() uint64 {
		lacks, err := missing(f, 170*mib)
		if err != nil {
			t.Fatal(err)
		}
		return 170 - lacks/mib
	}
	err = reserve(t.Context(), f, 101*mib, 0, 101*mib, 100*mib, m, lacks)
	e, ok := errors.AsType[*TooLittleMemory](err)
	if !ok || e.Need != 101*mib || e.Have != 100*mib {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{"101 MiB", "100 MiB", "meminfo", "fewer slots", "cgroup"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if taken() != 0 {
		t.Errorf("%d MiB were taken before the check", taken())
	}
	others = 60 * mib
	if err := reserve(t.Context(), f, 70*mib, 0, 70*mib, 100*mib, m, lacks); err == nil || !strings.Contains(err.Error(), "60 MiB promised to others") {
		t.Errorf("of 200 MiB 60 are promised to others: %v", err)
	}
	others, lacked = 0, nil
	if err := reserve(t.Context(), f, 170*mib, 100*mib, 70*mib, 10*mib, m, lacks); err != nil { // in two pieces, of which the first ends at 128 MiB
		t.Error(err)
	}
	if taken() != 70 || !slices.Equal(lacked, []uint64{170, 142, 100}) {
		t.Errorf("%d MiB taken, lacking %v", taken(), lacked)
	}
	lacked = nil // what is there is not taken again, and needs no room
	if err := reserve(t.Context(), f, 70*mib, 100*mib, 70*mib, 1<<60, m, lacks); err != nil || !slices.Equal(lacked, []uint64{0}) {
		t.Errorf("all is there: %v, %v", err, lacked)
	}
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(os.ErrDeadlineExceeded)
	if err := reserve(gone, f, 170*mib, 0, 100*mib, 10*mib, m, lacks); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after its end: %v", err)
	}
	s := testSpec(t)
	s.Margin = 1 << 60
	if _, err := Create(s); err == nil {
		t.Error("an arena was made with no memory to spare")
	} else if _, ok := errors.AsType[*TooLittleMemory](err); !ok {
		t.Error(err)
	}
}

// What is allocated through a mapping is all there, at any offset, and what was there before is what it was. Where the host gives huge pages on
// advice, it gave them.
func TestPopulate(t *testing.T) {
	f, err := NewMemfd("populate")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const size = 8 << 20
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("kept"), 1<<20); err != nil {
		t.Fatal(err)
	}
	for _, at := range [][2]uint64{{5000, 10}, {1<<20 - 10, 3 << 20}, {0, size}} {
		if err := unixsock.Control(f, func(fd int) error { return populate(fd, at[0], at[1]) }); err != nil {
			t.Fatal(at, err)
		}
		lacks, err := missing(f, size)
		if err != nil {
			t.Fatal(err)
		}
		if there := size - lacks; there < at[1] {
			t.Errorf("%d bytes at %d: %d are there", at[1], at[0], there)
		}
	}
	got := make([]byte, 6)
	if _, err := f.ReadAt(got, 1<<20-1); err != nil || string(got) != "\x00kept\x00" {
		t.Errorf("%q, %v", got, err)
	}
	if !hugeOnAdvice() {
		return // there is nothing more to see
	}
	huge := func() (kib int) {
		b, err := os.ReadFile("/proc/meminfo")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if _, err := fmt.Sscanf(line, "ShmemHugePages: %d kB", &kib); err == nil {
				return kib
			}
		}
		t.Fatal("no ShmemHugePages")
		return 0
	}
	g, err := NewMemfd("huge")
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if err := g.Truncate(64 << 20); err != nil {
		t.Fatal(err)
	}
	before := huge()
	if err := take(g, 0, 64<<20); err != nil {
		t.Fatal(err)
	}
	if now := huge(); now-before < 32<<10 {
		t.Errorf("%d KiB of huge pages for 64 MiB", now-before)
	}
}
