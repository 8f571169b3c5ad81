package kept

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// seals make the content of a memfd a fact: no process can change it any more, whatever it holds open.
const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// Seal puts a tar into sealed memory. The file is the caller's.
func Seal(b []byte) (f *os.File, err error) {
	const name, flags = "replicad-kept", unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // a kernel that cannot say so
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f = os.NewFile(uintptr(fd), name)
	if _, err = f.Write(b); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("files to be kept, %d bytes: %w", len(b), err), f.Close())
	}
	return f, nil
}

// Tar is a tar in sealed memory, which was read whole. It holds a descriptor, and none of its bytes.
type Tar struct {
	SHA256 string
	Bytes  int64
	f      *os.File
}

// Open takes a tar from somebody else: only sealed memory of a size within bounds, and only what Read takes. The file is the Tar's unless there is an error.
func Open(f *os.File) (*Tar, error) {
	got, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || got&seals&^unix.F_SEAL_SEAL != seals&^unix.F_SEAL_SEAL {
		return nil, fmt.Errorf("files to be kept: a descriptor with seals %#x: want memory that is sealed against writes and other sizes", got)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > MaxBytes {
		return nil, fmt.Errorf("files to be kept: a tar of %d bytes, at most %d", info.Size(), MaxBytes)
	}
	t := &Tar{Bytes: info.Size(), f: f}
	h := sha256.New()
	if _, err := List(io.TeeReader(t.reader(), h)); err != nil {
		return nil, fmt.Errorf("files to be kept: %w", err)
	}
	t.SHA256 = hex.EncodeToString(h.Sum(nil))
	return t, nil
}

func (t *Tar) reader() io.Reader { return io.NewSectionReader(t.f, 0, t.Bytes) }

// Read reads it whole. Several goroutines may.
func (t *Tar) Read() ([]byte, error) {
	b := make([]byte, t.Bytes)
	_, err := io.ReadFull(t.reader(), b)
	return b, err
}

// Close lets go of the memory.
func (t *Tar) Close() { _ = t.f.Close() } // nothing is written through it
