package find

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// State is what is known of a generation without reading it.
type State string

// The states of a generation.
const (
	Good       State = "good"       // the newest whole read of it found every byte
	Unread     State = "unread"     // committed; nobody has read it whole yet
	Damaged    State = "damaged"    // the newest whole read of it failed, or its COMMIT cannot be read
	Unfinished State = "unfinished" // objects without a COMMIT
	Unreadable State = "unreadable" // the store refuses to read it, or a newer program wrote it: what it holds is not known
	Deleting   State = "deleting"   // somebody began to delete it
	Stripped   State = "stripped"   // whole, without optimizer state: nothing resumes from it
	Encrypted  State = "encrypted"  // whole, and no key of it was given
)

// Listed is a generation as a list shows it.
type Listed struct {
	Run        Run
	Generation replica.Generation
	State      State
	Row        format.Row // of COMMIT; zero where there is none
	Why        string     // of damaged ones
	Read       time.Time  // when it was last read whole; zero: never
	Pins       []Keeper
	Objects    int // of unfinished ones
}

// Keeper is a pin by its name alone; whether it has ended its content says.
type Keeper struct {
	Who   string
	Since time.Time // by the store's clock
}

// List says what there is of a name, by listing and by hints: the last run first, and in it the newest generation. A COMMIT is read only
// where the summary does not have it. Unfinished generations are those behind the newest commit; Sweep finds all.
func (c *Finder) List(ctx context.Context, job string) (list []Listed, err error) {
	return c.listed(ctx, job, false)
}

// ListNamed is List with the UUIDs of the runs, which take three requests each.
func (c *Finder) ListNamed(ctx context.Context, job string) (list []Listed, err error) {
	return c.listed(ctx, job, true)
}

func (c *Finder) listed(ctx context.Context, job string, named bool) (list []Listed, err error) {
	if err := replica.CheckJobName(job); err != nil {
		return nil, err
	}
	from := ""
	for {
		b, next, err := c.book(ctx, job, from)
		if err != nil {
			return nil, fmt.Errorf("list job %s in %s: %w", job, c.URL(), err)
		}
		if b == nil {
			break
		}
		rows, err := c.rows(ctx, b, named || next != "" || from != "")
		if err != nil {
			return nil, fmt.Errorf("list job %s in %s: %w", job, c.URL(), err)
		}
		list = append(list, rows...)
		if from = next; next == "" {
			break
		}
	}
	slices.SortStableFunc(list, func(a, b Listed) int {
		return cmp.Or(cmp.Compare(b.Run.Order, a.Run.Order), cmp.Compare(b.Run.Run, a.Run.Run), Newer(b.Row.Position, b.Generation,
			a.Row.Position, a.Generation))
	})
	return list, nil
}

// rows makes the lines of one run. Its own words and its claim are read only where there is another run to be ordered against.
func (c *Finder) rows(ctx context.Context, b *book, several bool) (list []Listed, err error) {
	r := Run{Place: b.place}
	if several {
		if r, err = c.run(ctx, b.place, append([]format.Name{}, b.claims...)); err != nil {
			return nil, err
		}
	}
	known := make(map[replica.Generation]format.Row)
	if len(b.commits)+len(b.loose) > 0 {
		raw, _, err := c.objects.Get(ctx, b.place.Under(format.SummaryKey))
		if damage.CantTell(err) {
			return nil, err
		}
		if s, err := format.ParseSummary(raw, b.place); err == nil {
			for _, row := range s.Rows {
				known[row.Generation] = row
			}
		}
	}
	for g := range b.commits {
		row, ok := known[g]
		l := Listed{Run: r, Generation: g, State: Unread, Row: row, Pins: b.pins[g]}
		if !ok {
			l.State = ""
		}
		if read, ok := b.reads[g]; ok {
			l.State, l.Read = Good, time.Unix(read.At, 0)
			if !read.Good {
				l.State = Damaged
			}
		}
		list = append(list, l)
	}
	err = c.objects.Each(ctx, len(list), func(ctx context.Context, i int) error {
		l := &list[i]
		_, ok := known[l.Generation]
		if !ok {
			com, err := c.ReadCommit(ctx, r, l.Generation)
			switch {
			case errors.Is(err, store.ErrAbsent):
				l.State, l.Why = Deleting, "its commit went while it was listed"
			case damage.Unread(err), errors.Is(err, format.ErrNewer):
				l.State, l.Why = Unreadable, err.Error()
			case damage.CantTell(err):
				return err
			case err != nil:
				l.State, l.Why = Damaged, err.Error()
			default:
				l.Row = com.Row()
				l.State = cmp.Or(l.State, Unread)
			}
		}
		if b.trash[l.Generation] {
			l.State = Deleting
		}
		if l.State == Damaged && l.Why == "" {
			l.Why = c.whyBad(ctx, b.place, b.reads[l.Generation]).Error()
		}
		return nil
	})
	if err != nil {
		return list, err
	}
	for g, n := range b.loose {
		l := Listed{Run: r, Generation: g, State: Unfinished, Objects: n, Row: format.Row{Generation: g}}
		_, had := known[g]
		why, err := c.lostCommit(ctx, b, g, had)
		if err != nil {
			return nil, err
		}
		if b.trash[g] {
			l.State = Deleting
		} else if why != nil {
			l.State, l.Why = Damaged, why.Error()
		}
		list = append(list, l)
	}
	return list, nil
}

// whyBad is what a read that failed found.
func (c *Finder) whyBad(ctx context.Context, p format.Place, n format.Name) error {
	plain := errors.New("its newest whole read failed")
	b, _, err := c.objects.Get(ctx, p.Key(n))
	if err != nil {
		return plain
	}
	said, err := format.ParseRead(b, n)
	if err != nil {
		return plain
	}
	text := fmt.Sprintf("%s (read back on %s by %s)", said.Error, time.Unix(said.At, 0).UTC().Format("2006-01-02 15:04 MST"), said.Who)
	return damage.New(n.String(), damage.WholeFile, said.Error, errors.New(text))
}
