package shm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/replica"
)

// Arena is a rank's memory, or a mirror's. Safe for concurrent use; after Close every word reads as zero and every read fails.
type Arena struct {
	spec Spec   // defaults filled in; never changes
	head Header // computed from spec
	file *os.File

	places []Place // computed from head

	page unsafe.Pointer // the control page, mapped shared

	stored func() // nil but in tests: see OnStore

	closing sync.Once
	owed    atomic.Uint64 // bytes of it that are in promised
	came    atomic.Uint64 // bytes that stagings have put

	mu    sync.Mutex    // guards fence
	fence replica.Epoch // what this daemon raised: the word in shared memory could be anybody's
}

// seals that make a memfd's size a fact, and keep a rank from adding F_SEAL_WRITE.
const arenaSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// Create makes a new arena. *TooLittleMemory if the host or the cgroup has not enough left. Of its memory the slots are only promised:
// they are nearly all of it, and the arena can be handed out before Reserve has taken them.
func Create(spec Spec) (*Arena, error) {
	spec = spec.withDefaults()
	if err := spec.check(); err != nil {
		return nil, err
	}
	head, err := layOut(spec)
	if err != nil {
		return nil, err
	}
	file, err := NewMemfd(fmt.Sprintf("replicad-arena-%d", spec.Rank))
	if err != nil {
		return nil, fmt.Errorf("arena of rank %d of job %v: %w", spec.Rank, spec.Job, err)
	}
	others := promised.Add(head.ArenaBytes) - head.ArenaBytes
	a, err := func() (*Arena, error) {
		if err := unixsock.Control(file, func(fd int) error { return unix.Ftruncate(fd, int64(head.ArenaBytes)) }); err != nil {
			return nil, fmt.Errorf("size of %d bytes: %w", head.ArenaBytes, err)
		}
		if err := hostMemory().check(head.ArenaBytes, spec.Margin, others); err != nil {
			return nil, err
		}
		for _, span := range [][2]uint64{{0, head.SlotOffset}, {head.RingOffset, head.ArenaBytes}} {
			if err := take(file, span[0], span[1]-span[0]); err != nil {
				return nil, err
			}
		}
		if _, err := file.WriteAt(head.marshal(spec), 0); err != nil {
			return nil, err
		}
		if _, err := file.WriteAt(regionTable(spec.Geometry), int64(head.RegionsOffset)); err != nil {
			return nil, err
		}
		if err := SealSize(file); err != nil {
			return nil, err
		}
		return open(file, spec, head)
	}()
	if err != nil {
		promised.Add(-head.ArenaBytes)
		_ = file.Close()
		return nil, fmt.Errorf("arena of rank %d of job %v: %w", spec.Rank, spec.Job, err)
	}
	a.owed.Store(head.ArenaBytes)
	if lacks, err := missing(file, head.ArenaBytes); err == nil {
		a.promise(lacks)
	}
	a.SetCadence(1)
	return a, nil
}

// Reserve takes the memory that is only promised, of an adopted arena too; nothing is to be done where all is there. *TooLittleMemory
// if others took it meanwhile: whoever writes to the arena then may be killed for it. nil once the arena is closed.
func (a *Arena) Reserve(ctx context.Context) error {
	h := a.head
	err := reserve(ctx, a.file, h.ArenaBytes, h.SlotOffset, uint64(h.Slots)*h.SlotStride, a.spec.Margin, hostMemory(), a.promise)
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%v: %w", a, err)
	}
	return nil
}

// promised counts what the arenas of this process still lack: two that are made at one time must not both find room for one.
var promised atomic.Uint64

// promise says how many bytes the arena still lacks, and returns how many others do.
func (a *Arena) promise(missing uint64) (others uint64) {
	return promised.Add(missing-a.owed.Swap(missing)) - missing
}

// Adopt takes an arena back from the keeper or from a rank. The descriptor is the arena's from then on, unless an error is
// returned. What it says of itself is copied once, and must be exactly what this package would have laid out.
func Adopt(f *os.File) (*Arena, error) {
	var st unix.Stat_t
	seals, err := 0, unixsock.Control(f, func(fd int) error { return unix.Fstat(fd, &st) })
	if err == nil {
		err = unixsock.Control(f, func(fd int) (err error) { seals, err = unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); return err })
	}
	if err != nil {
		return nil, fmt.Errorf("adopt arena: not a memfd: %w", err)
	}
	if seals&arenaSeals != arenaSeals || seals&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) != 0 {
		return nil, fmt.Errorf("adopt arena: seals %#x, want %#x and no write seal: its size could change under us", seals, arenaSeals)
	}
	found := make([]byte, headerBytes)
	if _, err := f.ReadAt(found, 0); err != nil {
		return nil, fmt.Errorf("adopt arena: header: %w", err)
	}
	spec, regions, err := parseHeader(found)
	if err != nil {
		return nil, fmt.Errorf("adopt arena: %w", err)
	}
	records := make([]byte, int(regions)*replica.RegionRecordBytes)
	if _, err := f.ReadAt(records, pageBytes); err != nil {
		return nil, fmt.Errorf("adopt arena: %d region records: %w", regions, err)
	}
	if spec.Geometry, err = parseRegionTable(records); err != nil {
		return nil, fmt.Errorf("adopt arena: %w", err)
	}
	if err := spec.check(); err != nil {
		return nil, fmt.Errorf("adopt: %w", err)
	}
	head, err := layOut(spec)
	if err != nil {
		return nil, fmt.Errorf("adopt: %w", err)
	}
	if !bytes.Equal(head.marshal(spec), found) {
		return nil, fmt.Errorf("adopt arena of rank %d of job %v: its header is not the one that its regions make", spec.Rank, spec.Job)
	}
	if uint64(st.Size) != head.ArenaBytes {
		return nil, fmt.Errorf("adopt arena of rank %d of job %v: %d bytes, its header says %d", spec.Rank, spec.Job, st.Size, head.ArenaBytes)
	}
	a, err := open(f, spec, head)
	if err != nil {
		return nil, fmt.Errorf("adopt arena of rank %d of job %v: %w", spec.Rank, spec.Job, err)
	}
	if e := replica.Epoch(a.load(wordFence)); e <= replica.MaxEpoch {
		a.fence = e
	}
	return a, nil
}

// open maps the control page.
func open(f *os.File, spec Spec, head Header) (*Arena, error) {
	a := &Arena{spec: spec, head: head, file: f, places: placesOf(head)}
	err := unixsock.Control(f, func(fd int) (err error) {
		a.page, err = unix.MmapPtr(fd, 0, nil, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("map the control page: %w", err)
	}
	runtime.AddCleanup(a, func(page unsafe.Pointer) { _ = unix.MunmapPtr(page, pageBytes) }, a.page)
	return a, nil
}

// Close lets go of the memory. The control page is replaced by an empty one of our own rather than unmapped, so that a reader
// that comes late finds FREE places and not a fault; its address goes with the Arena.
func (a *Arena) Close() error {
	var err error
	a.closing.Do(func() {
		_, mapErr := unix.MmapPtr(-1, 0, a.page, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED)
		err = errors.Join(mapErr, a.file.Close())
		a.promise(0)
	})
	return err
}

// OnStore has fn called behind each store of this process into the arena: a test lets the daemon die there. To be called before any of them.
func (a *Arena) OnStore(fn func()) { a.stored = fn }

func (a *Arena) hasStored() {
	if a.stored != nil {
		a.stored()
	}
}

// File is the arena's descriptor; it stays the arena's.
func (a *Arena) File() *os.File { return a.file }

// Header is the layout.
func (a *Arena) Header() Header { return a.head }

// Geometry is the regions and where they lie.
func (a *Arena) Geometry() replica.Geometry { return a.spec.Geometry }

// Spec is what the arena was made from, defaults filled in.
func (a *Arena) Spec() Spec { return a.spec }

func (a *Arena) String() string {
	if a.spec.Mirror {
		return fmt.Sprintf("mirror arena of rank %d", a.spec.Rank)
	}
	return fmt.Sprintf("arena of rank %d", a.spec.Rank)
}

func regionTable(g replica.Geometry) []byte {
	b := make([]byte, 0, len(g.Regions)*replica.RegionRecordBytes)
	for _, r := range g.Regions {
		b = replica.AppendRegion(b, r)
	}
	return b
}

// parseRegionTable reads region records and lays them out again; the offsets found must be those.
func parseRegionTable(records []byte) (replica.Geometry, error) {
	regions := make([]replica.Region, len(records)/replica.RegionRecordBytes)
	for i := range regions {
		var err error
		if regions[i], err = replica.ParseRegion(records[i*replica.RegionRecordBytes:][:replica.RegionRecordBytes]); err != nil {
			return replica.Geometry{}, err
		}
	}
	g, err := laidOut(regions)
	if err != nil {
		return replica.Geometry{}, err
	}
	if !bytes.Equal(regionTable(g), records) {
		return replica.Geometry{}, errors.New("region records: the offsets are not those of the layout")
	}
	return g, nil
}

// NewMemfd makes an empty, sealable, close-on-exec memfd, not executable where the kernel can say so (6.3). The name is for /proc alone.
func NewMemfd(name string) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// SealSize makes the size of an arena's memfd a fact, as Adopt wants it.
func SealSize(f *os.File) error { return addSeals(f, arenaSeals) }

func addSeals(f *os.File, seals int) error {
	return unixsock.Control(f, func(fd int) error {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			return fmt.Errorf("seal the memfd: %w", err)
		}
		return nil
	})
}
