package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/replicad/replicad/internal/unixsock"
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
	keepBack  uint16 = 5  // a running daemon comes, with its incarnation and session; reply keepDone
	keepLife  uint16 = 6  // the same once it has brought its descriptors: from now on the keeper's own; reply keepDone
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
	return unixsock.Send(c, m.marshal(), f)
}

// receiveKeeper reads one message. More descriptors than one are closed and refused, and so is a message that was cut.
func receiveKeeper(c *net.UnixConn) (keeperMessage, *os.File, error) {
	b, files, cut, lost, err := unixsock.Receive(c, make([]byte, keeperBytes+1))
	var m keeperMessage
	if err == nil {
		m, err = parseKeeperMessage(b)
	}
	if err == nil && (cut || lost || len(files) > 1) {
		err = fmt.Errorf("keeper message cut, or with %d descriptors", len(files))
	}
	if err != nil {
		unixsock.CloseAll(files)
		return keeperMessage{}, nil, err
	}
	if len(files) == 0 {
		return m, nil, nil
	}
	return m, files[0], nil
}
