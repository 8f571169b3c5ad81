// Package want tells a want from a failure. A node that is short of descriptors, memory, processes or disk has them again some time: what met the
// want is tried again, elsewhere or later, and nobody is to blame. Any other error is a failure of what was tried.
//
// It is pure: an error in, a kind out. It imports nothing of replicad's.
package want

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Kind is what a node is short of.
type Kind uint8

// The kinds. A launcher tells them by number, so a number keeps its meaning.
const (
	Nothing     Kind = 0 // no want: the error is a failure
	Descriptors Kind = 1
	Memory      Kind = 2
	Processes   Kind = 3
	Disk        Kind = 4
	Something   Kind = 5 // a program says so and not what
)

var texts = [...]struct{ name, remedy string }{
	Descriptors: {"descriptors", "let it have more (LimitNOFILE, ulimit -n), or run fewer ranks on this node"},
	Memory:      {"memory", "run fewer ranks or slots on this node, or raise the limit of its cgroup"},
	Processes:   {"processes", "let it have more (TasksMax, pids.max, ulimit -u)"},
	Disk:        {"disk", "free some, or raise the quota"},
	Something:   {"something", "its own output says of what"},
}

func (k Kind) known() bool { return k > Nothing && int(k) < len(texts) }

func (k Kind) String() string {
	if k.known() {
		return texts[k].name
	}
	return "nothing"
}

// Remedy is what an operator can do about it.
func (k Kind) Remedy() string {
	if k.known() {
		return texts[k].remedy
	}
	return "none is needed"
}

// Of is what an error says is short. Nothing: it is a failure.
func Of(err error) Kind {
	if is, ok := errors.AsType[interface {
		error
		Want() Kind
	}](err); ok {
		return is.Want()
	}
	for _, e := range []struct {
		errno error
		kind  Kind
	}{
		{unix.EMFILE, Descriptors}, {unix.ENFILE, Descriptors},
		{unix.ENOMEM, Memory}, {unix.ENOBUFS, Memory},
		{unix.ENOSPC, Disk}, {unix.EDQUOT, Disk},
	} {
		if errors.Is(err, e.errno) {
			return e.kind
		}
	}
	return Nothing
}

// OfStart is what the error of a start of a process says is short: EAGAIN, which means many things elsewhere, is a want of processes there.
func OfStart(err error) Kind {
	if errors.Is(err, unix.EAGAIN) {
		return Processes
	}
	return Of(err)
}

// Descriptor tells whether this process could open n more descriptors now.
func Descriptor(n int) error {
	var fds []int
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	for range n {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		fds = append(fds, fd)
	}
	return nil
}
