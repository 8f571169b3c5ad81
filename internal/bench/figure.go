package bench

import (
	"fmt"
	"slices"
)

// Figure is one number of bench.json. Value and limit are medians over the rounds; ratio is value / limit.
type Figure struct {
	Name      string   `json:"name"`
	Unit      string   `json:"unit"`
	Value     float64  `json:"value"`
	LimitName string   `json:"limit_name"` // empty: nothing to compare with
	Limit     *float64 `json:"limit"`
	Ratio     *float64 `json:"ratio"`
	Want      string   `json:"want"` // of the ratio, as ">= 1.3"; empty: nothing is wanted
	OK        *bool    `json:"ok"`   // null: nothing is wanted

	Rounds int       `json:"rounds"`
	Values []float64 `json:"values"` // of each round
	Limits []float64 `json:"limits"`
	Note   string    `json:"note,omitempty"`

	want bound
}

// bound is what a ratio should be; the zero value wants nothing.
type bound struct {
	most  bool // at most, not at least
	ratio float64
}

func atLeast(ratio float64) bound { return bound{false, ratio} }
func atMost(ratio float64) bound  { return bound{true, ratio} }

func (b bound) String() string {
	switch {
	case b.ratio == 0:
		return ""
	case b.most:
		return fmt.Sprintf("<= %g", b.ratio)
	}
	return fmt.Sprintf(">= %g", b.ratio)
}

func (b bound) holds(ratio float64) bool {
	if b.most {
		return ratio <= b.ratio
	}
	return ratio >= b.ratio
}

// newFigure judges what rounds gave. Without limits there is no ratio, and nothing can be wanted.
func newFigure(name, unit string, values []float64, limitName string, limits []float64, want bound) Figure {
	f := Figure{Name: name, Unit: unit, Value: median(values), Rounds: len(values), Values: values, Limits: limits}
	if len(limits) == 0 || median(limits) == 0 {
		f.Limits = []float64{}
		return f
	}
	f.LimitName, f.Limit = limitName, new(median(limits))
	f.Ratio = new(f.Value / *f.Limit)
	if want.ratio != 0 {
		f.want, f.Want, f.OK = want, want.String(), new(want.holds(*f.Ratio))
	}
	return f
}

// missed tells whether the figure is not what is wanted.
func (f Figure) missed() bool { return f.OK != nil && !*f.OK }

// line is the figure for people.
func (f Figure) line() string {
	s := fmt.Sprintf("%s: %s %s (%s to %s)", f.Name, number(f.Value), f.Unit, number(slices.Min(f.Values)), number(slices.Max(f.Values)))
	if f.Limit != nil {
		s += fmt.Sprintf("; %s: %s; ratio %.2f", f.LimitName, number(*f.Limit), *f.Ratio)
	}
	switch {
	case f.missed():
		s += ", MISSED: want " + f.Want
	case f.OK != nil:
		s += ", as wanted: " + f.Want
	}
	return s
}

// number has three digits that count.
func number(v float64) string {
	if v >= 1000 || v <= -1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
