package demo

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

//go:embed report.html.tmpl
var pageSource string

var page = template.Must(template.New("report").Parse(pageSource))

// html is the report as one file without outside resources.
func (r *result) html() ([]byte, error) {
	type row struct{ Cells []string }
	data := struct {
		Good                  bool
		Verdict, When, Digest string
		Seed                  uint64
		Steps                 int
		Differs, Columns      []string
		Rows                  []row
		Faults                []Fault
		Figures               []figureRow
		Curve, Timeline       template.HTML
		Phases                []phase
		FaultCount            int
		Again                 *again
	}{Good: r.Verdict == bitEqual, Verdict: r.Verdict, When: r.when.UTC().Format("2006-01-02 15:04 UTC"), Digest: r.digest, Seed: r.opt.Seed, Steps: r.opt.Steps,
		Differs: r.differs, Columns: columns, Faults: r.Faults, Curve: r.curve(), Timeline: timeline(r.Faults), Phases: phases, FaultCount: len(r.Faults), Again: r.Again}
	for _, f := range r.Faults {
		data.Rows = append(data.Rows, row{f.cells()})
	}
	for _, f := range r.Figures {
		data.Figures = append(data.Figures, f.row())
	}
	var b bytes.Buffer
	if err := page.Execute(&b, data); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

type figureRow struct {
	Name, Value, Unit, Limit string
	Over                     bool
}

func (f Figure) row() figureRow {
	number := func(v float64) string {
		if v == math.Trunc(v) || math.Abs(v) >= 1000 {
			return fmt.Sprintf("%.0f", v)
		}
		return fmt.Sprintf("%.3g", v)
	}
	row := figureRow{Name: f.Name, Value: number(f.Value), Unit: f.Unit}
	if row.Unit == "1" {
		row.Unit = ""
	}
	if f.Limit != nil {
		row.Limit, row.Over = number(*f.Limit), f.Value > *f.Limit
	}
	return row
}

// svg collects elements of a picture; numbers and texts go through it escaped.
type svg struct{ strings.Builder }

func (s *svg) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(s, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, class, x1, y1, x2, y2)
}

func (s *svg) text(class string, x, y float64, text string) {
	fmt.Fprintf(s, `<text class="%s" x="%.1f" y="%.1f">%s</text>`, class, x, y, template.HTMLEscapeString(text))
}

func (s *svg) picture(label string, w, h float64) template.HTML {
	return template.HTML(fmt.Sprintf(`<svg viewBox="0 0 %.0f %.0f" role="img" aria-label="%s">%s</svg>`, w, h, template.HTMLEscapeString(label), s.String())) //nolint:gosec // built above from numbers and escaped text
}

// The loss curve's place in its picture.
const (
	wide, high               = 960.0, 330.0
	left, right, top, bottom = 46.0, 26.0, 34.0, 34.0
)

// curve draws the loss of both runs over steps, and where the faults were.
func (r *result) curve() template.HTML {
	var s svg
	low, most := math.Inf(1), math.Inf(-1)
	for _, l := range r.loss {
		low, most = min(low, l), max(most, l)
	}
	if len(r.loss) == 0 {
		low, most = 0, 1
	}
	low, most = math.Floor(low*2)/2, math.Ceil(most*2)/2
	if most <= low {
		most = low + 1
	}
	steps := float64(max(r.opt.Steps, 1))
	x := func(step float64) float64 { return left + (wide-left-right)*step/steps }
	y := func(loss float64) float64 { return top + (high-top-bottom)*(most-loss)/(most-low) }
	for l := low; l <= most+1e-9; l += gridStep(most - low) {
		s.line("grid", left, y(l), wide-right, y(l))
		s.text("tick end", left-6, y(l)+4, fmt.Sprintf("%.1f", l))
	}
	for i := range 6 {
		step := steps * float64(i) / 5
		s.text("tick mid", x(step), high-bottom+18, fmt.Sprintf("%.0f", step))
	}
	s.text("tick mid", (left+wide-right)/2, high-4, "step")
	for i, f := range r.Faults {
		at := x(float64(f.step))
		s.line("fault", at, top-6, at, high-bottom)
		s.text("mark mid", at, top-10-12*float64(i%2), f.Kind)
	}
	path := func(class string, loss map[uint64]float64) {
		smooth, first := 0.0, true
		fmt.Fprintf(&s, `<path class="%s" d="`, class)
		for _, step := range slices.Sorted(maps.Keys(loss)) {
			if smooth = 0.9*smooth + 0.1*loss[step]; first {
				smooth = loss[step]
			}
			fmt.Fprintf(&s, "%s%.1f %.1f", map[bool]string{true: "M", false: "L"}[first], x(float64(step)), y(smooth))
			first = false
		}
		s.WriteString(`"/>`)
	}
	path("calm", r.baseline)
	path("run", r.loss)
	return s.picture("loss over steps of the undisturbed and the disturbed run, with the faults", wide, high)
}

func gridStep(span float64) float64 {
	for _, g := range []float64{0.5, 1, 2, 5} {
		if span/g <= 8 {
			return g
		}
	}
	return span / 5
}

// phase is a stretch of a recovery.
type phase struct{ Class, Text string }

var phases = []phase{{"p0", "until detected"}, {"p1", "until fenced"}, {"p2", "until planned"}, {"p3", "moving and verifying"}, {"p4", "loading, until resumed"}, {"p5", "until every rank has made a step"}}

// timeline draws every recovery from its injection, on a square-root scale: they differ by a factor of a hundred.
func timeline(faults []Fault) template.HTML {
	const name, rowHigh, pad = 118.0, 34.0, 30.0
	var longest float64
	for _, f := range faults {
		for _, t := range f.moments() {
			longest = max(longest, t)
		}
		longest = max(longest, float64(f.away.Milliseconds()))
	}
	longest = max(longest, 10)
	x := func(ms float64) float64 { return name + (wide-name-70)*math.Sqrt(max(ms, 0)/longest) }
	height := pad + rowHigh*float64(len(faults)) + 8
	var s svg
	labelled := -100.0
	for _, t := range []float64{0, 10, 50, 100, 250, 500, 1000, 2000, 5000, 10000, 20000, 60000, 120000} {
		if t > longest {
			break
		}
		s.line("grid", x(t), pad-8, x(t), height-6)
		if x(t)-labelled > 48 {
			s.text("tick mid", x(t), pad-14, time.Duration(t*1e6).String())
			labelled = x(t)
		}
	}
	for i, f := range faults {
		y := pad + rowHigh*float64(i)
		s.text("label end", name-10, y+17, f.Kind)
		if f.away > 0 {
			fmt.Fprintf(&s, `<rect class="away" x="%.1f" y="%.1f" width="%.1f" height="5" rx="2"><title>away for %v</title></rect>`, x(0), y+24, x(float64(f.away.Milliseconds()))-x(0), f.away.Round(time.Millisecond))
		}
		from := 0.0
		for k, to := range f.moments() {
			if to <= from {
				continue
			}
			fmt.Fprintf(&s, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="18" rx="2"><title>%s %s: %.0f to %.0f ms</title></rect>`, phases[k].Class, x(from), y+3, max(x(to)-x(from), 1), f.Kind, phases[k].Text, from, to)
			from = to
		}
		s.text("tick", x(from)+6, y+17, fmt.Sprintf("%.0f ms", from))
	}
	return s.picture("recovery timeline of every fault", wide, height)
}

// moments are the ends of the phases in ms; one that did not occur ends where the one before did.
func (f Fault) moments() (list [6]float64) {
	var last float64
	for i, m := range []*float64{f.Detected, f.Fenced, f.Planned, f.Verified, f.Resumed, f.firstStep} {
		if m != nil {
			last = max(last, *m)
		}
		list[i] = last
	}
	return list
}
