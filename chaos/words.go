package chaos

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// words are the slot words of a node's arenas, read through the descriptors of its keeper and daemon: nobody is asked or told. While it
// is open the memory stays, so that it lives for one fault. One goroutine has it.
type words struct {
	node   string
	arenas map[uint64]*shm.Arena // by inode
}

// A spot is a place of an arena, and what its word said.
type spot struct {
	node   string
	rank   int
	mirror bool
	both   bool // the mirror holds the rank's private part too
	arena  *shm.Arena
	place  shm.Place
	word   replica.SlotWord
}

func (s spot) String() string {
	what := "arena"
	if s.mirror {
		what = "mirror"
	}
	return fmt.Sprintf("%s of rank %d on %s, %v, use %d %v", what, s.rank, s.node, s.place, s.word.Count(), s.word.State())
}

// now is the word as it stands.
func (s spot) now() replica.SlotWord { return s.arena.Word(s.place) }

func newWords(node string) *words {
	return &words{node: node, arenas: map[uint64]*shm.Arena{}}
}

// find takes in the arenas that these processes have open.
func (w *words) find(pids ...int) {
	for _, pid := range pids {
		dir := fmt.Sprintf("/proc/%d/fd/", pid)
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // it has ended
		}
		for _, e := range entries {
			if to, err := os.Readlink(dir + e.Name()); err == nil && strings.HasPrefix(to, "/memfd:replicad-arena-") {
				w.take(dir + e.Name())
			}
		}
	}
}

func (w *words) take(file string) {
	var st syscall.Stat_t
	if syscall.Stat(file, &st) != nil || w.arenas[st.Ino] != nil {
		return
	}
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return // closed meanwhile
	}
	a, err := shm.Adopt(f)
	if err != nil { // it is being made
		_ = f.Close()
		return
	}
	w.arenas[st.Ino] = a
}

// spots are the places for replicated parts; with every, those for private and frozen ones too.
func (w *words) spots(every bool) (list []spot) {
	for _, a := range w.arenas {
		spec := a.Spec()
		for _, p := range a.Places() {
			if every || p.Kind == shm.Slot {
				list = append(list, spot{w.node, int(spec.Rank), spec.Mirror, spec.Slots > 0 && spec.Ring > 0, a, p, a.Word(p)})
			}
		}
	}
	return list
}

func (w *words) close() {
	for _, a := range w.arenas {
		_ = a.Close() // nothing was written
	}
}

// allWords opens those of every node whose keeper or daemon runs.
func (r *runner) allWords() (all []*words) {
	for _, n := range r.cluster.Nodes {
		all = append(all, newWords(n.Name))
	}
	r.findWords(all)
	return all
}

func (r *runner) findWords(all []*words) {
	for i, n := range r.cluster.Nodes {
		if n.Keeper != nil && n.Daemon != nil {
			all[i].find(n.Keeper.PID(), n.Daemon.PID())
		}
	}
}

func closeWords(all []*words) {
	for _, w := range all {
		w.close()
	}
}

// wordsText is what all words say, a place a line.
func (r *runner) wordsText() string {
	all := r.allWords()
	defer closeWords(all)
	var lines []string
	for _, w := range all {
		for _, s := range w.spots(true) {
			line := s.String()
			if info, err := s.arena.Sealed(s.place); err == nil {
				line += fmt.Sprintf(" %v", info.Generation)
			}
			lines = append(lines, line+"\n")
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}
