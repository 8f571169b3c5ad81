package hostile

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// ranks are what a process that a launcher started does as a rank of its own job.
var ranks = map[string]func(*ownRank, time.Duration) error{"scribble": scribble, "die": func(*ownRank, time.Duration) error { return unix.Kill(os.Getpid(), unix.SIGKILL) }, "rendezvous": rendezvous, "ahead": ahead, "absent": absent}

// ownRank is an attached rank.
type ownRank struct {
	*caller
	epoch replica.Epoch
	arena *os.File
	bytes uint64
	out   io.Writer
}

// BeRank attaches as the environment says, and misbehaves.
func BeRank(name string, hold time.Duration, out io.Writer) error {
	does := ranks[name]
	if does == nil {
		return fmt.Errorf("no rank is called %q", name)
	}
	r, err := attach(out)
	if err != nil {
		return err
	}
	return does(r, hold)
}

// attach does what libreplicad does until a rank is told what to load.
func attach(out io.Writer) (*ownRank, error) {
	number := func(name string) uint32 { n, _ := strconv.ParseUint(os.Getenv(name), 10, 32); return uint32(n) }
	c, err := call(os.Getenv("REPLICAD_SOCKET"))
	if err != nil {
		return nil, err
	}
	h := wire.Hello{ABI: wire.RankABI, Rank: replica.Rank(number("REPLICAD_RANK")), World: max(1, number("REPLICAD_WORLD")), Nonce: mathrand.Uint64(), PID: uint64(os.Getpid()), Job: os.Getenv("REPLICAD_JOB"), Token: os.Getenv("REPLICAD_TOKEN")}
	if err := c.say(wire.MHello, h.Append(nil)); err != nil {
		return nil, err
	}
	regions := []replica.Region{{Name: "weights", DType: replica.F32, Kind: replica.Replicated, Class: replica.Window, Shape: []uint64{1 << 18}, Bytes: 1 << 20}}
	if err := c.say(wire.MRegions, wire.AppendRegions(nil, 0, regions)); err != nil {
		return nil, err
	}
	if err := c.say(wire.MAttach, wire.AppendAttach(nil, 1, 0)); err != nil {
		return nil, err
	}
	r := &ownRank{caller: c, out: out}
	for {
		h, b, f, err := c.hear(30 * time.Second)
		if err != nil {
			return nil, err
		}
		switch h.Type {
		case wire.MAttached:
			v, err := wire.ParseAttached(b)
			if err != nil {
				return nil, err
			}
			r.arena, r.bytes = f, v.ArenaBytes
			stopped := wire.AppendRank(nil, wire.RankHeader{Type: wire.MStopped, Incarnation: v.Incarnation}, wire.AppendStopped(nil, 0)) // it waits for an order
			if err := c.write(stopped); err != nil {
				return nil, err
			}
		case wire.MRefused:
			v, _ := wire.ParseRefused(b)
			return nil, errors.New(v.Text)
		case wire.MOrder:
			r.epoch = h.Epoch
			fmt.Fprintln(out, "attached")
			return r, nil
		}
	}
}

// scribble writes random words over the arena, in the control page above all, and says what is not so.
func scribble(r *ownRank, hold time.Duration) error {
	m, err := unix.Mmap(int(r.arena.Fd()), 0, int(r.bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	n := 0
	for end := time.Now().Add(hold); time.Now().Before(end); n++ {
		room := len(m)
		if n%4 > 0 {
			room = 4096
		}
		word := mathrand.Uint64()
		if n%3 == 0 {
			word &= 0xffff
		}
		binary.LittleEndian.PutUint64(m[mathrand.N(room/8)*8:], word)
		if n%100_000 == 0 {
			for i := range uint32(4) {
				_ = r.say(wire.MSealed, wire.Sealed{Kind: i % 3, Index: i, Word: replica.PackSlot(uint64(n), replica.SlotSealed), Generation: replica.Generation{Epoch: r.epoch, Step: replica.Step(n)}}.Append(nil))
			}
			_ = r.say(wire.MLoaded, wire.Loaded{Generation: replica.Generation{Epoch: r.epoch}}.Append(nil))
			_ = r.say(wire.MStopped, wire.AppendStopped(nil, replica.Word(mathrand.Uint64())))
		}
	}
	fmt.Fprintln(r.out, "scribbled", n)
	return nil
}

// rendezvous sets words until it has sent 64 MiB, or has been refused for 4 MiB more than the first time.
func rendezvous(r *ownRank, _ time.Duration) error {
	value := make([]byte, wire.MaxValueBytes)
	taken, refused := 0, 0
	for i := range 2048 {
		kv := wire.KV{Key: fmt.Sprintf("word-%d", i), Value: value, Once: uint32(i + 1)}
		if err := r.write(wire.AppendRank(nil, wire.RankHeader{Type: wire.MKVSet, Request: uint32(i + 1), Epoch: r.epoch}, kv.Append(nil))); err != nil {
			fmt.Fprintln(r.out, "hung up")
			break
		}
		h, b, _, err := r.hear(10 * time.Second)
		if err != nil {
			fmt.Fprintln(r.out, "hung up")
			break
		}
		code := int32(-1)
		if h.Type == wire.MKVOK {
			code, _ = wire.ParseKVOK(b)
		}
		if code == wire.CodeOK {
			taken++
		} else {
			refused++
		}
	}
	fmt.Fprintf(r.out, "taken %d refused %d%s", taken, refused, isOver)
	return nil
}

func (a *attack) file() string { return filepath.Join(a.Dir, a.Victim+".yaml") }

// unused is the name of a job that no earlier pattern had.
func unused(of string) string { return fmt.Sprintf("%s-%d", of, time.Now().UnixNano()%1e9) }

func rankScribble(ctx context.Context, a *attack) error {
	out, err := a.run(ctx, unused("scribble"), "scribble", 5*a.Hold)
	if err == nil && !strings.Contains(string(out), "attached") {
		err = fmt.Errorf("it never attached: %s", lastOf(out))
	}
	a.count("attached", strings.Count(string(out), "attached\n"))
	return err
}

func rankDies(ctx context.Context, a *attack) error {
	out, err := a.run(ctx, unused("dies"), "die", 5*a.Hold)
	a.count("deaths", strings.Count(string(out), "attached\n"))
	if err == nil && a.counted("deaths") == 0 {
		err = fmt.Errorf("it never attached: %s", lastOf(out))
	}
	return err
}

func rankRendezvous(ctx context.Context, a *attack) error {
	out, err := a.run(ctx, unused("rendezvous"), "rendezvous", 0)
	if err != nil {
		return err
	}
	var taken, refused int
	if i := strings.Index(string(out), "taken "); i >= 0 {
		_, _ = fmt.Sscanf(string(out[i:]), "taken %d refused %d", &taken, &refused)
	}
	a.count("taken", taken)
	a.count("refused", refused)
	if refused == 0 || taken > 256 {
		return fmt.Errorf("%d words of 32 KiB were taken, %d refused: %s", taken, refused, lastOf(out))
	}
	return nil
}

// rankArenas offers files that are no arena of a rank's.
func rankArenas(_ context.Context, a *attack) error {
	memory := func(seal bool, bytes int64, page []byte) func() (*os.File, error) {
		return func() (*os.File, error) {
			fd, err := unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
			if err != nil {
				return nil, err
			}
			f := os.NewFile(uintptr(fd), "hostile")
			err = errors.Join(f.Truncate(bytes))
			if len(page) > 0 {
				_, werr := f.WriteAt(page, 0)
				err = errors.Join(err, werr)
			}
			if seal {
				_, serr := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
				err = errors.Join(err, serr)
			}
			return f, err
		}
	}
	head := func(change func(b []byte)) []byte {
		b := make([]byte, 512)
		le := binary.LittleEndian
		le.PutUint64(b, 0x31414e4552415052)
		le.PutUint32(b[8:], 1)
		le.PutUint32(b[72:], 4<<20)
		le.PutUint32(b[76:], 2)
		le.PutUint32(b[80:], 3)
		le.PutUint64(b[248:], 4096)
		le.PutUint32(b[256:], 1)
		change(b)
		return b
	}
	put := func(at int, v uint32) []byte {
		return head(func(b []byte) { binary.LittleEndian.PutUint32(b[at:], v) })
	}
	open := func(path string, flags int) func() (*os.File, error) {
		return func() (*os.File, error) { return os.OpenFile(path, flags, 0) }
	}
	for name, file := range map[string]func() (*os.File, error){
		"a directory": open("/", os.O_RDONLY), "/dev/zero": open("/dev/zero", os.O_RDWR), "/dev/null": open("/dev/null", os.O_RDWR), "a pipe": func() (*os.File, error) { r, w, err := os.Pipe(); _ = w.Close(); return r, err },
		"no seals": memory(false, 1<<20, head(func([]byte) {})), "empty": memory(true, 0, nil), "one byte": memory(true, 1, nil), "zeros": memory(true, 1<<20, nil), "1 TiB of nothing": memory(true, 1<<40, nil),
		"2^32-1 slots": memory(true, 1<<20, put(76, 1<<32-1)), "a ring of 2^32-1": memory(true, 1<<20, put(80, 1<<32-1)), "2^32-1 regions": memory(true, 1<<20, put(256, 1<<32-1)), "65,536 regions": memory(true, 1<<30, put(256, 65536)),
		"no regions": memory(true, 1<<20, put(256, 0)), "chunks of no bytes": memory(true, 1<<20, put(72, 0)), "another version": memory(true, 1<<20, put(8, 9)), "random": memory(true, 1<<20, junk(8192)),
	} {
		f, err := file()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		err = a.refusedRank(name, false, func(c *caller) error { return c.say(wire.MReattach, a.rankHello(a.Job).Append(nil), f) })
		_ = f.Close()
		if err != nil {
			return err
		}
	}
	return a.refusedRank("no descriptor", false, func(c *caller) error { return c.say(wire.MReattach, a.rankHello(a.Job).Append(nil)) })
}
