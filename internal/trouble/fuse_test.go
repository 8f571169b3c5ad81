//go:build cgo

package trouble_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// memFS is a file system in the memory of the test, mounted over a directory, which is as bad as it is told to be. Should the test be killed,
// the kernel ends all calls to it. The test itself must not open what is in it: the kernel would ask who is asking, and at the end of the
// process wait for an answer that nobody can give any more.
type memFS struct {
	t      testing.TB
	dir    string
	server *os.File
	gone   chan struct{} // closed when the server has ended

	mu     sync.Mutex // guards what follows
	nodes  map[uint64]*memNode
	next   uint64
	rate   float64       // bytes a second that reach the medium, when somebody syncs; 0: as fast as memory
	busy   time.Time     // until then the medium is with what others sync
	frozen chan struct{} // not nil: whatever changes something waits until it is closed; what looks is answered, as fsfreeze(8) has it
}

// memNode is a file, or with names a directory.
type memNode struct {
	id    uint64
	data  []byte
	names map[string]*memNode
	dirty int // bytes that were written and not synced
	links uint32
}

// Numbers of the kernel's fuse.h.
const (
	fuseLookup, fuseForget, fuseGetattr, fuseSetattr, fuseMkdir, fuseUnlink, fuseRmdir, fuseRename = 1, 2, 3, 4, 9, 10, 11, 12
	fuseLink, fuseOpen, fuseRead, fuseWrite, fuseStatfs, fuseRelease, fuseFsync                    = 13, 14, 15, 16, 17, 18, 20
	fuseFlush, fuseInit, fuseOpendir, fuseReaddir, fuseReleasedir, fuseFsyncdir                    = 25, 26, 27, 28, 29, 30
	fuseAccess, fuseCreate, fuseInterrupt, fuseDestroy, fuseBatchForget, fuseRename2               = 34, 35, 36, 38, 42, 45

	fuseRoot                        = 1
	fuseMost                        = 1 << 20 // bytes of one write
	fuseBigWrites, fuseManyPages    = 1 << 5, 1 << 22
	fuseSetSize                     = 1 << 3
	fuseInHeader, fuseOutHeader     = 40, 16
	fuseReadIn, fuseWriteIn         = 40, 40
	fuseMkdirIn, fuseCreateIn       = 8, 16
	fuseLinkIn, fuseRename2In       = 8, 16
	fuseAttrBytes, fuseEntryDefault = 88, 40
)

// mountMem mounts an empty one.
func mountMem(t testing.TB, dir string) *memFS {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == nil {
		err = unix.Mount("mem", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd))
	}
	if err != nil {
		t.Skipf("needs a file system of its own in user space, which only root may mount: %v", err)
	}
	f := &memFS{t: t, dir: dir, server: os.NewFile(uintptr(fd), "/dev/fuse"), gone: make(chan struct{}), next: fuseRoot + 1,
		nodes: map[uint64]*memNode{fuseRoot: {id: fuseRoot, names: map[string]*memNode{}, links: 2}}}
	go f.serve()
	t.Cleanup(func() {
		f.thaw()
		if err := errors.Join(unix.Unmount(dir, unix.MNT_DETACH), f.server.Close()); err != nil {
			t.Error(err)
		}
		<-f.gone
	})
	return f
}

// freeze has all calls wait that change something, until the thaw, or the end of the test: a process that is in one can't be killed.
func (f *memFS) freeze() {
	f.t.Cleanup(f.thaw)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.frozen == nil {
		f.frozen = make(chan struct{})
	}
}

// thaw lets them go on.
func (f *memFS) thaw() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.frozen != nil {
		close(f.frozen)
		f.frozen = nil
	}
}

// slow has so many bytes a second reach the medium, of all files together. A write is taken at once, as by the kernel's cache, and is waited for
// by who syncs the file.
func (f *memFS) slow(rate float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rate = rate
}

func (f *memFS) serve() {
	defer close(f.gone)
	var calls sync.WaitGroup
	defer calls.Wait()
	b := make([]byte, fuseMost+4096)
	for {
		n, err := f.server.Read(b)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINTR) {
			continue // who called has been interrupted
		}
		if err != nil {
			if !errors.Is(err, unix.ENODEV) && !errors.Is(err, os.ErrClosed) && !errors.Is(err, io.EOF) {
				f.t.Errorf("fuse: %v", err)
			}
			return
		}
		in := bytes.Clone(b[:n])
		switch op := binary.NativeEndian.Uint32(in[4:]); op {
		case fuseForget, fuseBatchForget, fuseInterrupt, fuseDestroy: // have no answer
		default:
			calls.Go(func() {
				f.call(op, binary.NativeEndian.Uint64(in[8:]), binary.NativeEndian.Uint64(in[16:]), in[fuseInHeader:])
			})
		}
	}
}

// call answers one call.
func (f *memFS) call(op uint32, unique, node uint64, in []byte) {
	f.delay(op, node)
	f.mu.Lock()
	out, errno := f.answer(op, f.nodes[node], in)
	f.mu.Unlock()
	b := binary.NativeEndian.AppendUint32(nil, uint32(fuseOutHeader+len(out)))
	b = binary.NativeEndian.AppendUint32(b, uint32(-int32(errno)))
	b = binary.NativeEndian.AppendUint64(b, unique)
	_, _ = f.server.Write(append(b, out...)) // who called may be gone
}

// delay is what makes it bad.
func (f *memFS) delay(op uint32, node uint64) {
	f.mu.Lock()
	frozen, free := f.frozen, time.Time{}
	switch op {
	case fuseSetattr, fuseMkdir, fuseUnlink, fuseRmdir, fuseRename, fuseRename2, fuseLink, fuseWrite, fuseFsync, fuseFsyncdir, fuseCreate:
	default:
		frozen = nil
	}
	if n := f.nodes[node]; n != nil && op == fuseFsync {
		if f.rate > 0 {
			if now := time.Now(); f.busy.Before(now) {
				f.busy = now
			}
			f.busy = f.busy.Add(time.Duration(float64(n.dirty) / f.rate * float64(time.Second)))
			free = f.busy
		}
		n.dirty = 0
	}
	f.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
	if !free.IsZero() {
		<-time.After(time.Until(free))
	}
}

func (f *memFS) answer(op uint32, n *memNode, in []byte) (out []byte, errno unix.Errno) {
	if op == fuseInit {
		return f.init(in)
	}
	if n == nil {
		return nil, unix.ESTALE
	}
	if n.names == nil {
		return f.file(op, n, in)
	}
	return f.folder(op, n, in)
}

func (f *memFS) init(in []byte) (out []byte, errno unix.Errno) {
	out = make([]byte, 64)
	e := binary.NativeEndian
	e.PutUint32(out, 7)
	e.PutUint32(out[4:], 31)
	copy(out[8:12], in[8:12]) // readahead
	e.PutUint32(out[12:], fuseBigWrites|fuseManyPages)
	e.PutUint32(out[20:], fuseMost)
	e.PutUint32(out[24:], 1)
	e.PutUint16(out[28:], fuseMost/4096)
	return out, 0
}

// file answers what is asked of a file.
func (f *memFS) file(op uint32, n *memNode, in []byte) (out []byte, errno unix.Errno) {
	e := binary.NativeEndian
	switch op {
	case fuseGetattr:
		return n.attr(), 0
	case fuseSetattr:
		if e.Uint32(in)&fuseSetSize != 0 {
			n.resize(int(e.Uint64(in[16:])))
		}
		return n.attr(), 0
	case fuseOpen:
		return make([]byte, 16), 0
	case fuseRead:
		at, size := int(e.Uint64(in[8:])), int(e.Uint32(in[16:]))
		at = min(at, len(n.data))
		return n.data[at:min(at+size, len(n.data))], 0
	case fuseWrite:
		at, data := int(e.Uint64(in[8:])), in[fuseWriteIn:]
		if end := at + len(data); end > len(n.data) {
			n.resize(end)
		}
		n.dirty += copy(n.data[at:], data)
		return e.AppendUint64(nil, uint64(len(data))), 0
	case fuseFsync, fuseFlush, fuseRelease, fuseAccess:
		return nil, 0
	case fuseStatfs:
		return f.space(), 0
	}
	return nil, unix.ENOSYS
}

// folder answers what is asked of a directory.
func (f *memFS) folder(op uint32, n *memNode, in []byte) (out []byte, errno unix.Errno) {
	e := binary.NativeEndian
	switch op {
	case fuseGetattr, fuseSetattr:
		return n.attr(), 0
	case fuseLookup:
		if child := n.names[cString(in)]; child != nil {
			return child.entry(), 0
		}
		return nil, unix.ENOENT
	case fuseMkdir:
		return f.make(n, cString(in[fuseMkdirIn:]), &memNode{names: map[string]*memNode{}, links: 2})
	case fuseCreate:
		out, errno = f.make(n, cString(in[fuseCreateIn:]), &memNode{links: 1})
		return append(out, make([]byte, 16)...), errno
	case fuseLink:
		child := f.nodes[e.Uint64(in)]
		name := cString(in[fuseLinkIn:])
		if n.names[name] != nil {
			return nil, unix.EEXIST
		}
		n.names[name] = child
		child.links++
		return child.entry(), 0
	case fuseUnlink, fuseRmdir:
		return nil, n.drop(cString(in))
	case fuseRename:
		return nil, f.rename(n, e.Uint64(in), in[8:])
	case fuseRename2:
		return nil, f.rename(n, e.Uint64(in), in[fuseRename2In:])
	case fuseOpendir:
		return make([]byte, 16), 0
	case fuseReaddir:
		return n.list(int(e.Uint64(in[8:])), int(e.Uint32(in[16:]))), 0
	case fuseReleasedir, fuseFsyncdir, fuseAccess, fuseFlush:
		return nil, 0
	case fuseStatfs:
		return f.space(), 0
	}
	return nil, unix.ENOSYS
}

func (f *memFS) make(in *memNode, name string, child *memNode) (out []byte, errno unix.Errno) {
	if in.names[name] != nil {
		return nil, unix.EEXIST
	}
	child.id = f.next
	f.next++
	f.nodes[child.id], in.names[name] = child, child
	return child.entry(), 0
}

func (f *memFS) rename(from *memNode, to uint64, names []byte) unix.Errno {
	was := cString(names)
	is := cString(names[len(was)+1:])
	child, into := from.names[was], f.nodes[to]
	if child == nil || into == nil {
		return unix.ENOENT
	}
	if old := into.names[is]; old != nil && old.names != nil && len(old.names) > 0 {
		return unix.ENOTEMPTY
	}
	delete(from.names, was)
	into.names[is] = child
	return 0
}

// space says that there is some.
func (f *memFS) space() []byte {
	out := make([]byte, 80)
	for i := range 5 {
		binary.NativeEndian.PutUint64(out[8*i:], 1<<24)
	}
	for _, at := range []int{40, 44, 48} { // block size, longest name, fragment
		binary.NativeEndian.PutUint32(out[at:], 4096)
	}
	binary.NativeEndian.PutUint32(out[44:], 255)
	return out
}

func (n *memNode) resize(size int) {
	if size <= cap(n.data) {
		n.data = n.data[:size]
		return
	}
	data := make([]byte, size, size+size/2)
	copy(data, n.data)
	n.data = data
}

func (n *memNode) drop(name string) unix.Errno {
	child := n.names[name]
	switch {
	case child == nil:
		return unix.ENOENT
	case len(child.names) > 0:
		return unix.ENOTEMPTY
	}
	delete(n.names, name)
	if child.links--; child.names == nil && child.links == 0 {
		child.data = nil
	}
	return 0
}

// list is the part of a directory's list from entry at on that has room.
func (n *memNode) list(at, room int) (out []byte) {
	e := binary.NativeEndian
	i := 0
	for name, child := range n.sorted() {
		if i++; i <= at {
			continue
		}
		entry := e.AppendUint64(e.AppendUint64(nil, child.id), uint64(i))
		entry = e.AppendUint32(entry, uint32(len(name)))
		entry = e.AppendUint32(entry, child.mode()>>12)
		entry = append(entry, name...)
		entry = append(entry, make([]byte, -len(entry)&7)...)
		if len(out)+len(entry) > room {
			break
		}
		out = append(out, entry...)
	}
	return out
}

func (n *memNode) mode() uint32 {
	if n.names != nil {
		return unix.S_IFDIR | 0o700
	}
	return unix.S_IFREG | 0o600
}

// attr is the answer about a node: nothing of it is kept, another node may change it.
func (n *memNode) attr() []byte { return append(make([]byte, 16), n.attributes()...) }

func (n *memNode) entry() []byte {
	out := make([]byte, fuseEntryDefault)
	binary.NativeEndian.PutUint64(out, n.id)
	return append(out, n.attributes()...)
}

func (n *memNode) attributes() []byte {
	e, out := binary.NativeEndian, make([]byte, fuseAttrBytes)
	e.PutUint64(out, n.id)
	e.PutUint64(out[8:], uint64(len(n.data)))
	e.PutUint64(out[16:], uint64(len(n.data)+511)/512)
	e.PutUint32(out[60:], n.mode())
	e.PutUint32(out[64:], n.links)
	e.PutUint32(out[80:], 4096)
	return out
}

func cString(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// sorted is what a directory names, in order.
func (n *memNode) sorted() iter.Seq2[string, *memNode] {
	return func(yield func(string, *memNode) bool) {
		for _, name := range slices.Sorted(maps.Keys(n.names)) {
			if !yield(name, n.names[name]) {
				return
			}
		}
	}
}

// copied is a copy of what is in it, in a directory of its own.
func (f *memFS) copied() string {
	f.t.Helper()
	dir := shortDir(f.t)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[fuseRoot].copy(f.t, dir)
	return dir
}

func (n *memNode) copy(t testing.TB, to string) {
	t.Helper()
	for name, child := range n.names {
		at := filepath.Join(to, name)
		if child.names == nil {
			if err := os.WriteFile(at, child.data, 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.Mkdir(at, 0o700); err != nil {
			t.Fatal(err)
		}
		child.copy(t, at)
	}
}

// TestFileSystemInMemory: what the tests mount is a file system, as far as the daemons use it.
func TestFileSystemInMemory(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	f := mountMem(t, dir)
	shell := func(script string) *process {
		return spawn(t, "sh", []string{"DIR=" + dir}, "/bin/sh", "-ec", "cd $DIR; "+script)
	}
	sh := shell(`mkdir -p a/b; head -c 3000000 /dev/zero | tr '\0' x > a/b/c; mv a/b/c a/d; ln a/d a/b/e; rm a/d; sync a/b/e a/b; cmp a/b/e a/b/e; rmdir a 2>/dev/null && exit 9; ls a`)
	if code, out := sh.exit(), sh.output(); code != 0 || strings.TrimSpace(out) != "b" {
		t.Fatalf("code %d: %q", code, out)
	}
	e, err := os.ReadFile(filepath.Join(f.copied(), "a", "b", "e"))
	if err != nil || len(e) != 3_000_000 || strings.Trim(string(e), "x") != "" {
		t.Errorf("%d bytes, %v", len(e), err)
	}
	f.freeze()
	late, looks := shell("echo > late"), shell("cat a/b/e > /dev/null; ls a/b")
	if code := looks.exit(); code != 0 {
		t.Errorf("it does not answer who looks: code %d, %s", code, looks.output())
	}
	if !late.Running() {
		t.Error("it is written to while it is frozen")
	}
	f.thaw()
	if code := late.exit(); code != 0 {
		t.Errorf("after the thaw: code %d, %s", code, late.output())
	}
}
