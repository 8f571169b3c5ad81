package bench

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// cores are processors that a process may run on. nil: all that this one may.
type cores []int

// spareCore parts the machine: a core for one process alone, and the rest for everything else.
func spareCore() (alone, rest cores, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, nil, fmt.Errorf("which cores this process may use: %w", err)
	}
	for i := 0; len(rest) < set.Count(); i++ {
		if set.IsSet(i) {
			rest = append(rest, i)
		}
	}
	if len(rest) < 2 {
		return nil, nil, leftOut{"there is one core here, and none to spare"}
	}
	return rest[:1], rest[1:], nil
}

// keep has what the bed starts from now on run there alone. What runs already stays where it is.
func (b *bed) keep(to cores) error {
	if to == nil {
		return nil
	}
	var set unix.CPUSet
	for _, i := range to {
		set.Set(i)
	}
	return b.spawn.Do(func() error { return unix.SchedSetaffinity(0, &set) })
}
