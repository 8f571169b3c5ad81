package replica

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

// Limits of remarks. Those of one kind are counted for a job.
const (
	MaxRemarks    = 64
	MaxRemarkName = 64  // bytes
	MaxRemarkText = 256 // bytes
)

// RemarkKind says what a Remark is.
type RemarkKind uint16

// The kinds of a Remark.
const (
	Note        RemarkKind = 1 + iota // a text that a person gave
	Metric                            // a number that belongs to a step
	Version                           // a text: which program, which release of a library
	LoaderEpoch                       // a number that belongs to a step: which epoch of its data the loader is in
)

func (k RemarkKind) String() string {
	switch k {
	case Note:
		return "note"
	case Metric:
		return "metric"
	case Version:
		return "version"
	case LoaderEpoch:
		return "loader's epoch"
	}
	return fmt.Sprintf("remark %d", uint16(k))
}

// Stepped tells whether remarks of the kind are numbers that belong to a step; the others are texts.
func (k RemarkKind) Stepped() bool { return k == Metric || k == LoaderEpoch }

// ByLauncher is the rank of a remark that no rank made: every rank's counts before it.
const ByLauncher = ^Rank(0)

// Remark is what a rank, or a launcher, says of a job. COMMIT of a durable generation has it beside the bytes.
type Remark struct {
	Kind  RemarkKind `cbor:"1,keyasint"`
	Name  string     `cbor:"2,keyasint"`
	Text  string     `cbor:"3,keyasint,omitempty"`
	Value float64    `cbor:"4,keyasint,omitempty"` // of a metric NaN: it has none from this step on
	Step  Step       `cbor:"5,keyasint,omitempty"` // of kinds that are Stepped
	Rank  Rank       `cbor:"6,keyasint,omitempty"` // who made it
}

// Check says what is wrong with a remark.
func (r Remark) Check() error {
	switch {
	case r.Kind < Note || r.Kind > LoaderEpoch:
		return fmt.Errorf("%v: no such kind", r.Kind)
	case len(r.Name) == 0 || len(r.Name) > MaxRemarkName || !utf8.ValidString(r.Name):
		return fmt.Errorf("%v %.80q: its name has %d bytes, want 1 to %d of UTF-8", r.Kind, r.Name, len(r.Name), MaxRemarkName)
	case len(r.Text) > MaxRemarkText || !utf8.ValidString(r.Text):
		return fmt.Errorf("%v %q: its text has %d bytes, want at most %d of UTF-8", r.Kind, r.Name, len(r.Text), MaxRemarkText)
	case math.IsNaN(r.Value) && r.Kind != Metric || math.IsInf(r.Value, 0):
		return fmt.Errorf("%v %q: %v is not finite", r.Kind, r.Name, r.Value)
	case r.Step > MaxStep:
		return fmt.Errorf("%v %q: step %d is out of range", r.Kind, r.Name, r.Step)
	case r.Kind.Stepped() && r.Text != "" || !r.Kind.Stepped() && (r.Value != 0 || r.Step != 0):
		return fmt.Errorf("%v %q: a text with a number", r.Kind, r.Name)
	case r.Kind == LoaderEpoch && (r.Value < 0 || r.Value > 1<<53 || r.Value != math.Trunc(r.Value)):
		return fmt.Errorf("%v %q: %v is no number of an epoch", r.Kind, r.Name, r.Value)
	}
	return nil
}

// CheckRemarks says what is wrong with all that somebody says.
func CheckRemarks(list []Remark) error {
	m := Remarks{}
	for _, r := range list {
		if err := r.Check(); err != nil {
			return err
		}
		if _, twice := m[r.key()]; twice {
			return fmt.Errorf("%v %q comes twice", r.Kind, r.Name)
		}
		if !m.Add(r) {
			return fmt.Errorf("%v %q is one more than %d", r.Kind, r.Name, MaxRemarks)
		}
	}
	return nil
}

type remarkKey struct {
	kind RemarkKind
	name string
}

func (r Remark) key() remarkKey { return remarkKey{r.Kind, r.Name} }

// Remarks are those of a job, one of each kind and name.
type Remarks map[remarkKey]Remark

// Add takes a remark. Of several ranks that say the same name the lowest counts. False: there are as many of its kind as there may be.
func (m Remarks) Add(r Remark) bool {
	was, known := m[r.key()]
	switch {
	case known && was.Rank < r.Rank:
		return true
	case !known && m.count(r.Kind) >= MaxRemarks:
		return false
	}
	m[r.key()] = r
	return true
}

func (m Remarks) count(k RemarkKind) (n int) {
	for key := range m {
		if key.kind == k {
			n++
		}
	}
	return n
}

// List lists them in one order.
func (m Remarks) List() []Remark {
	var out []Remark
	for _, r := range m {
		out = append(out, r)
	}
	slices.SortFunc(out, Remark.compare)
	return out
}

// compare orders remarks by who made them last.
func (r Remark) compare(o Remark) int {
	return cmp.Or(cmp.Compare(r.Kind, o.Kind), cmp.Compare(r.Name, o.Name), cmp.Compare(r.Rank, o.Rank))
}

// Merge is what counts of several lists, in one order; over are those that there is no room for.
func Merge(list []Remark) (out, over []Remark) {
	list = slices.Clone(list)
	slices.SortStableFunc(list, Remark.compare) // what a rank says later counts
	m := Remarks{}
	for _, r := range list {
		if !m.Add(r) {
			over = append(over, r)
		}
	}
	return m.List(), over
}
