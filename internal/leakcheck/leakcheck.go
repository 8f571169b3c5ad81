// Package leakcheck fails a package's tests when a goroutine started by them is still running after the last one.
//
// Use: func TestMain(m *testing.M) { leakcheck.Main(m) }. Goroutines are told apart by their id, not by the names on their
// stacks, so renaming a type can't blind the check; its own tests show that it can fail. It is imported by tests alone and
// must not import anything of this module.
package leakcheck

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"
)

// Grace is how long a goroutine that is on its way out may take after the last test, before it counts as leaked.
const Grace = 5 * time.Second

// Main runs the tests and exits: with their code, or with 1 if they passed but left goroutines behind.
func Main(m *testing.M) {
	before := Running()
	code := m.Run()
	if code == 0 {
		if left := Leaked(before, Grace); len(left) > 0 {
			fmt.Fprintf(os.Stderr, "leakcheck: %d goroutine(s) still run %v after the last test; whoever starts one must wait for it:\n", len(left), Grace)
			for _, stack := range left {
				fmt.Fprintf(os.Stderr, "\n%s\n", stack)
			}
			code = 1
		}
	}
	os.Exit(code)
}

// Snapshot holds the ids of the goroutines that ran at one moment.
type Snapshot map[uint64]struct{}

// Running takes a snapshot.
func Running() Snapshot {
	ids := make(Snapshot)
	for _, g := range goroutines() {
		ids[g.id] = struct{}{}
	}
	return ids
}

// Leaked returns the stacks of goroutines that are not in before and do not end within grace; it returns at once when there are none.
func Leaked(before Snapshot, grace time.Duration) []string {
	deadline := time.After(grace)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		var left []string
		for _, g := range goroutines() {
			if _, old := before[g.id]; !old && !ofRuntime(g.stack) {
				left = append(left, string(g.stack))
			}
		}
		if len(left) == 0 {
			return nil
		}
		select {
		case <-deadline:
			return left
		case <-tick.C:
		}
	}
}

type goroutine struct {
	id    uint64
	stack []byte
}

// goroutines lists all but the calling one.
func goroutines() []goroutine {
	buf := make([]byte, 1<<16)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	var list []goroutine
	for i, stack := range bytes.Split(buf, []byte("\n\n")) {
		if i == 0 {
			continue // runtime.Stack puts the caller first
		}
		id, err := idOf(stack)
		if err != nil {
			panic(err) // the runtime's format changed: the check would be blind
		}
		list = append(list, goroutine{id, bytes.TrimSpace(stack)})
	}
	return list
}

// idOf reads N from "goroutine N [state]:".
func idOf(stack []byte) (uint64, error) {
	rest, ok := bytes.CutPrefix(stack, []byte("goroutine "))
	num, _, ok2 := bytes.Cut(rest, []byte(" "))
	if !ok || !ok2 {
		return 0, fmt.Errorf("leakcheck: unexpected stack %.60q", stack)
	}
	id, err := strconv.ParseUint(string(num), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("leakcheck: unexpected stack %.60q: %w", stack, err)
	}
	return id, nil
}

// ofRuntime tells whether a goroutine belongs to the standard library, which starts it once for the whole process and never
// ends it: the signal relay.
func ofRuntime(stack []byte) bool {
	return bytes.Contains(stack, []byte("created by os/signal.Notify.")) || bytes.Contains(stack, []byte("created by runtime."))
}
