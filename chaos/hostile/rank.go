package hostile

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// caller is a connection to the ranks' socket.
type caller struct {
	*net.UnixConn
	buf []byte
}

func call(socket string) (*caller, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	return &caller{c, make([]byte, wire.MaxRankMessage+1)}, nil
}

// hello is a good one, of rank 0 of a job.
func (a *attack) rankHello(job string) wire.Hello {
	return wire.Hello{ABI: wire.RankABI, World: 1, Group: 0, Nonce: mathrand.Uint64(), PID: uint64(os.Getpid()), Job: job, Token: a.victim.JobToken(job)}
}

// launcher is a good one of a world of one.
func (a *attack) launcher(job string) wire.RunHello {
	return wire.RunHello{ABI: wire.RankABI, World: 1, Capacity: 1, Job: job, Token: a.victim.JobToken(job)}
}

func (c *caller) say(kind uint16, body []byte, files ...*os.File) error {
	return c.write(wire.AppendRank(nil, wire.RankHeader{Type: kind, Request: 1}, body), files...)
}

func (c *caller) write(b []byte, files ...*os.File) error {
	_ = c.SetWriteDeadline(time.Now().Add(5 * time.Second))
	var oob []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		oob = unix.UnixRights(fds...)
	}
	_, _, err := c.WriteMsgUnix(b, oob, nil)
	return err
}

// hear reads one message, with the descriptor that came along.
func (c *caller) hear(within time.Duration) (wire.RankHeader, []byte, *os.File, error) {
	_ = c.SetReadDeadline(time.Now().Add(within))
	b, files, _, _, err := unixsock.Receive(c.UnixConn, c.buf)
	if errors.Is(err, unix.ECONNRESET) { // it says so once; what the daemon said before comes after that
		b, files, _, _, err = unixsock.Receive(c.UnixConn, c.buf)
	}
	if err != nil || len(b) == 0 {
		unixsock.CloseAll(files)
		return wire.RankHeader{}, nil, nil, errors.Join(err, errors.New("hung up"))
	}
	h, body, err := wire.ParseRank(b)
	if len(files) == 0 {
		return h, body, nil, err
	}
	return h, body, files[0], err
}

// refused waits for a refusal with words, whatever comes before it.
func (c *caller) refused() (string, error) {
	for {
		h, b, f, err := c.hear(10 * time.Second)
		if f != nil {
			_ = f.Close()
		}
		if err != nil {
			return "", fmt.Errorf("no refusal: %w", err)
		}
		if h.Type == wire.MRefused || h.Type == wire.MRunDone {
			r, err := wire.ParseRefused(b)
			if err == nil && strings.TrimSpace(r.Text) == "" {
				err = errors.New("refused without a word")
			}
			return r.Text, err
		}
		if h.Type == wire.MAttached || h.Type == wire.MRunStart {
			return "", fmt.Errorf("message %d instead of a refusal: it was taken", h.Type)
		}
	}
}

// gone waits until the daemon hangs up.
func (c *caller) gone(within time.Duration) error {
	for end := time.Now().Add(within); time.Now().Before(end); {
		_, _, f, err := c.hear(time.Until(end))
		if f != nil {
			_ = f.Close()
		}
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			break
		}
		if err != nil {
			return nil
		}
	}
	return fmt.Errorf("still connected after %v", within)
}

// refusedRank sends something on a connection of its own, and wants it refused with words. With a hello, a good one goes before it.
func (a *attack) refusedRank(name string, hello bool, send func(*caller) error) error {
	c, err := call(a.victim.Socket)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer c.Close()
	if hello {
		if err := c.say(wire.MHello, a.rankHello("nobody-runs-this").Append(nil)); err != nil {
			return fmt.Errorf("%s: hello: %w", name, err)
		}
	}
	if err := send(c); err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		return fmt.Errorf("%s: %w", name, err)
	}
	if _, err := c.refused(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	a.count("refused with the reason", 1)
	return nil
}

func rankSilent(ctx context.Context, a *attack) error {
	list := make([]*caller, 1000)
	for i := range list {
		c, err := call(a.victim.Socket)
		if err != nil {
			return err
		}
		defer c.Close()
		list[i] = c
	}
	a.count("connections", len(list))
	// A rank that says who it is gets an answer meanwhile.
	if err := a.refusedRank("a rank beside them", false, func(c *caller) error {
		return c.say(wire.MHello, a.rankHello("nobody-runs-this").Append(nil))
	}); err != nil {
		return err
	}
	return each(ctx, len(list), len(list), func(i int) error {
		if err := list[i].gone(20 * time.Second); err != nil {
			return fmt.Errorf("a silent connection: %w", err)
		}
		a.count("hung up", 1)
		return nil
	})
}

func rankMessages(_ context.Context, a *attack) error {
	good := wire.AppendRank(nil, wire.RankHeader{Type: wire.MHello, Request: 1}, a.rankHello("nobody-runs-this").Append(nil))
	change := func(at int, to byte) []byte { b := append([]byte(nil), good...); b[at] = to; return b }
	bad := map[string][]byte{
		"magic": change(0, 'X'), "version": change(4, 9), "length": change(8, 1), "epoch": change(23, 0xff), "short": good[:31], "one byte": {0}, "64 KiB of zeros": make([]byte, 65536), "100 KiB": make([]byte, 100<<10),
		"another ABI": change(32, 9), "rank beyond the world": change(36, 9), "no world": change(40, 0), "group beyond the world": change(44, 9), "job that is not terminated": append(append([]byte(nil), good[:64]...), append([]byte(strings.Repeat("j", 64)), good[128:]...)...),
	}
	for name, b := range bad {
		if err := a.refusedRank(name, false, func(c *caller) error { return c.write(b) }); err != nil {
			return err
		}
	}
	for kind := range uint16(100) {
		if kind == wire.MHello || kind == wire.MReattach || kind == wire.MRunHello {
			continue
		}
		if err := a.refusedRank(fmt.Sprintf("message %d before a hello", kind), false, func(c *caller) error { return c.say(kind, nil) }); err != nil {
			return err
		}
	}
	for name, body := range map[string][]byte{"none": nil, "short": {1, 2, 3}, "random": junk(200), "large": junk(60 << 10)} {
		for _, kind := range []uint16{wire.MHello, wire.MRegions, wire.MAttach, wire.MSealed, wire.MStopped, wire.MLoaded, wire.MPause, wire.MKVSet, wire.MBarrier, wire.MKVAdd, wire.MKVCompareSet, wire.MRunExited, 64, 99, 65535} {
			if err := a.refusedRank(fmt.Sprintf("%s body of message %d", name, kind), true, func(c *caller) error { return c.say(kind, body) }); err != nil {
				return err
			}
		}
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		return err
	}
	defer null.Close()
	many := make([]*os.File, 250)
	for i := range many {
		many[i] = null
	}
	return a.refusedRank("250 descriptors", false, func(c *caller) error {
		return errors.Join(c.say(wire.MHello, a.rankHello("nobody-runs-this").Append(nil), many...), c.say(wire.MAttach, nil, many...))
	})
}

func junk(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

func rankToken(_ context.Context, a *attack) error {
	for name, token := range map[string]string{"none": "", "another job's": a.victim.JobToken("other"), "the secret": a.victim.JobSecret, "one byte off": a.victim.JobToken(a.Job)[1:] + "0", "long": strings.Repeat("x", 63)} {
		h := a.rankHello(a.Job)
		h.World, h.Token = 4, token
		l := a.launcher(a.Job)
		l.World, l.Token = 4, token
		for what, send := range map[string]func(*caller) error{
			"rank":     func(c *caller) error { return c.say(wire.MHello, h.Append(nil)) },
			"launcher": func(c *caller) error { return c.say(wire.MRunHello, l.Append(nil)) },
		} {
			if err := a.refusedRank(name+" token of a "+what, false, send); err != nil {
				return err
			}
		}
	}
	return nil
}

func rankRegions(ctx context.Context, a *attack) error {
	region := func(i int) replica.Region {
		return replica.Region{Name: fmt.Sprintf("region-%d", i), DType: replica.F32, Kind: replica.Replicated, Class: replica.Window, Shape: []uint64{1}, Bytes: 4}
	}
	send := func(regions []replica.Region) func(*caller) error {
		return func(c *caller) error {
			return errors.Join(c.say(wire.MRegions, wire.AppendRegions(nil, 0, regions)), c.say(wire.MAttach, wire.AppendAttach(nil, uint32(len(regions)), 0)))
		}
	}
	for name, change := range map[string]func(*replica.Region){
		"2^63 bytes":       func(r *replica.Region) { r.Bytes, r.Shape = 1<<63, []uint64{1 << 61} },
		"a shape of zeros": func(r *replica.Region) { r.Shape = []uint64{0, 0} },
		"another size":     func(r *replica.Region) { r.Bytes = 5 },
		"no UTF-8":         func(r *replica.Region) { r.Name = "\xff\xfe" },
		"__metadata__":     func(r *replica.Region) { r.Name = "__metadata__" },
		"no name":          func(r *replica.Region) { r.Name = "" },
		"no type":          func(r *replica.Region) { r.DType = 200 },
	} {
		r := region(0)
		change(&r)
		if err := a.refusedRank(name, true, send([]replica.Region{r})); err != nil {
			return err
		}
	}
	// Many geometries that are begun and never ended: 16 MiB of records each.
	return each(ctx, 40, 8, func(int) error {
		c, err := call(a.victim.Socket)
		if err != nil {
			return err
		}
		a.mu.Lock()
		a.later(func() { _ = c.Close() })
		a.mu.Unlock()
		if err := c.say(wire.MHello, a.rankHello("nobody-runs-this").Append(nil)); err != nil {
			return err
		}
		for first := 0; first < replica.MaxRegions; {
			var list []replica.Region
			for len(list) < wire.MaxRegionsPerMessage && first+len(list) < replica.MaxRegions {
				list = append(list, region(first+len(list)))
			}
			if c.say(wire.MRegions, wire.AppendRegions(nil, uint32(first), list)) != nil {
				a.count("cut off", 1)
				return nil
			}
			first += len(list)
			a.count("regions", len(list))
		}
		return nil
	})
}

func rankLaunchers(_ context.Context, a *attack) error {
	for name, change := range map[string]func(*wire.RunHello){
		"capacity beyond the world": func(r *wire.RunHello) { r.Capacity = 2 },
		"2^32-1 copies":             func(r *wire.RunHello) { r.MinCopies = 1<<32 - 1 },
		"2^32-1 slots":              func(r *wire.RunHello) { r.Slots = 1<<32 - 1 },
		"chunks of 4 GiB":           func(r *wire.RunHello) { r.ChunkBytes = 1<<32 - 1 },
		"2^32-1 MiB of private":     func(r *wire.RunHello) { r.PrivateCapMB = 1<<32 - 1 },
		"a cadence of 2^32-1":       func(r *wire.RunHello) { r.Cadence = 1<<32 - 1 },
		"no world":                  func(r *wire.RunHello) { r.World = 0 },
		"a world of 2^32-1":         func(r *wire.RunHello) { r.World = 1<<32 - 1 },
		"a rank beyond the world":   func(r *wire.RunHello) { r.Ranks = []replica.Rank{1} },
		"a group beyond the world":  func(r *wire.RunHello) { r.Groups = []replica.GroupID{7} },
		"a path for a name":         func(r *wire.RunHello) { r.Job, r.Token = "../../x", a.victim.JobToken("../../x") },
		"no name":                   func(r *wire.RunHello) { r.Job, r.Token = "", a.victim.JobToken("") },
		"escapes for a name":        func(r *wire.RunHello) { r.Job, r.Token = "\x1b[2J", a.victim.JobToken("\x1b[2J") },
	} {
		l := a.launcher("absurd")
		change(&l)
		if err := a.refusedRank(name, false, func(c *caller) error { return c.say(wire.MRunHello, l.Append(nil)) }); err != nil {
			return err
		}
	}
	return nil
}

func rankUnread(ctx context.Context, a *attack) error {
	return a.until(ctx, func(int) error {
		c, err := call(a.victim.Socket)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.say(wire.MHello, a.rankHello("nobody-runs-this").Append(nil)); err != nil {
			return err
		}
		for range 5000 {
			if c.say(wire.MScope, nil) != nil {
				a.count("hung up", 1)
				return nil
			}
			a.count("questions", 1)
		}
		return nil
	})
}

// words are what a launcher and its ranks print, until one of them says that it is over, or some time after the first has attached.
type words struct {
	buf   bytes.Buffer // not embedded: it would read for itself, past Write
	over  func()
	lasts time.Duration // 0: until one says it
	end   *time.Timer   // nil: none has attached
}

// isOver ends a rank's last line. Its launcher would have the process started again, to say the same.
const isOver = "; over\n"

func (w *words) Write(b []byte) (int, error) {
	n, err := w.buf.Write(b)
	if bytes.Contains(w.buf.Bytes(), []byte(isOver)) {
		w.over()
	}
	if w.lasts > 0 && w.end == nil && bytes.Contains(w.buf.Bytes(), []byte("attached\n")) {
		w.end = time.AfterFunc(w.lasts, w.over)
	}
	return n, err
}

// run has a launcher start a rank of a job of its own that misbehaves, again and again for some time after the first has attached (0: until one says that it
// is over). A busy machine takes long to start one: no time before that counts, except the pattern's whole.
func (a *attack) run(ctx context.Context, job, as string, lasts time.Duration, flags ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*a.Hold+40*time.Second) // less than the pattern has: what was said is told
	defer cancel()
	args := append([]string{"run", "--config", a.file(), "--job", job, "--world", "1", "--ranks", "0", "--durable-every", "0"}, flags...)
	args = append(args, "--", a.Program, "chaos", "misbehave", "--rank", as, "--hold", a.Hold.String())
	cmd := exec.CommandContext(ctx, a.Program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 15 * time.Second
	out := &words{over: cancel, lasts: lasts}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	if out.end != nil {
		out.end.Stop()
	}
	if ee := (*exec.ExitError)(nil); errors.As(err, &ee) || errors.Is(err, context.Canceled) {
		err = nil // how it ends is judged by what it said
	}
	return out.buf.Bytes(), err
}

// lastOf is the end of what a program said.
func lastOf(b []byte) string {
	s := strings.TrimSpace(string(b))
	return s[max(0, len(s)-600):]
}
