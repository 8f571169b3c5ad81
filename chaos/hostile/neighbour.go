package hostile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Users of the host that a run of root's knows: the one whom rank_users names, the group of the socket, and one whom nobody named.
const (
	named      = 61001
	namedGroup = 61000
	neighbour  = 61009
)

// doors opens the cluster's sockets to other users, as a node has them whose daemon has users of ranks: in a folder of their own, which all can pass.
func (r *runner) doors() (string, error) {
	if os.Geteuid() != 0 {
		return "", nil // nobody else can be played
	}
	dir, err := os.MkdirTemp("", "replicad-doors-")
	if err == nil {
		err = os.Chmod(dir, 0o755) //nolint:gosec // that is what it is for
	}
	return dir, err
}

// asUser runs fn as a user of its own, without any group: credentials are a thread's, as far as the kernel goes, and this one ends with fn.
func (a *attack) asUser(uid int, fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		done <- func() error {
			if _, _, e := syscall.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
				return fmt.Errorf("no groups: %w", e)
			}
			if _, _, e := syscall.RawSyscall(unix.SYS_SETRESGID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
				return fmt.Errorf("group %d: %w", uid, e)
			}
			if _, _, e := syscall.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
				return fmt.Errorf("user %d: %w", uid, e)
			}
			return fn()
		}()
	}()
	return <-done
}

// neighbourSocket connects and hangs up as fast as it can, and looks how many times the kernel let it.
func neighbourSocket(ctx context.Context, a *attack) error {
	if os.Geteuid() != 0 {
		a.count("not tried: not root", 1)
		return nil
	}
	err := each(ctx, 4, 4, func(int) error {
		return a.asUser(neighbour, func() error {
			return a.until(ctx, func(int) error {
				c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: a.victim.Socket, Net: "unixpacket"})
				switch {
				case err == nil:
					a.count("taken", 1)
					return c.Close()
				case errors.Is(err, unix.EACCES):
					a.count("kept out", 1)
				default:
					a.count("refused otherwise", 1)
				}
				return nil
			})
		})
	})
	if err == nil && (a.counted("taken") > 0 || a.counted("kept out") == 0) {
		err = fmt.Errorf("a user whom nobody named was let in %d times, and kept out %d times", a.counted("taken"), a.counted("kept out"))
	}
	return err
}

// plant makes a folder that everybody may write, as /tmp is, with a file and a folder beside it that are root's alone.
func (a *attack) plant() (shared, file, folder string, err error) {
	dir, err := os.MkdirTemp("", "replicad-planted-")
	if err != nil {
		return "", "", "", err
	}
	a.later(func() { _ = os.RemoveAll(dir) })
	shared, file, folder = filepath.Join(dir, "shared"), filepath.Join(dir, "precious"), filepath.Join(dir, "private")
	return shared, file, folder, errors.Join(os.Chmod(dir, 0o755), os.Mkdir(shared, 0o700), os.Chmod(shared, fs.ModeSticky|0o777), os.WriteFile(file, []byte("precious"), 0o600), os.Mkdir(folder, 0o700)) //nolint:gosec // so are such folders
}

// devVerbs are commands that --dev has look for a folder.
var devVerbs = [][]string{{"status", "--dev"}, {"daemon", "--dev"}, {"run", "--dev", "--job", "j", "--world", "1", "--", "true"}}

// neighbourFolder plants a .replicad-dev with links to what is root's, and has root use --dev beside it; then it swaps root's own for a planted one, again
// and again, where the folder is not sticky.
func neighbourFolder(ctx context.Context, a *attack) error {
	if os.Geteuid() != 0 {
		a.count("not tried: not root", 1)
		return nil
	}
	shared, file, folder, err := a.plant()
	if err != nil {
		return err
	}
	dev := filepath.Join(shared, ".replicad-dev")
	for what, links := range map[string]map[string]string{
		"a file":   {"address.new": file},
		"a folder": {"pki": folder},
		"itself":   nil,
	} {
		if err := a.asUser(neighbour, func() error {
			err := os.Mkdir(dev, 0o700)
			for name, to := range links {
				err = errors.Join(err, os.Symlink(to, filepath.Join(dev, name)))
			}
			return errors.Join(err, os.Chmod(dev, 0o755)) //nolint:gosec // for root to pass, as a planter would
		}); err != nil {
			return err
		}
		for _, args := range devVerbs {
			ran := a.program(ctx, shared, nil, args...)
			if ran.code == 0 || ran.code < 0 || !strings.Contains(ran.said, fmt.Sprint("user ", neighbour)) {
				return fmt.Errorf("%s planted: replicad %s: code %d, and does not name the planter: %s", what, strings.Join(args, " "), ran.code, ran.said)
			}
			a.count("refused", 1)
		}
		b, err := os.ReadFile(file)
		list, unread := os.ReadDir(folder)
		if err := errors.Join(err, unread, os.RemoveAll(dev)); err != nil {
			return err
		}
		if string(b) != "precious" || len(list) > 0 {
			return fmt.Errorf("%s planted: root's file has %q, its folder %v", what, b, list)
		}
	}
	return errors.Join(os.Chmod(shared, 0o777), neighbourSwaps(ctx, a, shared, folder)) //nolint:gosec // without the sticky bit
}

// neighbourSwaps exchanges root's .replicad-dev, which is there, for one whose pki is a link to a folder of root's, while root uses --dev.
func neighbourSwaps(ctx context.Context, a *attack, shared, folder string) error {
	dev, evil := filepath.Join(shared, ".replicad-dev"), filepath.Join(shared, "evil")
	if err := os.Mkdir(dev, 0o700); err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	swapped := make(chan error, 1)
	go func() {
		swapped <- a.asUser(neighbour, func() error {
			if err := errors.Join(os.Mkdir(evil, 0o700), os.Chmod(evil, 0o777), os.Symlink(folder, filepath.Join(evil, "pki"))); err != nil { //nolint:gosec // for root to pass, as a planter would
				return err
			}
			n := 0
			for ; running.Err() == nil; n++ {
				if err := unix.Renameat2(unix.AT_FDCWD, dev, unix.AT_FDCWD, evil, unix.RENAME_EXCHANGE); err != nil {
					return err
				}
			}
			a.count("swaps", n)
			return nil
		})
	}()
	err := func() error {
		for range 3 {
			for _, args := range devVerbs {
				ran := a.program(ctx, shared, nil, args...)
				if ran.code <= 0 || !strings.Contains(ran.said, shared+" can be written by everybody") {
					return fmt.Errorf("a folder that a neighbour swaps: replicad %s: code %d, and does not name %s: %s", strings.Join(args, " "), ran.code, shared, ran.said)
				}
				a.count("refused", 1)
			}
		}
		return nil
	}()
	stop()
	err = errors.Join(err, <-swapped)
	list, unread := os.ReadDir(folder)
	if len(list) > 0 {
		err = errors.Join(err, fmt.Errorf("a folder that a neighbour swaps: root's folder has %v", list))
	}
	return errors.Join(err, unread)
}

// neighbourDaemon listens where a daemon should, and has root's launcher, rank and command come by.
func neighbourDaemon(ctx context.Context, a *attack) error {
	if os.Geteuid() != 0 {
		a.count("not tried: not root", 1)
		return nil
	}
	shared, _, _, err := a.plant()
	if err != nil {
		return err
	}
	for network, args := range map[string][]string{
		"unixpacket": {"run", "--job", "j", "--world", "1", "--socket"},
		"unix":       {"status", "--socket"},
	} {
		path := filepath.Join(shared, network)
		var l *net.UnixListener
		if err := a.asUser(neighbour, func() (err error) {
			l, err = net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
			return err
		}); err != nil {
			return err
		}
		heard := make(chan int, 1)
		go func() {
			n := 0
			for {
				c, err := l.Accept()
				if err != nil {
					heard <- n
					return
				}
				b := make([]byte, 1<<16)
				_ = c.SetReadDeadline(time.Now().Add(5 * time.Second)) // whoever believes this one speaks first
				m, _ := c.Read(b)
				n += m
				_ = c.Close()
			}
		}()
		args = append(args, path)
		if network == "unixpacket" {
			args = append(args, "--", "true")
		}
		ran := a.program(ctx, shared, nil, args...)
		_ = l.Close()
		if n := <-heard; n > 0 || ran.code <= 0 || !strings.Contains(ran.said, fmt.Sprint("user ", neighbour)) {
			return fmt.Errorf("replicad %s: code %d, told a stranger %d bytes: %s", args[0], ran.code, n, ran.said)
		}
		a.count("refused", 1)
	}
	return nil
}
