package replica

import (
	"slices"
	"testing"
)

func TestDiffering(t *testing.T) {
	of := func(pairs ...string) (out []RegionDigest) { // "wte1" is region wte with digest '1'
		for _, p := range pairs {
			out = append(out, RegionDigest{Name: p[:len(p)-1], Digest: Digest{p[len(p)-1]}})
		}
		return out
	}
	for _, tc := range []struct {
		name string
		a, b []RegionDigest
		want []string
	}{
		{"equal", of("wte1", "wpe2"), of("wte1", "wpe2"), nil},
		{"one", of("wte1", "wpe2"), of("wte1", "wpe3"), []string{"wpe"}},
		{"all, in the first one's order", of("wte1", "wpe2", "ln3"), of("wte4", "wpe4", "ln4"), []string{"wte", "wpe", "ln"}},
		{"another order is no difference", of("wte1", "wpe2"), of("wpe2", "wte1"), nil},
		{"only one side has it", of("wte1", "wpe2"), of("ln3", "wte1"), []string{"wpe", "ln"}},
		{"nothing", nil, nil, nil},
	} {
		if got := Differing(tc.a, tc.b); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}
