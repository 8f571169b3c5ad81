package bench

import (
	"context"
	"slices"
)

// measure takes one value.
type measure func(ctx context.Context) (float64, error)

// alternate takes the limit and ours by turns, so many times each. What each took first is left out: it found caches cold, pages
// unmapped and windows small.
func alternate(ctx context.Context, rounds int, limit, ours measure) (values, limits []float64, err error) {
	for i := range rounds + 1 {
		l, err := limit(ctx)
		if err != nil {
			return nil, nil, err
		}
		v, err := ours(ctx)
		if err != nil {
			return nil, nil, err
		}
		if i > 0 {
			values, limits = append(values, v), append(limits, l)
		}
	}
	return values, limits, nil
}

// median of a sample; 0 of none.
func median(sample []float64) float64 {
	if len(sample) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(sample))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// quantile of a sample, by the nearest rank; 0 of none.
func quantile(sample []float64, q float64) float64 {
	if len(sample) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(sample))
	return s[min(int(q*float64(len(s))), len(s)-1)]
}
