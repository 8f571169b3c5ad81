package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/host"
	"github.com/replicad/replicad/internal/journal/journaltest"
	"github.com/replicad/replicad/internal/leader"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/internal/racing"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// voters is a cluster for a linker: what each says to a hello is its test's to choose.
type voters struct {
	t     *testing.T
	links sync.WaitGroup

	mu    sync.Mutex // guards dials
	dials []replica.NodeName
	limit int // dials after which the test is over
	moved func() <-chan struct{}

	failed []string // what the daemon was told of links that failed; the linker's until it has ended
	stop   context.CancelCauseFunc

	hello  func() (control.Hello, bool)                                                      // nil: the daemon stays
	refuse func(n replica.NodeName) error                                                    // nil, or an error of the dial; nil: none
	answer func(n replica.NodeName) (control.Welcome, func(ctx context.Context, c net.Conn)) // then: what it does with a link it took
}

var errDials = errors.New("dialled too often")

// dial counts; it refuses a node that has no answer.
func (v *voters) dial(ctx context.Context, n replica.NodeName, addr string) (net.Conn, error) {
	v.mu.Lock()
	v.dials = append(v.dials, n)
	over := len(v.dials) >= v.limit
	v.mu.Unlock()
	if over {
		v.stop(errDials)
		return nil, errDials
	}
	if want := addrOf(n); addr != want {
		v.t.Errorf("node %s dialled at %s, want %s", n, addr, want)
	}
	if v.refuse != nil {
		if err := v.refuse(n); err != nil {
			return nil, err
		}
	}
	w, then := v.answer(n)
	if w == (control.Welcome{}) {
		return nil, fmt.Errorf("nobody at %s", addr)
	}
	near, far := net.Pipe()
	v.links.Go(func() {
		defer far.Close()
		k, b, err := wire.Read(far, control.MaxLinkFrame)
		if err != nil || k != control.KindHello {
			v.t.Errorf("node %s reads kind %d (%v), want a hello", n, k, err)
			return
		}
		if h, err := control.DecodeAs[control.Hello](b); err != nil || h.Node.Name != "me" {
			v.t.Errorf("node %s reads a hello of %+v: %v", n, h, err)
		}
		if wire.Write(far, control.KindWelcome, w) == nil && then != nil {
			then(ctx, far)
		}
	})
	return near, nil
}

func addrOf(n replica.NodeName) string { return string(n) + ":7000" }

func redirect(to replica.NodeName) control.Welcome {
	return control.Welcome{Reason: "not the leader", Leader: to, Address: addrOf(to)}
}

// run runs a linker against the voters for so long, or until the limit of dials, and returns what the host was told.
func (v *voters) run(limit int, names []replica.NodeName, self func() (replica.NodeName, string, uint64), forSoLong time.Duration) (told []host.Event) {
	ctx, cancel := context.WithCancelCause(context.Background())
	timer := time.AfterFunc(forSoLong, func() { cancel(nil) })
	defer timer.Stop()
	v.limit, v.stop = limit, cancel
	if self == nil {
		self = func() (replica.NodeName, string, uint64) { return "", "", 0 }
	}
	if v.hello == nil {
		v.hello = func() (control.Hello, bool) { return control.Hello{Node: replica.Node{Name: "me"}}, true }
	}
	k := &linker{hello: v.hello, self: self, moved: v.moved, dial: v.dial,
		post: func(ev host.Event) { told = append(told, ev) }, failed: func(to voterAddr, err error) { v.failed = append(v.failed, fmt.Sprintf("%s: %v", to.name, err)) }}
	for _, n := range names {
		k.voters = append(k.voters, voterAddr{n, addrOf(n)})
	}
	k.run(ctx)
	v.links.Wait()
	if errors.Is(context.Cause(ctx), errDials) {
		v.t.Errorf("%d dials: the last of them %v", len(v.dials), v.dials[max(0, len(v.dials)-8):])
	}
	return told
}

// linkRetryMost is the longest that linkRetry says.
const linkRetryMost = 60 * time.Millisecond

var abc = []replica.NodeName{"a", "b", "c"}

func TestLinkerFollowsARedirect(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := &voters{t: t, answer: func(n replica.NodeName) (control.Welcome, func(context.Context, net.Conn)) {
			if n == "c" {
				return control.Welcome{OK: true, Term: 4}, func(ctx context.Context, c net.Conn) {
					wire.Write(c, control.KindCreateReply, control.CreateReply{ID: 9})
					wire.Read(c, control.MaxLinkFrame) // until the node hangs up
				}
			}
			return redirect("c"), nil
		}}
		told := v.run(100, abc, nil, control.LinkSilent/2)
		if !slices.Equal(v.dials, []replica.NodeName{"a", "c"}) {
			t.Errorf("dialled %v, want a and then c", v.dials)
		}
		if len(told) != 3 {
			t.Fatalf("told %v", told)
		}
		up, _ := told[0].(host.LinkUp)
		said, _ := told[1].(host.FromLeader)
		down, _ := told[2].(host.LinkDown)
		if up.Leader != "c" || up.Welcome.Term != 4 || up.Link == nil || said.Link != up.Link || said.Msg != (control.CreateReply{ID: 9}) || down.Link != up.Link || down.Err == nil {
			t.Errorf("told %+v, %+v, %+v", up, said, down)
		}
	})
}

// A daemon that was let go links to no other leader: that one would count on it.
func TestLinkerEndsWithItsDaemon(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		goes := false
		v := &voters{t: t, answer: func(n replica.NodeName) (control.Welcome, func(context.Context, net.Conn)) {
			return control.Welcome{OK: true, Term: 4}, func(context.Context, net.Conn) { goes = true } // it hangs up
		}}
		v.hello = func() (control.Hello, bool) { return control.Hello{Node: replica.Node{Name: "me"}}, !goes }
		told := v.run(100, abc, nil, control.LinkSilent)
		if len(told) != 2 || len(v.failed) != 0 {
			t.Errorf("the host is told %v, and links have failed: %q; want one link, and its end", told, v.failed)
		}
	})
}

func TestLinkerGoesRoundTheVoters(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := &voters{t: t, answer: func(n replica.NodeName) (control.Welcome, func(context.Context, net.Conn)) {
			if n == "b" {
				return control.Welcome{Reason: control.NotLeader}, nil
			}
			return control.Welcome{}, nil
		}}
		told := v.run(1000, abc, nil, time.Second)
		if len(told) != 0 {
			t.Errorf("no link came up, and the host was told %v", told)
		}
		for i, n := range v.dials {
			if n != abc[i%3] {
				t.Fatalf("dialled %v, want the voters in turn", v.dials)
			}
		}
		if n := len(v.dials); n < 10 || n > 60 {
			t.Errorf("%d dials in a second, want 16 to 50", n)
		}
	})
}

// What this node's own Raft says comes before the round.
func TestLinkerAsksItsOwnRaft(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := &voters{t: t, answer: func(replica.NodeName) (control.Welcome, func(context.Context, net.Conn)) {
			return control.Welcome{}, nil
		}}
		v.run(1000, abc, func() (replica.NodeName, string, uint64) { return "b", addrOf("b"), 1 }, 200*time.Millisecond)
		if len(v.dials) < 2 || slices.ContainsFunc(v.dials, func(n replica.NodeName) bool { return n != "b" }) {
			t.Errorf("dialled %v, want b alone", v.dials)
		}
	})
}

// While leadership moves two voters may each take the other for the leader, or one that is down be named by all.
func TestLinkerNeverSpins(t *testing.T) {
	for what, answer := range map[string]func(n replica.NodeName) control.Welcome{
		"each names the other": func(n replica.NodeName) control.Welcome {
			return redirect(map[replica.NodeName]replica.NodeName{"a": "b", "b": "a", "c": "a"}[n])
		},
		"in a circle": func(n replica.NodeName) control.Welcome {
			return redirect(map[replica.NodeName]replica.NodeName{"a": "b", "b": "c", "c": "a"}[n])
		},
		"itself": redirect,
		"one that is down": func(n replica.NodeName) control.Welcome {
			if n == "c" {
				return control.Welcome{}
			}
			return redirect("c")
		},
		"a link that ends at once": func(n replica.NodeName) control.Welcome { return control.Welcome{OK: true} },
	} {
		t.Run(what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				v := &voters{t: t, answer: func(n replica.NodeName) (control.Welcome, func(context.Context, net.Conn)) { return answer(n), nil }}
				v.run(120, abc, nil, time.Second) // at most two dials each 20 ms
				tried := map[replica.NodeName]bool{}
				for _, n := range v.dials {
					tried[n] = true
				}
				if len(tried) < 3 {
					t.Errorf("only %v were tried in %d dials", tried, len(v.dials))
				}
			})
		})
	}
}

// A leader that says nothing is left after LinkSilent; a beat is a word.
func TestSilentLeaderIsLeft(t *testing.T) {
	for _, beats := range []int{0, 3, 25} {
		bubble.Test(t, func(t *testing.T) {
			v := &voters{t: t, answer: func(n replica.NodeName) (control.Welcome, func(context.Context, net.Conn)) {
				return control.Welcome{OK: true}, func(_ context.Context, c net.Conn) {
					for range beats {
						time.Sleep(control.LinkBeat)
						if wire.Write(c, control.KindBeat, control.Beat{}) != nil {
							return
						}
					}
					wire.Read(c, control.MaxLinkFrame)
				}
			}}
			began := time.Now()
			var down time.Duration
			lasts := time.Duration(beats)*control.LinkBeat + control.LinkSilent
			told := v.run(100, []replica.NodeName{"a"}, nil, lasts+control.LinkSilent/2)
			for _, ev := range told {
				if ev, ok := ev.(host.LinkDown); ok && down == 0 {
					down = time.Since(began)
					if !errors.Is(ev.Err, errLeaderSilent) {
						t.Errorf("after %d beats the link went down with %v, want %v", beats, ev.Err, errLeaderSilent)
					}
				}
			}
			if down == 0 {
				t.Errorf("after %d beats the silent leader was not left", beats)
			}
			if n := len(v.dials); n != 2 {
				t.Errorf("after %d beats: %d dials in %v, want one, and another %v after the last word", beats, n, lasts+control.LinkSilent/2, control.LinkSilent)
			}
		})
	}
}

// A voter hears of a new leader from its own Raft, long before the old link's silence has lasted. What its Raft still says of an
// earlier term, or of the same one, must not cost a good link.
func TestOwnRaftEndsTheFormerLeadersLink(t *testing.T) {
	const moves = control.LinkSilent / 4
	for what, c := range map[string]struct {
		leader replica.NodeName
		term   uint64
		leaves bool
	}{
		"another leader, a later term":   {"b", 5, true},
		"another leader, the same term":  {"b", 4, false},
		"another leader, an earlier one": {"b", 3, false},
		"the same leader, a later term":  {"a", 5, false},
		"no leader, a later term":        {"", 5, false},
	} {
		t.Run(what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				v := &voters{t: t, answer: func(n replica.NodeName) (control.Welcome, func(context.Context, net.Conn)) {
					term := uint64(4)
					if n == "b" {
						term = 5
					}
					return control.Welcome{OK: true, Term: term}, func(_ context.Context, c net.Conn) { wire.Read(c, control.MaxLinkFrame) }
				}}
				began := time.Now()
				first, second := make(chan struct{}), make(chan struct{})
				v.moved = func() <-chan struct{} {
					if time.Since(began) < moves {
						return first
					}
					return second
				}
				time.AfterFunc(moves, func() { close(first) })
				told := v.run(100, abc, func() (replica.NodeName, string, uint64) {
					if time.Since(began) < moves {
						return "a", addrOf("a"), 4
					}
					return c.leader, addrOf(c.leader), c.term
				}, control.LinkSilent-time.Millisecond)
				left := slices.ContainsFunc(told, func(ev host.Event) bool {
					down, ok := ev.(host.LinkDown)
					return ok && errors.Is(down.Err, errLeaderMoved)
				})
				want := []replica.NodeName{"a"}
				if c.leaves {
					want = append(want, "b")
				}
				if left != c.leaves || !slices.Equal(v.dials, want) {
					t.Errorf("left %v, dialled %v; want %v, %v", left, v.dials, c.leaves, want)
				}
			})
		})
	}
}

// The leader has died, and for a while both others still name it: its address takes connections and answers none. It must not
// cost more than a glance at each turn, and the first who follows the new leader is followed.
func TestADeadLeaderIsNamedAWhileLonger(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		began := time.Now()
		const diesAt, knownAt = control.LinkBeat, control.LinkBeat + control.LinkSilent + 200*time.Millisecond
		v := &voters{t: t}
		v.answer = func(n replica.NodeName) (control.Welcome, func(context.Context, net.Conn)) {
			switch at := time.Since(began); {
			case n == "c" && at < diesAt:
				return control.Welcome{OK: true, Term: 4}, func(_ context.Context, c net.Conn) { wire.Read(c, control.MaxLinkFrame) }
			case at < knownAt:
				return redirect("c"), nil
			case n == "b":
				return control.Welcome{OK: true, Term: 5}, func(_ context.Context, c net.Conn) { wire.Read(c, control.MaxLinkFrame) }
			}
			return redirect("b"), nil
		}
		var linked time.Duration
		dial := func(ctx context.Context, n replica.NodeName, addr string) (net.Conn, error) {
			if n == "c" && time.Since(began) >= diesAt {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
			return v.dial(ctx, n, addr)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		defer time.AfterFunc(2*knownAt, func() { cancel(nil) }).Stop()
		v.limit, v.stop = 100, cancel
		k := &linker{hello: func() (control.Hello, bool) { return control.Hello{Node: replica.Node{Name: "me"}}, true }, dial: dial, failed: func(voterAddr, error) {},
			self: func() (replica.NodeName, string, uint64) { return "c", addrOf("c"), 4 }, voters: []voterAddr{{"a", addrOf("a")}, {"b", addrOf("b")}, {"c", addrOf("c")}},
			post: func(ev host.Event) {
				if up, ok := ev.(host.LinkUp); ok && up.Leader == "b" {
					linked = time.Since(began)
					cancel(nil)
				}
			}}
		k.run(ctx)
		v.links.Wait()
		if worst := knownAt + linkGlance + 2*linkRetryMost; linked == 0 || linked > worst {
			t.Errorf("linked to the new leader after %v, which was known after %v; want at most %v", linked, knownAt, worst)
		}
	})
}

// A leader that was only slow is found again at once.
func TestALostLeaderThatLivesIsFoundAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		began := time.Now()
		var links []time.Duration
		v := &voters{t: t, answer: func(n replica.NodeName) (control.Welcome, func(context.Context, net.Conn)) {
			if n != "c" {
				return redirect("c"), nil
			}
			links = append(links, time.Since(began))
			return control.Welcome{OK: true, Term: 4}, func(_ context.Context, c net.Conn) {
				if len(links) > 1 {
					wire.Read(c, control.MaxLinkFrame)
				}
			}
		}}
		v.run(100, abc, func() (replica.NodeName, string, uint64) { return "c", addrOf("c"), 4 }, control.LinkSilent/2)
		if len(links) < 2 || links[1] > 4*linkRetryMost {
			t.Errorf("linked after %v, want again within a round of the voters", links)
		}
	})
}

// forTargets counts dials.
func (v *voters) forTargets() map[replica.NodeName]int {
	n := map[replica.NodeName]int{}
	for _, name := range v.dials {
		n[name]++
	}
	return n
}

// A node that is refused asks again ever more slowly, and says why; one that is told so by every other voter does not ask those more often.
func TestARefusedNodeBacksOff(t *testing.T) {
	identity := fmt.Errorf("handshake: %w", endpoint.ErrIdentity)
	refuses := control.Welcome{Reason: "incarnation 5 was superseded by 7: stop one of them", Refused: true}
	for what, c := range map[string]struct {
		voters []replica.NodeName
		answer func(n replica.NodeName) (control.Welcome, error)
		says   string
		most   int // dials in a minute
	}{
		"by the only voter": {abc[:1], func(replica.NodeName) (control.Welcome, error) { return refuses, nil }, "a: this node is refused: link to a: incarnation 5 was superseded", 30},
		"by the leader, which the others name": {abc, func(n replica.NodeName) (control.Welcome, error) {
			if n == "a" {
				return refuses, nil
			}
			return redirect("a"), nil
		}, "a: this node is refused: link to a: incarnation 5 was superseded", 60},
		"in each handshake":    {abc, func(replica.NodeName) (control.Welcome, error) { return control.Welcome{}, identity }, "b: this node is refused: link to b at b:7000: handshake", 90},
		"in another's version": {abc[:1], func(replica.NodeName) (control.Welcome, error) { return control.Welcome{}, wire.ErrVersion }, "a: this node is refused: link to a", 30},
	} {
		t.Run(what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				v := &voters{t: t, answer: func(n replica.NodeName) (control.Welcome, func(context.Context, net.Conn)) {
					w, _ := c.answer(n)
					return w, nil
				}}
				v.refuse = func(n replica.NodeName) error { _, err := c.answer(n); return err }
				v.run(10000, c.voters, nil, time.Minute)
				if n := len(v.dials); n < 10 || n > c.most {
					t.Errorf("%d dials in a minute, want 10 to %d: %v", n, c.most, v.forTargets())
				}
				if len(v.failed) < 5 || !slices.ContainsFunc(v.failed, func(s string) bool { return strings.HasPrefix(s, c.says) }) {
					t.Errorf("says %.3v, want %q", v.failed, c.says)
				}
			})
		})
	}
}

// One voter that refuses this node costs the search for a leader among the others nothing.
func TestARefusalSlowsNoSearch(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		v := &voters{t: t, answer: func(n replica.NodeName) (control.Welcome, func(context.Context, net.Conn)) {
			return control.Welcome{Reason: control.NotLeader}, nil
		}}
		v.refuse = func(n replica.NodeName) error {
			if n == "a" {
				return endpoint.ErrIdentity
			}
			return nil
		}
		v.run(10000, abc, nil, time.Minute)
		n := v.forTargets()
		if n["a"] > 30 || n["b"] < 60*1000/2/60 || n["c"] < 60*1000/2/60 {
			t.Errorf("dialled %v in a minute: want b and c as often as without a, which refuses", n)
		}
		if slices.ContainsFunc(v.failed, func(s string) bool { return !strings.HasPrefix(s, "a: ") }) {
			t.Errorf("that a voter does not lead is no failure: %v", v.failed)
		}
	})
}

// A refused node that becomes welcome, or whose new leader takes it, is linked within the longest pause.
func TestARefusedNodeIsTakenOnceItMayBe(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		began := time.Now()
		const until = 30 * time.Second
		v := &voters{t: t, answer: func(n replica.NodeName) (control.Welcome, func(context.Context, net.Conn)) {
			switch {
			case time.Since(began) < until && n == "a":
				return control.Welcome{Reason: "no", Refused: true}, nil
			case time.Since(began) < until:
				return redirect("a"), nil
			case n == "b":
				return control.Welcome{OK: true}, func(_ context.Context, c net.Conn) { wire.Read(c, control.MaxLinkFrame) }
			}
			return redirect("b"), nil
		}}
		told := v.run(10000, abc, nil, until+linkAloof+2*linkRetryMost)
		if len(told) == 0 {
			t.Errorf("not linked to the new leader, dialled %v", v.forTargets())
		}
	})
}

func TestNoLinkWithoutAWelcome(t *testing.T) {
	for what, far := range map[string]func(c net.Conn){
		"another message":    func(c net.Conn) { wire.Write(c, control.KindBeat, control.Beat{}) },
		"a broken welcome":   func(c net.Conn) { wire.Write(c, control.KindWelcome, "yes") },
		"nothing":            func(c net.Conn) { wire.Read(c, control.MaxLinkFrame) },
		"nothing, hangs up":  func(c net.Conn) {},
		"not even a hearing": nil,
	} {
		t.Run(what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				var links sync.WaitGroup
				k := &linker{hello: func() (control.Hello, bool) { return control.Hello{}, true }, post: func(ev host.Event) { t.Errorf("the host is told %+v", ev) }}
				k.dial = func(ctx context.Context, _ replica.NodeName, _ string) (net.Conn, error) {
					if far == nil {
						<-ctx.Done()
						return nil, context.Cause(ctx)
					}
					near, c := net.Pipe()
					links.Go(func() {
						defer c.Close()
						if _, _, err := wire.Read(c, control.MaxLinkFrame); err == nil {
							far(c)
						}
					})
					return near, nil
				}
				began := time.Now()
				_, err := k.once(t.Context(), voterAddr{"a", addrOf("a")}, linkDial)
				if took := time.Since(began); err == nil || took > control.LinkHandshake {
					t.Errorf("%v after %v, want an error after at most %v", err, took, control.LinkHandshake)
				} else if !strings.Contains(err.Error(), "a") {
					t.Errorf("error %q names no node", err)
				}
				links.Wait()
			})
		})
	}
}

// The operator of the refused node reads the reason there, and where its own certificate has expired, that.
func TestARefusedNodeKnowsItsOwnCertificate(t *testing.T) {
	log, dir := &fixture.Lines{}, t.TempDir()
	if err := pki.Init(dir, []replica.NodeName{"n2"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	id, err := pki.Load(file("ca.pem"), file("n2.pem"), file("n2-key.pem"), file("gossip.key"))
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{cfg: &config.Config{Node: "n2"}, log: journaltest.New(t, log), id: id}
	d.trust = newTrust(id, dir, d.log, nil, func() {})
	refused := fmt.Errorf("welcome: %w", endpoint.ErrIdentity)
	for range 3 {
		d.linkFailed(voterAddr{"a", "a:7000"}, refused)
	}
	d.linkFailed(voterAddr{"b", "b:7000"}, context.DeadlineExceeded)
	list := d.baseStatus().NoLink
	if len(list) != 2 || list[0].Node != "a" || list[0].Tries != 3 || list[0].Why != refused.Error() || list[1].Why != context.DeadlineExceeded.Error() {
		t.Fatalf("status shows %+v", list)
	}
	if n := log.Count(`"level":"warn"`); n != 2 {
		t.Errorf("%d warnings, want one for each voter", n)
	}
	end := id.NotAfter()
	for _, c := range []struct {
		err  error
		now  time.Time
		says string
	}{{refused, end.Add(time.Minute), "n2.pem expired at " + end.Format(time.RFC3339)}, {refused, end.Add(-time.Minute), ""}, {context.DeadlineExceeded, end.Add(time.Minute), ""}} {
		why := whyNoLink(c.err, "n2.pem", end, c.now)
		if !strings.HasSuffix(why, c.err.Error()) || !strings.Contains(why, c.says) || (c.says != "") != strings.Contains(why, "replicad pki renew") {
			t.Errorf("%v at %v: %q", c.err, c.now, why)
		}
	}
}

// refusing is a log in which nothing is proposed with success.
type refusing struct{ leader.Log }

func (refusing) ID() replica.NodeName { return "n1" }
func (refusing) Propose(context.Context, replica.Command) (uint64, lock.Outcome, error) {
	return 0, lock.Outcome{}, errors.New("this log takes nothing")
}

// A view of 80,000 ranks, larger than any frame, goes over a link.
func TestALargeViewPasses(t *testing.T) {
	world := uint32(80_000)
	if racing.On {
		world = 10_000 // in several pieces as well
	}
	job := fixture.LargeJob(world)
	c := leader.NewStepped(refusing{}, fixture.Cluster, 7, config.Default().Timing, journaltest.New(t, io.Discard))
	nodes := map[replica.NodeName]replica.Node{"n2": {Name: "n2", Incarnation: 22}, "n9": {Name: "n9", Incarnation: 99}}
	c.Follow(t.Context(), lock.View{Cluster: fixture.Cluster, Era: 1, Index: 10, Nodes: nodes, Jobs: map[replica.JobID]*replica.Job{job.ID: job}})
	first, silent := net.Pipe()
	defer silent.Close()
	c.Link(t.Context(), nodes["n9"], control.NewLink(first, control.ToNode)) // the view is encoded for it, and ready for the next
	near, far := net.Pipe()
	var links sync.WaitGroup
	links.Go(func() {
		defer far.Close()
		if k, _, err := wire.Read(far, control.MaxHello); err != nil || k != control.KindHello {
			t.Errorf("kind %d: %v", k, err)
			return
		}
		l := control.NewLink(far, control.ToNode)
		links.Go(func() { c.Link(t.Context(), nodes["n2"], l) })
		l.Run(t.Context(), func(wire.Kind, []byte) error { return nil }) //nolint:errcheck // it ends with the test
	})
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	defer cancel()
	var got *control.View
	k := &linker{hello: func() (control.Hello, bool) { return control.Hello{Node: replica.Node{Name: "n2"}}, true }, self: func() (replica.NodeName, string, uint64) { return "", "", 0 },
		dial: func(context.Context, replica.NodeName, string) (net.Conn, error) { return near, nil },
		post: func(ev host.Event) {
			if said, ok := ev.(host.FromLeader); ok {
				if v, ok := said.Msg.(control.View); ok {
					got = &v
					cancel()
				}
			}
		}}
	_, err := k.once(ctx, voterAddr{"n1", "n1:7000"}, linkDial)
	links.Wait()
	if got == nil || err != nil || len(got.Jobs) != 1 || !reflect.DeepEqual(got.Jobs[0], job) {
		t.Errorf("the view does not arrive as it is: %v", err)
	}
}
