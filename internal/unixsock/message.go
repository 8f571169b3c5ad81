package unixsock

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxRights bounds the descriptors taken in with a message; the kernel drops what has no room.
const maxRights = 4

// Send writes one message, with a descriptor unless f is nil, which stays the caller's.
func Send(c *net.UnixConn, b []byte, f *os.File) error {
	if f == nil {
		_, err := c.Write(b)
		return err
	}
	return Control(f, func(fd int) error {
		_, _, err := c.WriteMsgUnix(b, unix.UnixRights(fd), nil)
		return err
	})
}

// Await waits until Receive would not wait: the caller's buffer need not be there while nothing is. Deadlines of c hold.
func Await(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}

// Receive reads one message into buf, with the descriptors that came along, which are the caller's even beside an error. What had no
// room is lost: cut tells of bytes, lost of descriptors.
func Receive(c *net.UnixConn, buf []byte) (b []byte, files []*os.File, cut, lost bool, err error) {
	oob := make([]byte, unix.CmsgSpace(4*maxRights))
	n, oobn, flags, _, err := c.ReadMsgUnix(buf, oob)
	return buf[:max(n, 0)], rights(oob[:max(oobn, 0)]), flags&unix.MSG_TRUNC != 0, flags&unix.MSG_CTRUNC != 0, err
}

// rights takes every descriptor out of control data.
func rights(oob []byte) (files []*os.File) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files
}

// CloseAll closes what was received and is not wanted.
func CloseAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// Peer is the process and user at the other end, as of when it connected.
func Peer(c *net.UnixConn) (cred *unix.Ucred, err error) {
	err = Control(c, func(fd int) (err error) {
		cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	return cred, err
}

// PeerEnded tells whether the process that connected has ended, so that its number may be another's by now. Kernels before 6.5 can't tell: they
// say no.
func PeerEnded(c *net.UnixConn) (ended bool, err error) {
	err = Control(c, func(fd int) error {
		pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		switch {
		case errors.Is(err, unix.ENOPROTOOPT):
			return nil
		case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL): // it ended, and its parent has been told
			ended = true
			return nil
		case err != nil:
			return fmt.Errorf("pidfd of the peer: %w", err)
		}
		defer unix.Close(pidfd)
		poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 0)
		ended = n > 0
		return err
	})
	return ended, err
}

// Duplicate is a further descriptor of the same open file.
func Duplicate(f *os.File) (*os.File, error) {
	var d int
	err := Control(f, func(fd int) (err error) {
		d, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(d), f.Name()), nil
}

// Control runs fn on a descriptor, which can't be closed meanwhile.
func Control(c syscall.Conn, fn func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = fn(int(fd)) }); err != nil {
		return err
	}
	return inner
}
