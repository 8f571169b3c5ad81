package journal

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

const (
	budgetSpell = time.Minute
	budgetKinds = 256 // that are told apart; what is of others counts together
)

// budget is how many bytes of lines are written in a spell. Lines of one kind have half of it, and those below warning leave a fifth to the
// others: whoever causes many lines hides neither other events nor what is wrong. The zero value lets every line pass.
type budget struct {
	most    int // in a spell; 0: as much as there is
	since   time.Time
	written int
	kinds   map[string]int // bytes
	left    leftOut
}

// leftOut is what was not written.
type leftOut struct {
	lines, bytes int
	kinds        map[string]int // lines
}

// take tells whether a line may be written, and what was left out in a spell that is over, once.
func (b *budget) take(now time.Time, kind string, warns bool, size int) (ok bool, over leftOut) {
	if b.most == 0 {
		return true, leftOut{}
	}
	if now.Sub(b.since) >= budgetSpell {
		over = b.left
		b.since, b.written, b.kinds, b.left = now, 0, map[string]int{}, leftOut{kinds: map[string]int{}}
	}
	if _, known := b.kinds[kind]; !known && len(b.kinds) >= budgetKinds {
		kind = "other"
	}
	most := b.most
	if !warns {
		most -= most / 5
	}
	if b.written+size > most || b.kinds[kind]+size > b.most/2 {
		b.left.lines, b.left.bytes = b.left.lines+1, b.left.bytes+size
		b.left.kinds[kind]++
		return false, over
	}
	b.written, b.kinds[kind] = b.written+size, b.kinds[kind]+size
	return true, over
}

// most names the kinds that were left out most often.
func (l leftOut) most() string {
	const some = 4
	kinds := slices.SortedFunc(maps.Keys(l.kinds), func(a, b string) int { return cmp.Or(l.kinds[b]-l.kinds[a], strings.Compare(a, b)) })
	var list []string
	for _, k := range kinds[:min(len(kinds), some)] {
		list = append(list, fmt.Sprintf("%d of %s", l.kinds[k], k))
	}
	return strings.Join(list, ", ")
}

// budgeted writes lines within a budget.
type budgeted struct {
	w    io.Writer
	says func() *zerolog.Logger // for what was left out

	mu     sync.Mutex // guards budget
	budget budget
}

func (b *budgeted) Write(p []byte) (int, error) { return b.WriteLevel(zerolog.InfoLevel, p) }

func (b *budgeted) WriteLevel(level zerolog.Level, p []byte) (int, error) {
	b.mu.Lock()
	ok, over := b.budget.take(time.Now(), kindOf(p), level >= zerolog.WarnLevel, len(p))
	b.mu.Unlock()
	if over.lines > 0 {
		b.says().Warn().Str("event", "lines_left_out").Int("lines", over.lines).Int("bytes", over.bytes).Str("most", over.most()).
			Str("remedy", "find who causes them: the lines before say of which job and node they are; log.per_minute of the configuration allows more").
			Msg("this log was full for a while: these lines were not written")
	}
	if !ok {
		return len(p), nil
	}
	return b.w.Write(p)
}

// kindOf is the event that a line names, and what that is of: failures of one thing hide no others.
func kindOf(line []byte) string {
	_, rest, _ := bytes.Cut(line, []byte(`"event":"`))
	event, rest, _ := bytes.Cut(rest, []byte{'"'})
	if of, says := bytes.CutPrefix(rest, []byte(`,"what":"`)); says {
		what, _, _ := bytes.Cut(of, []byte{'"'})
		return string(event) + " " + string(what)
	}
	return string(event)
}
