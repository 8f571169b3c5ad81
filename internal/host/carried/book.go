// Package carried is which files launchers of a node give their job to carry (replicad run --keep-file), and what became of them: the first ones that reach
// the run in the durable tier stay, and whoever gave others is told, once.
//
// A Book is a value of a job's that the host's goroutine owns. It holds one tar at most, in sealed memory that its launcher made and the kernel charges to
// that, for as long as the job lives: a store that lost it, or is another one now, gets it again. The package imports kept alone.
package carried

import (
	"fmt"

	"github.com/replicad/replicad/internal/durable/kept"
)

// Book is of one job. The zero value is empty.
type Book struct {
	tar    *kept.Tar         // is to be there before this node writes a part; nil: none
	offers map[uint64]string // SHA-256 of what launchers gave, by peer, until it is known what the run carries
	there  string            // SHA-256 of that; empty: not known
	failed string            // why a put failed, as it was said last; empty: the last one did not
}

// Offer takes a launcher's files. What it returns the launcher is told; empty: nothing.
func (b *Book) Offer(peer uint64, t *kept.Tar) (text string) {
	switch {
	case b.there != "" && b.there != t.SHA256:
		t.Close()
		return other(t.SHA256, b.there)
	case b.tar == nil:
		b.tar = t
	case b.tar.SHA256 != t.SHA256:
		t.Close()
		return fmt.Sprintf("--keep-file: another launcher on this node gave other files before (SHA-256 %.16s..., these are %.16s...): these are not used", b.tar.SHA256, t.SHA256)
	default:
		t.Close()
	}
	if b.there != "" {
		return ""
	}
	if b.offers == nil {
		b.offers = map[uint64]string{}
	}
	b.offers[peer] = t.SHA256
	return ""
}

// other says that a run carries other files than a launcher gave.
func other(given, there string) string {
	return fmt.Sprintf("--keep-file: the run carries other files already (SHA-256 %.16s..., these are %.16s...): those stay, and these are not used. Only a new run carries others", there, given)
}

// Tar is what is to be there before a part is written; nil: nothing.
func (b *Book) Tar() *kept.Tar { return b.tar }

// Put learns what the run carries, or why that could not be seen to. texts are for launchers, by peer, and log is for the log, whoever still listens: the
// store may have lost what it had.
func (b *Book) Put(there string, err error) (texts map[uint64]string, log string) {
	texts = map[uint64]string{}
	if err != nil {
		if b.tar == nil { // of a write that began before: the run carries others
			return texts, ""
		}
		b.there = ""
		if is := err.Error(); is != b.failed {
			b.failed = is
			log = fmt.Sprintf("warning: --keep-file: %s. The state is written without these files, and the next durable write tries again", is)
			for peer := range b.offers {
				texts[peer] = log
			}
		}
		return texts, log
	}
	b.there, b.failed = there, ""
	for peer, given := range b.offers {
		if given != there {
			texts[peer] = other(given, there)
		}
	}
	b.offers = nil
	if b.tar != nil && b.tar.SHA256 != there {
		b.Close()
	}
	return texts, ""
}

// Waits tells whether it is not known yet what became of a launcher's files.
func (b *Book) Waits(peer uint64) bool { return b.offers[peer] != "" }

// Close lets go of what is held.
func (b *Book) Close() {
	if b.tar != nil {
		b.tar.Close()
		b.tar = nil
	}
}
