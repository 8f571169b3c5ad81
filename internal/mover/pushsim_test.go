package mover

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// TestCommitsGoOn: a rank pushes its own part at each step and, of the candidate, its group's with the frozen one, as the host does, to a mirror
// that says "not yet" at times, and to the frozen part until it has an arena. Whatever gives way to what, commits go on, and nothing older than
// what was committed is sent for long.
func TestCommitsGoOn(t *testing.T) {
	for seed := range uint64(40) {
		bubble.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 5))
			var mu sync.Mutex // guards rnd, has, began
			type copyOf struct {
				part replica.Part
				step replica.Step
			}
			has, arena := map[copyOf]bool{}, false
			notYet := rnd.Float64() * 0.6
			slow := map[replica.PartKind]time.Duration{replica.ReplicatedPart: time.Duration(rnd.IntN(900)) * time.Millisecond, replica.PrivatePart: time.Duration(rnd.IntN(200)) * time.Millisecond, replica.FrozenPart: time.Duration(rnd.IntN(1500)) * time.Millisecond}
			n2 := &peer{name: "n2", store: &part{take: func(k transfer.Key) (*place, error) {
				mu.Lock()
				late := rnd.Float64() < notYet
				if k.Part.Kind == replica.FrozenPart && !arena {
					late = true
				}
				mu.Unlock()
				if late {
					return nil, transfer.ErrNotYet
				}
				if k.Part.Kind == replica.ReplicatedPart {
					mu.Lock()
					arena = true
					mu.Unlock()
				}
				time.Sleep(slow[k.Part.Kind])
				return newPlace(), nil
			}}}
			m, told := among(t, nil, n2)
			line := Line{Node: "n2", Job: replica.JobID{2}, Rank: 1}
			make1 := func(p replica.Part, s replica.Step) *part {
				out := newPart(3 * chunk)
				out.man.Part, out.man.Generation.Step = p, s
				out.man.Root = digest(out.man.RootInput())
				return out
			}
			kinds := []replica.Part{replica.OfRank(1), replica.OfGroup(1), replica.FrozenOf(1)}
			frozenHas := false
			step, candidate, commits := replica.Step(1), replica.Step(1), 0
			awaited := func(k transfer.Key) bool {
				return k.Part.Kind == replica.FrozenPart || k.Generation.Step == candidate
			}
			last := time.Now()
			longest := time.Duration(0)
			for tick := range 60 * 20 { // a minute
				time.Sleep(50 * time.Millisecond)
				for done := false; !done; {
					select {
					case p := <-told:
						if p.Err == nil {
							has[copyOf{p.Key.Part, p.Key.Generation.Step}] = true
							frozenHas = frozenHas || p.Key.Part.Kind == replica.FrozenPart
						} else if !errors.Is(p.Err, transfer.ErrNotYet) && !errors.Is(p.Err, ErrSuperseded) {
							t.Errorf("seed %d: %v", seed, p.Err)
						}
					default:
						done = true
					}
				}
				if has[copyOf{kinds[0], candidate}] && has[copyOf{kinds[1], candidate}] && frozenHas {
					longest = max(longest, time.Since(last))
					last = time.Now()
					commits++
					candidate = step
				}
				if tick%6 == 0 {
					step++
					p := make1(kinds[0], step)
					m.Push(line, Push{Key: p.key(), From: p}, awaited)
				}
				if tick%3 == 0 {
					for _, k := range kinds {
						if k.Kind == replica.FrozenPart && frozenHas {
							continue
						}
						s := candidate
						if k.Kind == replica.FrozenPart {
							s = 0
						}
						if !has[copyOf{k, s}] {
							p := make1(k, s)
							m.Push(line, Push{Key: p.key(), From: p}, awaited)
						}
					}
				}
			}
			longest = max(longest, time.Since(last))
			if longest > 20*time.Second {
				t.Errorf("seed %d: not yet %.2f, %v: %d commits, the longest pause %v", seed, notYet, slow, commits, longest)
			}
			m.Close()
		})
	}
}
