package replica

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// Keep says which durable generations stay, as people write it: what any of its rules keeps. The last good one of a run stays in any case.
type Keep struct {
	Last    int  `yaml:"last"`              // the newest good ones of each run
	Every   int  `yaml:"every,omitempty"`   // those of each multiple of so many steps; 0: none
	Epochs  bool `yaml:"epochs,omitempty"`  // the newest of each epoch of the loader
	Best    Best `yaml:"best,omitempty"`    // the best ones by a metric
	Younger Age  `yaml:"younger,omitempty"` // those that are younger; 0: none
}

// Best says which generations are the best: the N smallest values of a metric, or the largest where Order is "max".
type Best struct {
	Metric string `yaml:"metric"`
	N      int    `yaml:"n"`
	Order  string `yaml:"order,omitempty"` // BestMin, which "" is too, or BestMax
}

// The orders of Best.
const (
	BestMin = "min"
	BestMax = "max"
)

// maxYounger is ten years.
const maxYounger Age = 3650 * 86400

// MaxKeep bounds how many generations a rule of a Keep counts.
const MaxKeep = 1000

// Largest tells whether the largest value is the best.
func (b Best) Largest() bool { return b.Order == BestMax }

// MarshalYAML writes a Keep of one rule as its number.
func (k Keep) MarshalYAML() (any, error) {
	if k == (Keep{Last: k.Last}) {
		return k.Last, nil
	}
	type rules Keep
	return rules(k), nil
}

// KeepFault is a field of a Keep that can't be.
type KeepFault struct {
	Field, Value, Want string // Field: as in a file; empty for Last of a Keep of one rule
}

// Faults are all that is wrong with a Keep.
func (k Keep) Faults() (list []KeepFault) {
	bad := func(field, value, want string) { list = append(list, KeepFault{field, value, want}) }
	if k.Last < 1 || k.Last > MaxKeep {
		field := "last"
		if k == (Keep{Last: k.Last}) {
			field = ""
		}
		bad(field, strconv.Itoa(k.Last), fmt.Sprintf("1 to %d", MaxKeep))
	}
	if k.Every < 0 || Step(k.Every) > MaxStep {
		bad("every", strconv.Itoa(k.Every), "a number of steps, or 0 for none")
	}
	if k.Younger > maxYounger {
		bad("younger", k.Younger.String(), "0 to 3650d")
	}
	b := k.Best
	if b == (Best{}) {
		return list
	}
	if (Remark{Kind: Metric, Name: b.Metric}).Check() != nil || strings.ContainsFunc(b.Metric, func(r rune) bool { return !unicode.IsPrint(r) }) {
		bad("best.metric", strconv.Quote(b.Metric), fmt.Sprintf("the name of a metric that session.metric says, 1 to %d bytes of what can be printed", MaxRemarkName))
	}
	if b.N < 1 || b.N > MaxKeep {
		bad("best.n", strconv.Itoa(b.N), fmt.Sprintf("1 to %d", MaxKeep))
	}
	if b.Order != "" && b.Order != BestMin && b.Order != BestMax {
		bad("best.order", strconv.Quote(b.Order), BestMin+" or "+BestMax)
	}
	return list
}

// Age is a time in seconds that people also count in days: 7d, 36h, 1h30m.
type Age uint64

// ageUnits are those of an age, largest first, in seconds.
var ageUnits = []struct {
	name    string
	seconds uint64
}{{"d", 86400}, {"h", 3600}, {"m", 60}, {"s", 1}}

// String is the age in the largest unit of which it has whole ones.
func (a Age) String() string {
	for _, u := range ageUnits {
		if a != 0 && uint64(a)%u.seconds == 0 {
			return fmt.Sprintf("%d%s", uint64(a)/u.seconds, u.name)
		}
	}
	return "0s"
}

// MarshalText is String.
func (a Age) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads numbers with units, the largest unit first.
func (a *Age) UnmarshalText(text []byte) error {
	rest, sum := string(text), uint64(0)
	for _, u := range ageUnits {
		number, after, ok := strings.Cut(rest, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			return errAge
		}
		sum, rest = sum+n*u.seconds, after
	}
	if rest != "" || len(text) == 0 {
		return errAge
	}
	*a = Age(sum)
	return nil
}

var errAge = errors.New("want an age such as 7d or 36h")

// Set and Type make an Age a flag.
func (a *Age) Set(text string) error { return a.UnmarshalText([]byte(text)) }

// Type names the flag's value.
func (a *Age) Type() string { return "age" }
