package shm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/internal/want"
)

// TooLittleMemory says that an arena does not fit. Shared memory beyond a cgroup's limit is an OOM kill and not an error, so
// this is found out before the pages are taken.
type TooLittleMemory struct {
	Need, Have uint64 // bytes; Have is what is left after Margin
	Margin     uint64
	Promised   uint64 // to other arenas of this daemon, which have not taken it yet: Have is less this, too
	Limit      string // what limits: a file of the cgroup, or /proc/meminfo
}

func (e *TooLittleMemory) Error() string {
	less := fmt.Sprintf("less a margin of %d MiB", e.Margin>>20)
	if e.Promised >= 1<<20 {
		less += fmt.Sprintf(" and %d MiB promised to others", e.Promised>>20)
	}
	return fmt.Sprintf("too little memory: need %d MiB, have %d MiB (%s, %s): use fewer slots or ranks on this node, a smaller state, a smaller memory_margin, or raise the limit of the daemon's cgroup",
		(e.Need+1<<20-1)>>20, e.Have>>20, e.Limit, less)
}

// Want says that the node is short of memory.
func (e *TooLittleMemory) Want() want.Kind { return want.Memory }

// Room tells whether a new arena would find its memory now. *TooLittleMemory: it would not.
func Room(spec Spec) error {
	head, err := layOut(spec.withDefaults())
	if err != nil {
		return err
	}
	return hostMemory().check(head.ArenaBytes, spec.Margin, promised.Load())
}

// memory tells where the kernel accounts for memory; a test gives roots of its own.
type memory struct{ proc, cgroup string }

func hostMemory() memory { return memory{"/proc", "/sys/fs/cgroup"} }

// reserveStep is how much is reserved at a time: memory is looked at again before each piece, since others take it too. Pieces end at its multiples, so
// that no huge page lies in two.
const reserveStep = 64 << 20

// reserve takes n bytes from off of a file of size bytes, unless they are there. lacks is told before each piece what the file still
// lacks, and says how much others were promised.
func reserve(ctx context.Context, f *os.File, size, off, n, margin uint64, m memory, lacks func(uint64) (others uint64)) error {
	for end := off + n; ; off += reserveStep - off%reserveStep {
		need, err := missing(f, size)
		if err != nil {
			return err
		}
		others := lacks(need)
		switch {
		case need == 0 || off >= end:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		if err := m.check(need, margin, others); err != nil {
			return err
		}
		if err := take(f, off, min(reserveStep-off%reserveStep, end-off)); err != nil {
			return err
		}
	}
}

// take allocates bytes of f.
func take(f *os.File, off, n uint64) error {
	if n == 0 {
		return nil
	}
	err := unixsock.Control(f, func(fd int) error {
		if hugeOnAdvice() {
			_ = populate(fd, off, n) // what is there already fallocate passes over, and it says best why something can't be had
		}
		for {
			err := unix.Fallocate(fd, 0, int64(off), int64(n))
			if !errors.Is(err, unix.EINTR) {
				return err
			}
		}
	})
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.ENOMEM):
		return errors.Join(&TooLittleMemory{Need: n, Limit: "fallocate"}, err)
	case err != nil:
		return fmt.Errorf("reserve %d bytes at %d: %w", n, off, err)
	}
	return nil
}

// hugeOnAdvice tells whether the host gives shared memory huge pages where a mapping asks for them (`advise` in shmem_enabled), and only there. With
// `always` and `within_size` fallocate gets them.
func hugeOnAdvice() bool {
	b, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
	return err == nil && bytes.Contains(b, []byte("[advise]"))
}

// populate allocates bytes of a file through a mapping that asks for huge pages; what they hold stays. The kernel clears and maps a gigabyte of them
// in a third of the time.
func populate(fd int, off, n uint64) error {
	page := uint64(os.Getpagesize())
	from := off / page * page
	p, err := unix.MmapPtr(fd, int64(from), nil, uintptr(off+n-from), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	whole := unsafe.Slice((*byte)(p), off+n-from)
	defer unix.MunmapPtr(p, uintptr(len(whole))) //nolint:errcheck // nothing is lost with it
	if err := unix.Madvise(whole, unix.MADV_HUGEPAGE); err != nil {
		return err
	}
	return unix.Madvise(whole, unix.MADV_POPULATE_WRITE)
}

// missing is how many of the first n bytes of f the kernel has not allocated.
func missing(f *os.File, n uint64) (uint64, error) {
	var st unix.Stat_t
	if err := unixsock.Control(f, func(fd int) error { return unix.Fstat(fd, &st) }); err != nil {
		return 0, err
	}
	return n - min(n, uint64(st.Blocks)*512), nil
}

// check tells whether need bytes can be taken with margin left, and what others were promised.
func (m memory) check(need, margin, others uint64) error {
	have, limit, err := m.available()
	if err != nil {
		return err
	}
	left := have - min(have, margin+others)
	if need > left {
		return &TooLittleMemory{Need: need, Have: left, Margin: margin, Promised: others, Limit: limit}
	}
	return nil
}

// available is the least that the host and every cgroup above this process has left, and which of them that is.
func (m memory) available() (have uint64, limit string, err error) {
	info := filepath.Join(m.proc, "meminfo")
	b, err := os.ReadFile(info)
	if err != nil {
		return 0, "", fmt.Errorf("free memory: %w", err)
	}
	kib, ok := field(b, "MemAvailable:")
	if !ok || kib > math.MaxUint64>>10 {
		return 0, "", fmt.Errorf("free memory: %s has no MemAvailable", info)
	}
	have, limit = kib<<10, info+" MemAvailable"
	groups, err := os.ReadFile(filepath.Join(m.proc, "self/cgroup"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, "", fmt.Errorf("free memory: %w", err)
	}
	for line := range strings.Lines(string(groups)) {
		id, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, ok := strings.Cut(rest, ":")
		if !ok {
			continue
		}
		var roots []string
		var kind accounting
		switch {
		case id == "0" && controllers == "":
			roots, kind = []string{m.cgroup, filepath.Join(m.cgroup, "unified")}, accountingV2
		case hasName(controllers, "memory"):
			roots, kind = []string{filepath.Join(m.cgroup, "memory")}, accountingV1
		}
		for _, root := range roots {
			if n, file, ok := kind.headroom(root, path); ok && n < have {
				have, limit = n, file
			}
		}
	}
	return have, limit, nil
}

// accounting names the files of a cgroup version.
type accounting struct{ limit, usage, inactive string }

var (
	accountingV1 = accounting{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
	accountingV2 = accounting{"memory.max", "memory.current", "inactive_file"}
)

// headroom is the least that a cgroup or one above it has left. Groups that don't show here (another namespace's) are skipped,
// and so is one without a limit. Page cache that the kernel would give back counts as free; shared memory is not among it.
func (k accounting) headroom(root, path string) (least uint64, file string, ok bool) {
	for path = filepath.Clean("/" + path); ; path = filepath.Dir(path) {
		dir := filepath.Join(root, path)
		limit, okLimit := number(filepath.Join(dir, k.limit))
		usage, okUsage := number(filepath.Join(dir, k.usage))
		if okLimit && okUsage {
			if b, err := os.ReadFile(filepath.Join(dir, "memory.stat")); err == nil {
				cache, _ := field(b, k.inactive)
				usage -= min(usage, cache)
			}
			if n := limit - min(limit, usage); !ok || n < least {
				least, file, ok = n, filepath.Join(dir, k.limit), true
			}
		}
		if path == "/" {
			return least, file, ok
		}
	}
}

// number reads a file that holds one number; "max" is none.
func number(file string) (uint64, bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(string(bytes.TrimSpace(b)), 10, 64)
	return n, err == nil
}

// field finds "name number" among lines.
func field(b []byte, name string) (uint64, bool) {
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) >= 2 && string(f[0]) == name {
			n, err := strconv.ParseUint(string(f[1]), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

func hasName(list, name string) bool {
	for s := range strings.SplitSeq(list, ",") {
		if s == name {
			return true
		}
	}
	return false
}
