package demo

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/replicad/replicad/chaos/cluster"
)

// view shows how the demo goes: on a terminal a block that is drawn again and again, under the lines that stay; else lines alone.
type view struct {
	live  bool
	width int

	mu     sync.Mutex // guards all below, and writing
	out    io.Writer
	steps  int
	shown  *cluster.Journal
	began  time.Time
	stage  string
	faulty string
	drawn  int // lines of the block on the screen
	said   time.Time
}

func newView(out io.Writer, j *cluster.Journal, opt Options) *view {
	v := &view{shown: j, steps: opt.Steps, out: out, began: time.Now(), width: 100, live: !opt.Plain && isTerminal(out)}
	if f, ok := out.(*os.File); ok && v.live {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 20 {
			v.width = w
		}
	}
	return v
}

// run draws until stop is closed.
func (v *view) run(stop <-chan struct{}) {
	every := 2 * time.Second
	if v.live {
		every = 120 * time.Millisecond
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			v.mu.Lock()
			v.eraseLocked()
			v.mu.Unlock()
			return
		case <-tick.C:
			v.refresh()
		}
	}
}

// watchOther shows another journal from now on, of so many steps.
func (v *view) watchOther(j *cluster.Journal, steps int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.shown, v.steps = j, steps
}

func (v *view) phase(s string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stage = s
}

func (v *view) fault(kind string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.faulty = kind
}

// say prints a line that stays.
func (v *view) say(text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.eraseLocked()
	fmt.Fprintf(v.out, "%6.1f s  %s\n", time.Since(v.began).Seconds(), text)
	v.said = time.Now()
}

// print writes text as it is.
func (v *view) print(text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.eraseLocked()
	fmt.Fprint(v.out, text)
}

func (v *view) refresh() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.live {
		if time.Since(v.said) >= 2*time.Second {
			fmt.Fprintf(v.out, "%6.1f s  %s\n", time.Since(v.began).Seconds(), v.progress(v.shown))
			v.said = time.Now()
		}
		return
	}
	v.eraseLocked()
	lines := append([]string{v.header()}, v.block(v.shown)...)
	for _, l := range lines {
		fmt.Fprintf(v.out, "%s\n", cut(l, v.width-1))
	}
	v.drawn = len(lines)
}

// eraseLocked takes the block off the screen.
func (v *view) eraseLocked() {
	if v.drawn > 0 {
		fmt.Fprintf(v.out, "\x1b[%dA\x1b[J", v.drawn)
		v.drawn = 0
	}
}

// header needs v.mu.
func (v *view) header() string {
	s := fmt.Sprintf("\x1b[1m%6.1f s  %s\x1b[0m", time.Since(v.began).Seconds(), v.stage)
	if v.faulty != "" {
		s += fmt.Sprintf("  \x1b[1;31mfault: %s\x1b[0m", v.faulty)
	}
	return s
}

// progress is the job on one line.
func (v *view) progress(j *cluster.Journal) (line string) {
	j.View(func() {
		epoch, step := j.LatestLocked()
		done, _ := j.CommittedLocked()
		line = fmt.Sprintf("step %d of %d, epoch %d, committed %d", step, v.steps, epoch, done)
		if loss, ok := j.Loss[step]; ok {
			line += fmt.Sprintf(", loss %.3f", loss)
		}
	})
	return line
}

// block is the live part: progress, ranks by node, and what moved or failed last.
func (v *view) block(j *cluster.Journal) []string {
	var lines []string
	bar := v.progress(j)
	j.View(func() {
		_, step := j.LatestLocked()
		done, _ := j.CommittedLocked()
		lines = append(lines, "  "+gauge(40, step, done, uint64(v.steps))+"  "+bar)
		byNode := map[string][]string{}
		for _, r := range slices.Sorted(maps.Keys(j.Ranks)) {
			s := j.Ranks[r]
			text := fmt.Sprintf("rank %d @ %d", r, s.Step)
			if where := j.StoppedLocked(r); where != "" {
				text += " stopped in " + where
			}
			byNode[s.Node] = append(byNode[s.Node], text)
		}
		for _, name := range slices.Sorted(maps.Keys(j.Status)) {
			s := j.Status[name]
			state := "\x1b[31mdown\x1b[0m  "
			if s != nil {
				state = "\x1b[32mup\x1b[0m    "
				if s.Leader == name {
					state = "\x1b[32mleads\x1b[0m "
				}
			}
			lines = append(lines, fmt.Sprintf("  %s %s %s", name, state, strings.Join(byNode[name], ", ")))
		}
		shown := 0
		for _, e := range slices.Backward(j.Log) {
			if t := textOf(e); t != "" {
				lines = append(lines, "  \x1b[2m"+e.Time.Local().Format("15:04:05.000")+"\x1b[0m "+t)
				if shown++; shown == 5 {
					break
				}
			}
		}
	})
	return lines
}

// textOf is an event for people; empty for those of no interest here.
func textOf(e cluster.LogEvent) string {
	switch e.Event {
	case "fault":
		return fmt.Sprintf("%s sees a fault: %s %s", e.From, e.Kind, e.Detail)
	case "fenced":
		return fmt.Sprintf("epoch %d is fenced", e.Epoch)
	case "planned":
		return fmt.Sprintf("plan: epoch %d goes on from step %d (%s) %s", e.Epoch, e.Step, e.Tier, e.Reason)
	case "moved":
		return fmt.Sprintf("%s fetched %s from %s", e.From, bytesText(e.Bytes), strings.Join(slices.Sorted(maps.Keys(e.By)), ", "))
	case "resumed":
		return fmt.Sprintf("epoch %d is open at step %d", e.Epoch, e.Step)
	case "leader":
		return fmt.Sprintf("%s leads", e.Node)
	case "node_state":
		return fmt.Sprintf("%s sees %s %s", e.From, e.Node, e.State)
	case "durable":
		return fmt.Sprintf("step %d is on disk", e.Step)
	}
	return ""
}

// gauge draws how far training and commits are.
func gauge(width int, step, committed, steps uint64) string {
	if steps == 0 {
		return ""
	}
	at := func(s uint64) int { return int(min(s, steps) * uint64(width) / steps) }
	c, s := at(committed), at(step)
	return "[" + strings.Repeat("=", c) + strings.Repeat("-", max(s-c, 0)) + strings.Repeat(" ", max(width-max(s, c), 0)) + "]"
}

// cut shortens a line to the terminal's width; escape sequences take no room.
func cut(s string, width int) string {
	n, escape := 0, false
	for i, r := range s {
		switch {
		case escape:
			escape = r != 'm'
		case r == '\x1b':
			escape = true
		default:
			if n++; n > width {
				return s[:i] + "\x1b[0m"
			}
		}
	}
	return s
}

func bytesText(n uint64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}
