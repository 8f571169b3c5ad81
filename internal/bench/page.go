package bench

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
)

//go:embed page.html.tmpl
var pageSource string

var page = template.Must(template.New("bench").Parse(pageSource))

// section is the figures whose names begin with the same word.
type section struct {
	Title, About string
	Plots        []plot
	Rows         []row
}

// plot is the figures of one unit.
type plot struct {
	Unit string
	SVG  template.HTML
}

// row is a figure in a table.
type row struct {
	Name, Value, Unit, Spread, LimitName, Limit, LimitSpread, Ratio, Want, Note string
	OK, Missed                                                                  bool
}

// titles of the sections, in words, and what their figures are.
var titles = map[string][2]string{
	"step":     {"Steps", "What one step costs the training thread: step_enter, set_good and step_exit, by the C library."},
	"capture":  {"Captures", "A copy of the state into the arena, with XXH3-128 of every chunk. With two threads the second one helps (rp_help), and memcpy has two as well."},
	"sources":  {"Two sources", "Each on a link of 100 MB/s, beside one of them alone."},
	"resent":   {"Bytes sent again", "What sources send beyond the part's bytes where one end dies at half of it: chunks on their way, and the frames around all. Two sources, two lanes over TLS to each; a receiver that died is followed by one that has what had arrived."},
	"restore":  {"Recoveries", "A node is killed and falls silent while four ranks train on three voters, by replicad demo; a spare's process waits. Each phase begins where the one before ends."},
	"commit":   {"Seal to commit", "From the seal of a step's last part to the news of its commit on the whole job: two ranks on three voters, a step each 100 ms."},
	"donor":    {"A donor's steps", "A rank trains as fast as a core lets it, while the daemon of its node gives another job's state to a replacement; that job stands still meanwhile. In step-* the rank has a core for itself, and donor, receiver and all else have the others. In crowded-* all share all cores, and the receiver takes more of them than the donor. *-heal is how long the transfer takes."},
	"memory":   {"Memory", "Two ranks train. A generation is what is resident of a rank's arena, divided by its slots; a daemon's memory is its own, without arenas."},
	"idle":     {"An idle cluster", "Three daemons and their keepers, no job. Processor time is of one node's daemon and keeper, the mean of three."},
	"transfer": {"Transfers", "A part from memory to memory, both ends in one process, verified. Names say the kind of lane and how many; \"default\" is the daemons' own mix, one lane over QUIC and two over TLS to each source. The limits move the same bytes over as many connections and check nothing."},
}

// html is the report as one file without outside resources.
func (r Report) html() ([]byte, error) {
	data := struct {
		Report
		Summary  string
		AllGood  bool
		Wanted   template.HTML
		Sections []section
	}{Report: r, Summary: r.summary(), AllGood: r.missed() == 0 && len(r.Broken) == 0, Wanted: wantedPlot(r.Figures)}
	var first []string
	groups := map[string][]Figure{}
	for _, f := range r.Figures {
		word, _, _ := strings.Cut(f.Name, "/")
		if groups[word] == nil {
			first = append(first, word)
		}
		groups[word] = append(groups[word], f)
	}
	for _, word := range first {
		s := section{Title: word, Rows: rows(groups[word]), Plots: plots(groups[word])}
		if t, ok := titles[word]; ok {
			s.Title, s.About = t[0], t[1]
		}
		data.Sections = append(data.Sections, s)
	}
	var b bytes.Buffer
	if err := page.Execute(&b, data); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func rows(figures []Figure) (list []row) {
	spread := func(v []float64) string {
		if len(v) < 2 {
			return ""
		}
		return number(slices.Min(v)) + " – " + number(slices.Max(v))
	}
	for _, f := range figures {
		w := row{Name: f.Name, Value: number(f.Value), Unit: f.Unit, Spread: spread(f.Values), LimitName: f.LimitName, Want: f.Want, Note: f.Note}
		if f.Limit != nil {
			w.Limit, w.Ratio, w.LimitSpread = number(*f.Limit), fmt.Sprintf("%.3g", *f.Ratio), spread(f.Limits)
		}
		w.OK, w.Missed = f.OK != nil && *f.OK, f.missed()
		list = append(list, w)
	}
	return list
}

// svg collects elements of a picture; numbers and texts go through it escaped.
type svg struct{ strings.Builder }

func (s *svg) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(s, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, class, x1, y1, x2, y2)
}

func (s *svg) bar(class string, x1, y, x2, high float64, title string) {
	fmt.Fprintf(s, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="2"><title>%s</title></rect>`, class, x1, y, max(x2-x1, 1), high, template.HTMLEscapeString(title))
}

func (s *svg) dot(class string, x, y, r float64) {
	fmt.Fprintf(s, `<circle class="%s" cx="%.1f" cy="%.1f" r="%.1f"/>`, class, x, y, r)
}

func (s *svg) text(class string, x, y float64, text string) {
	fmt.Fprintf(s, `<text class="%s" x="%.1f" y="%.1f">%s</text>`, class, x, y, template.HTMLEscapeString(text))
}

func (s *svg) picture(label string, high float64) template.HTML {
	return template.HTML(fmt.Sprintf(`<svg viewBox="0 0 %.0f %.0f" role="img" aria-label="%s">%s</svg>`, wide, high, template.HTMLEscapeString(label), s.String())) //nolint:gosec // built above from numbers and escaped text
}

// Where things are in every picture.
const (
	wide, names, right = 980.0, 292.0, 132.0
	head               = 26.0
)

// plots draws figures that share a unit on one scale: a bar for the median of replicad and one for the limit's, a dot for each round.
func plots(figures []Figure) (list []plot) {
	var units []string
	of := map[string][]Figure{}
	for _, f := range figures {
		if of[f.Unit] == nil {
			units = append(units, f.Unit)
		}
		of[f.Unit] = append(of[f.Unit], f)
	}
	for _, unit := range units {
		list = append(list, plot{unit, barPlot(unit, of[unit])})
	}
	return list
}

func barPlot(unit string, figures []Figure) template.HTML {
	const rowHigh = 34.0
	most := 0.0
	for _, f := range figures {
		most = max(most, slices.Max(append(slices.Clone(f.Values), f.Limits...)))
	}
	if most <= 0 {
		most = 1
	}
	step := tick(most)
	top := math.Ceil(most/step) * step
	x := func(v float64) float64 { return names + (wide-names-right)*max(v, 0)/top }
	high := head + rowHigh*float64(len(figures)) + 6
	var s svg
	for v := 0.0; v <= top*1.0001; v += step {
		s.line("grid", x(v), head-6, x(v), high-4)
		s.text("tick mid", x(v), head-11, number(v))
	}
	for i, f := range figures {
		y := head + rowHigh*float64(i)
		s.text("label end", names-10, y+15, f.Name)
		s.bar("ours", x(0), y+2, x(f.Value), 13, fmt.Sprintf("%s: %s %s", f.Name, number(f.Value), unit))
		for _, v := range f.Values {
			s.dot("oursdot", x(v), y+8.5, 2.4)
		}
		if f.Limit != nil {
			s.bar("limit", x(0), y+17, x(*f.Limit), 9, fmt.Sprintf("%s: %s %s", f.LimitName, number(*f.Limit), unit))
			for _, v := range f.Limits {
				s.dot("limitdot", x(v), y+21.5, 1.9)
			}
		}
		s.text("value", wide-right+10, y+15, number(f.Value)+" "+unit)
	}
	return s.picture("medians and rounds, in "+unit, high)
}

// tick is a round step that divides a scale into four to ten.
func tick(most float64) float64 {
	step := math.Pow(10, math.Floor(math.Log10(most))-1)
	for _, f := range []float64{1, 2, 5, 10, 20} {
		if most/(step*f) <= 8 {
			return step * f
		}
	}
	return step * 50
}

// wantedPlot shows, of each figure of which something is wanted, how far it is from that: right of the line is as wanted, on a
// logarithmic scale.
func wantedPlot(figures []Figure) template.HTML {
	const rowHigh = 24.0
	figures = slices.DeleteFunc(slices.Clone(figures), func(f Figure) bool { return f.OK == nil })
	if len(figures) == 0 {
		return ""
	}
	reach := func(f Figure) float64 { // 1: just as wanted; more is better
		ratio := max(*f.Ratio, 1e-9)
		if f.want.most {
			return f.want.ratio / ratio
		}
		return ratio / f.want.ratio
	}
	span := 0.5
	for _, f := range figures {
		span = max(span, math.Abs(math.Log2(reach(f)))*1.05)
	}
	span = min(span, 6)
	middle := names + (wide-names-right)/2
	x := func(f float64) float64 {
		return middle + (wide-names-right)/2*max(-1, min(1, math.Log2(f)/span))
	}
	high := head + rowHigh*float64(len(figures)) + 6
	var s svg
	s.line("goal", middle, head-6, middle, high-4)
	s.text("tick mid", middle, head-11, "as wanted")
	near := middle
	for _, m := range []float64{1.4, 2, 5, 10, 20, 50} {
		if math.Log2(m) > span || x(m)-near < 62 {
			continue // off the scale, or its text would lie on another's
		}
		near = x(m)
		for _, m := range []float64{m, 1 / m} {
			s.line("grid", x(m), head-6, x(m), high-4)
			s.text("tick mid", x(m), head-11, fmt.Sprintf("× %.2g", m))
		}
	}
	for i, f := range figures {
		y := head + rowHigh*float64(i)
		class := map[bool]string{true: "good", false: "bad"}[*f.OK]
		s.text("label end", names-10, y+16, f.Name)
		from, to := min(x(1), x(reach(f))), max(x(1), x(reach(f)))
		s.bar(class+" stem", from, y+10, to, 4, fmt.Sprintf("ratio %.3g, want %s", *f.Ratio, f.Want))
		s.dot(class, x(reach(f)), y+12, 5)
		s.text("value", wide-right+10, y+16, fmt.Sprintf("%.3g (%s)", *f.Ratio, f.Want))
	}
	return s.picture("ratios beside what is wanted", high)
}
