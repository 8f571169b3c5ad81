package membership

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/hashicorp/memberlist"
)

// What memberlist writes on a stream: the label's header, which only the side that connects writes, then one encrypted message.
const (
	markLabel     = 244 // then a byte with the label's length, and the label
	markEncrypted = 10  // then four with the length of what follows: version, nonce, sealed message
	headBytes     = 5
	sealedVersion = 1
	nonceBytes    = 12
	leastSealed   = 1 + nonceBytes + 16
)

// First bytes of the messages that a stream may begin with.
const (
	msgPing  = 0
	msgAck   = 2
	msgState = 6
	msgError = 13
)

var (
	errSilent  = errors.New("it closed before it said anything")
	errForeign = errors.New("it does not speak as a daemon does")
	errTooLong = fmt.Errorf("it answers with more than %d bytes", memberMost)
)

// head is what stands in front of an encrypted message.
type head [headBytes]byte

func (h head) bytes() int { return int(binary.BigEndian.Uint32(h[1:])) }

// readLabel reads the label's header. What was read comes back too, since memberlist reads it again.
func readLabel(r io.Reader, label string) ([]byte, error) {
	var mark [2]byte
	if n, err := io.ReadFull(r, mark[:]); err != nil {
		if n == 0 && errors.Is(err, io.EOF) {
			return nil, errSilent
		}
		return nil, err
	}
	if mark[0] != markLabel {
		return nil, errForeign
	}
	said := make([]byte, mark[1])
	if _, err := io.ReadFull(r, said); err != nil {
		return nil, err
	}
	if string(said) != label {
		return nil, fmt.Errorf("unacceptable label %q", said)
	}
	return append(mark[:], said...), nil
}

// readHead reads what announces an encrypted message.
func readHead(r io.Reader) (h head, err error) {
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return h, err
	}
	if h[0] != markEncrypted {
		return h, errForeign
	}
	if h.bytes() < leastSealed {
		return h, errForeign
	}
	return h, nil
}

// readBody reads what was announced, and has no more room than what came and as much again.
func readBody(r io.Reader, bytes int) ([]byte, error) {
	const first = 4 << 10
	b := make([]byte, 0, min(bytes, first))
	for len(b) < bytes {
		if len(b) == cap(b) {
			b = append(make([]byte, 0, min(bytes, 4*cap(b))), b...)
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err != nil && len(b) < bytes {
			return nil, err
		}
	}
	return b, nil
}

// opener decrypts first messages, one at a time: strangers get no more than one core's time for it.
type opener struct {
	label string
	ring  *memberlist.Keyring

	mu    sync.Mutex // guards plain
	plain []byte
}

// shows reports why a message does not show the cluster's key, or is none that a stream may begin with.
func (o *opener) shows(h head, body []byte, kinds ...byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if body[0] != sealedVersion {
		return fmt.Errorf("an encrypted message of version %d, want %d", body[0], sealedVersion)
	}
	data := append(h[:], o.label...)
	for _, key := range o.ring.GetKeys() {
		block, err := aes.NewCipher(key)
		if err != nil {
			return err
		}
		gcm, err := cipher.NewGCM(block)
		if err != nil {
			return err
		}
		plain, err := gcm.Open(o.plain[:0], body[1:1+nonceBytes], body[1+nonceBytes:], data)
		if err != nil {
			continue
		}
		if cap(plain) <= freeBytes { // an honest state of many nodes leaves no room behind
			o.plain = plain
		}
		if len(plain) == 0 || !slices.Contains(kinds, plain[0]) {
			return fmt.Errorf("it begins with a message of kind %v", plain[:min(len(plain), 1)])
		}
		return nil
	}
	return errors.New("no installed keys could decrypt it")
}
