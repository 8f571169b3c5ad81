package consensus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
)

// bbolt maps its file and believes it: a file cut short, by a full disk or an unfinished copy, is a fault in one of its own
// goroutines, which ends the process. So the file's head is read first, and its length compared with what the head says.
//
// A meta page is: page header [16], magic u32, version u32, page size u32, flags u32, root bucket [16], freelist u64,
// pages u64 (as high as any in use), transaction u64, FNV-1a-64 u64 of all these fields; in the host's byte order.
const (
	boltMagic     = 0xED0CDAED
	boltVersion   = 2
	boltHeader    = 16
	boltMetaBytes = 64
	boltSummed    = boltMetaBytes - 8
	boltMaxPage   = 1 << 16
)

type boltMeta struct {
	pageSize uint32
	pages    uint64
	txid     uint64
}

// checkLogFile fails for a file that bbolt must not open; a missing or empty one is bbolt's to make.
func checkLogFile(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Size() == 0 {
		return err
	}
	head := make([]byte, 2*boltMaxPage)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("read its head: %w", err)
	}
	m, err := parseBoltHead(head[:n])
	if err != nil {
		return err
	}
	if want := m.pages * uint64(m.pageSize); m.pages > 1<<40 || uint64(st.Size()) < want {
		return fmt.Errorf("it has %d bytes, its head says %d pages of %d", st.Size(), m.pages, m.pageSize)
	}
	return nil
}

// parseBoltHead finds the newer of the two meta pages that is whole. The second page's place depends on the page size, which
// a damaged first page can't tell, so each possible size is tried.
func parseBoltHead(head []byte) (best boltMeta, err error) {
	found := false
	take := func(off int) {
		if m, ok := parseBoltMeta(head, off); ok && (!found || m.txid > best.txid) && (off == 0 || off == int(m.pageSize)) {
			best, found = m, true
		}
	}
	take(0)
	for size := 512; size <= boltMaxPage; size *= 2 {
		take(size)
	}
	if !found {
		return best, errors.New("no whole meta page: not a bbolt file, or its head is overwritten")
	}
	return best, nil
}

func parseBoltMeta(head []byte, off int) (m boltMeta, ok bool) {
	if len(head) < off+boltHeader+boltMetaBytes {
		return m, false
	}
	b, order := head[off+boltHeader:][:boltMetaBytes], binary.NativeEndian
	sum := fnv.New64a()
	sum.Write(b[:boltSummed])
	if order.Uint32(b) != boltMagic || order.Uint32(b[4:]) != boltVersion || order.Uint64(b[boltSummed:]) != sum.Sum64() {
		return m, false
	}
	m = boltMeta{pageSize: order.Uint32(b[8:]), pages: order.Uint64(b[40:]), txid: order.Uint64(b[48:])}
	return m, m.pageSize >= 512 && m.pageSize <= boltMaxPage && m.pageSize&(m.pageSize-1) == 0
}
