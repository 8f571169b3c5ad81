package bench

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// Limit and ours come by turns, and what each took first counts for nothing.
func TestAlternate(t *testing.T) {
	var order []string
	n := 0.0
	take := func(who string) measure {
		return func(context.Context) (float64, error) { order = append(order, who); n++; return n, nil }
	}
	values, limits, err := alternate(t.Context(), 2, take("limit"), take("ours"))
	if err != nil || !slices.Equal(order, []string{"limit", "ours", "limit", "ours", "limit", "ours"}) || !slices.Equal(values, []float64{4, 6}) || !slices.Equal(limits, []float64{3, 5}) {
		t.Errorf("%v: %v beside %v, %v", order, values, limits, err)
	}
	broken := errors.New("broken")
	fail := func(context.Context) (float64, error) { return 0, broken }
	for _, pair := range [][2]measure{{fail, take("ours")}, {take("limit"), fail}} {
		if _, _, err := alternate(t.Context(), 2, pair[0], pair[1]); !errors.Is(err, broken) {
			t.Errorf("%v", err)
		}
	}
}

func TestMedianAndQuantile(t *testing.T) {
	for _, tc := range []struct {
		sample           []float64
		median, p50, p99 float64
	}{{nil, 0, 0, 0}, {[]float64{3}, 3, 3, 3}, {[]float64{9, 1}, 5, 9, 9}, {[]float64{5, 1, 3}, 3, 3, 5}, {[]float64{4, 1, 3, 2}, 2.5, 3, 4}} {
		was := slices.Clone(tc.sample)
		if m, h, q := median(tc.sample), quantile(tc.sample, 0.5), quantile(tc.sample, 0.99); m != tc.median || h != tc.p50 || q != tc.p99 || !slices.Equal(was, tc.sample) {
			t.Errorf("%v: %v, %v, %v, want %v, %v, %v", was, m, h, q, tc.median, tc.p50, tc.p99)
		}
	}
}

// A figure is judged by the ratio of the medians; without a limit by nothing.
func TestNewFigure(t *testing.T) {
	for _, tc := range []struct {
		values, limits []float64
		want           bound
		ratio          float64
		wanted, says   string
	}{
		{[]float64{2, 4, 9}, []float64{2, 2, 2}, atLeast(2), 2, ">= 2", "as wanted"},
		{[]float64{2, 3.9, 9}, []float64{2, 2, 2}, atLeast(2), 1.95, ">= 2", "MISSED: want >= 2"},
		{[]float64{1}, []float64{4}, atMost(0.25), 0.25, "<= 0.25", "as wanted"},
		{[]float64{2}, []float64{4}, atMost(0.25), 0.5, "<= 0.25", "MISSED: want <= 0.25"},
		{[]float64{2}, []float64{4}, bound{}, 0.5, "", "ratio 0.50"},
		{[]float64{2}, nil, atLeast(1), 0, "", "x: 2 u (2 to 2)"},
	} {
		f := newFigure("x", "u", tc.values, "the limit", tc.limits, tc.want)
		got := 0.0
		if f.Ratio != nil {
			got = *f.Ratio
		}
		if got != tc.ratio || f.Want != tc.wanted || (f.OK == nil) != (tc.wanted == "") || !strings.Contains(f.line(), tc.says) || f.missed() != strings.Contains(tc.says, "MISSED") {
			t.Errorf("%v beside %v: %+v: %s", tc.values, tc.limits, f, f.line())
		}
	}
}
