package place

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/replica"
)

// Pick names a generation of a place.
type Pick struct {
	replica.Generation
	epoch   bool   // the epoch counts too
	Best    string // instead: the metric that it is the best by
	largest bool   // of best: the largest value is the best
	byHint  bool   // instead: the one that the job's best.json names
}

func (p Pick) String() string {
	switch {
	case p.byHint:
		return "that best.json names"
	case p.Best != "":
		return "with the metric " + p.Best
	case p.epoch:
		return fmt.Sprintf("of step %d, epoch %d", p.Step, p.Epoch)
	}
	return fmt.Sprintf("of step %d", p.Step)
}

// stays tells whether it names the same generation tomorrow.
func (p Pick) stays() bool { return p.Best == "" && !p.byHint }

// of finds the generation in a list whose newest come first.
func (p Pick) of(list []catalog.Listed) (l catalog.Listed, ok bool) {
	for _, c := range list {
		m, measured := c.Row.Metrics[p.Best]
		switch {
		case c.State == catalog.Unfinished || c.State == catalog.Deleting:
		case p.Best == "":
			if c.Generation.Step == p.Step && (!p.epoch || c.Generation.Epoch == p.Epoch) {
				return c, true
			}
		case measured && c.State != catalog.Damaged && !math.IsNaN(float64(m)):
			if old := l.Row.Metrics[p.Best]; !ok || p.largest && m > old || !p.largest && m < old {
				l, ok = c, true
			}
		}
	}
	return l, ok
}

// Parse takes an argument apart: the root with job and run, and the generation.
func Parse(arg string) (root string, at *Pick, err error) {
	root, tail, named := strings.Cut(arg, "@")
	if !named || strings.Contains(tail, "/") {
		return arg, nil, nil
	}
	switch tail {
	case "last":
		return root, nil, nil
	case "best":
		return root, &Pick{byHint: true}, nil
	}
	if metric, ok := strings.CutPrefix(tail, "best:"); ok {
		metric, largest := strings.CutSuffix(metric, ":max")
		if metric != "" {
			return root, &Pick{Best: metric, largest: largest}, nil
		}
	}
	step, e, epoch := strings.Cut(tail, ".e")
	p := Pick{epoch: epoch}
	s, err := strconv.ParseUint(step, 10, 38)
	if err == nil && epoch {
		var n uint64
		n, err = strconv.ParseUint(e, 10, 24)
		p.Epoch = replica.Epoch(n)
	}
	if err != nil {
		return "", nil, usage.Wrong(fmt.Errorf("%s: @%s names no generation: want @STEP, as @1200, @1200.e2, @last, @best, @best:METRIC "+
			"or @best:METRIC:max", arg, tail))
	}
	p.Step = replica.Step(s)
	return root, &p, nil
}

// parent cuts the last name off a URL or path; ok is false where there is none to cut.
func parent(url string) (above, name string, ok bool) {
	url = strings.TrimRight(url, "/")
	i := strings.LastIndex(url, "/")
	if i <= 0 || strings.HasSuffix(url[:i+1], "//") {
		return url, "", false
	}
	return url[:i], url[i+1:], true
}
