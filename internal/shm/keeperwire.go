package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/replica"
)

// The keeper's messages: datagrams of one size, with at most one descriptor.
const (
	keeperMagic   = 0x314b5052 // "RPK1"
	keeperVersion = 1
	keeperBytes   = 256
	keyBytes      = 128
	textBytes     = 96

	// MaxKept is how many descriptors a keeper holds.
	MaxKept = 4096
	// MaxKey is the longest key in bytes.
	MaxKey = keyBytes - 1
)

const (
	keepStart uint16 = 1  // daemon start; reply keepDone with incarnation and session
	keepPut   uint16 = 2  // key + descriptor; reply keepDone
	keepDrop  uint16 = 3  // key; reply keepDone
	keepAll   uint16 = 4  // replies: a keepItem + descriptor each, then keepDone
	keepItem  uint16 = 64 // key + descriptor
	keepDone  uint16 = 65 // text: empty, or why not
)

type keeperMessage struct {
	typ         uint16
	incarnation replica.NodeIncarnation
	session     replica.Session
	key         string
	text        string
}

func (m keeperMessage) marshal() []byte {
	le := binary.LittleEndian
	b := make([]byte, keeperBytes)
	le.PutUint32(b, keeperMagic)
	le.PutUint16(b[4:], keeperVersion)
	le.PutUint16(b[6:], m.typ)
	le.PutUint64(b[16:], uint64(m.incarnation))
	le.PutUint64(b[24:], uint64(m.session))
	copy(b[32:32+keyBytes-1], m.key)
	copy(b[32+keyBytes:keeperBytes-1], m.text)
	return b
}

func parseKeeperMessage(b []byte) (m keeperMessage, err error) {
	le := binary.LittleEndian
	switch {
	case len(b) != keeperBytes:
		return m, fmt.Errorf("keeper message of %d bytes, want %d", len(b), keeperBytes)
	case le.Uint32(b) != keeperMagic:
		return m, fmt.Errorf("keeper message: magic %#x, want %#x", le.Uint32(b), uint32(keeperMagic))
	case le.Uint16(b[4:]) != keeperVersion:
		return m, fmt.Errorf("keeper message: version %d, want %d: stop the old keeper once its jobs have ended", le.Uint16(b[4:]), keeperVersion)
	case le.Uint64(b[8:]) != 0:
		return m, errors.New("keeper message: reserved field is set")
	}
	m = keeperMessage{typ: le.Uint16(b[6:]), incarnation: replica.NodeIncarnation(le.Uint64(b[16:])), session: replica.Session(le.Uint64(b[24:]))}
	if m.key, err = paddedText(b[32 : 32+keyBytes]); err != nil {
		return keeperMessage{}, err
	}
	m.text, err = paddedText(b[32+keyBytes:])
	return m, err
}

func paddedText(b []byte) (string, error) {
	s := strings.TrimRight(string(b), "\x00")
	if len(s) == len(b) || strings.ContainsRune(s, 0) {
		return "", errors.New("keeper message: a text is not terminated, or goes on after its end")
	}
	return s, nil
}

// sendKeeper sends one message, with a descriptor unless f is nil.
func sendKeeper(c *net.UnixConn, m keeperMessage, f *os.File) error {
	if f == nil {
		_, err := c.Write(m.marshal())
		return err
	}
	return control(f, func(fd int) error {
		_, _, err := c.WriteMsgUnix(m.marshal(), unix.UnixRights(fd), nil)
		return err
	})
}

// receiveKeeper reads one message. More descriptors than one are closed and refused, and so is a message that was cut.
func receiveKeeper(c *net.UnixConn) (keeperMessage, *os.File, error) {
	b := make([]byte, keeperBytes+1)
	oob := make([]byte, unix.CmsgSpace(4*4))
	n, oobn, flags, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return keeperMessage{}, nil, err
	}
	fds := rights(oob[:oobn])
	m, err := parseKeeperMessage(b[:n])
	if err == nil && (flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(fds) > 1) {
		err = fmt.Errorf("keeper message cut, or with %d descriptors", len(fds))
	}
	if err != nil {
		for _, f := range fds {
			_ = f.Close()
		}
		return keeperMessage{}, nil, err
	}
	if len(fds) == 0 {
		return m, nil, nil
	}
	return m, fds[0], nil
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
			files = append(files, os.NewFile(uintptr(fd), "arena"))
		}
	}
	return files
}

// peerUID is the user at the other end.
func peerUID(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var inner error
	if err := raw.Control(func(fd uintptr) { cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if inner != nil {
		return 0, inner
	}
	return int(cred.Uid), nil
}
