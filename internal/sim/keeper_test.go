package sim

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/replicad/replicad/internal/desk"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/replica"
)

// keeper holds descriptors beyond the daemon's death, and mints the node's incarnation. handle is the keeper as one daemon sees it.
type keeper struct {
	incarnation replica.NodeIncarnation
	ended       chan struct{}

	mu    sync.Mutex // guards files and sessions
	files map[string]*os.File
	began replica.Session // daemons
}

func newKeeper(w *world) *keeper {
	return &keeper{incarnation: w.nextNode(), ended: make(chan struct{}), files: map[string]*os.File{}}
}

// session counts a daemon that starts.
func (k *keeper) session() replica.Session {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.began++
	return k.began
}

// gone tells whether the keeper has ended.
func (k *keeper) gone() bool {
	select {
	case <-k.ended:
		return true
	default:
		return false
	}
}

// kill ends the keeper: what it alone held is lost.
func (k *keeper) kill() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.gone() {
		return
	}
	close(k.ended)
	for key, f := range k.files {
		f.Close()
		delete(k.files, key)
	}
}

// flip changes a bit of the first arena that has some bytes; false: none has.
func (k *keeper) flip(bytesOf []byte) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(k.files)) {
		all, err := io.ReadAll(io.NewSectionReader(k.files[key], 0, 1<<30))
		if err != nil {
			return false, err
		}
		if at := bytes.Index(all, bytesOf); at >= 0 {
			_, err := k.files[key].WriteAt([]byte{bytesOf[7] ^ 4}, int64(at)+7)
			return err == nil, err
		}
	}
	return false, nil
}

type handle struct {
	k   *keeper
	ctx *context.Context // of the daemon
}

var errNoKeeper = errors.New("the keeper has ended")

func (h *handle) do(fn func(map[string]*os.File) error) error {
	if err := (*h.ctx).Err(); err != nil {
		return err
	}
	h.k.mu.Lock()
	defer h.k.mu.Unlock()
	if h.k.gone() {
		return errNoKeeper
	}
	return fn(h.k.files)
}

func (h *handle) Put(key string, f *os.File) error {
	return h.do(func(files map[string]*os.File) error {
		mine, err := unixsock.Duplicate(f)
		if err != nil {
			return err
		}
		if old := files[key]; old != nil {
			old.Close()
		}
		files[key] = mine
		return nil
	})
}

func (h *handle) Drop(key string) error {
	return h.do(func(files map[string]*os.File) error {
		if f := files[key]; f != nil {
			f.Close()
			delete(files, key)
		}
		return nil
	})
}

func (h *handle) All() (map[string]*os.File, error) {
	all := map[string]*os.File{}
	err := h.do(func(files map[string]*os.File) error {
		for key, f := range files {
			mine, err := unixsock.Duplicate(f)
			if err != nil {
				return err
			}
			all[key] = mine
		}
		return nil
	})
	return all, err
}

func (h *handle) Done() <-chan struct{} { return h.k.ended }

// Where the words of slots stand in the control page, as libreplicad's layout.h has them.
const atSlots, slotStride, mostSlots = 1536, 64, 4

// halfDone is a slot that a daemon was writing.
type halfDone struct {
	f    *os.File
	at   int64
	word [8]byte
}

// halfDone are the slots that a daemon is writing: in mirrors, and while a plan is carried out in the arenas of ranks.
func (k *keeper) halfDone(restoring bool) (list []halfDone, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(k.files)) {
		if !restoring && !strings.Contains(key, "-mirror-") {
			continue
		}
		if desk.Records(key) || key == holding.PromiseKey {
			continue // no arena
		}
		for i := range int64(mostSlots) {
			h := halfDone{f: k.files[key], at: atSlots + i*slotStride}
			if _, err := h.f.ReadAt(h.word[:], h.at); err != nil {
				return nil, err
			}
			if replica.SlotWord(binary.LittleEndian.Uint64(h.word[:])).State() == replica.SlotCopying {
				list = append(list, h)
			}
		}
	}
	return list, nil
}

// leave has a slot be as a daemon left it that was killed: in here its goroutines tidy up behind themselves.
func (h halfDone) leave() error {
	_, err := h.f.WriteAt(h.word[:], h.at)
	return err
}
