//go:build cgo

package trouble_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/replicad/replicad/internal/pace"
	"github.com/replicad/replicad/libreplicad"
	"github.com/replicad/replicad/replica"
)

// rankMode is the environment variable that makes the test binary a rank; its value is a rankSpec.
const rankMode = "TROUBLE_RANK"

// severalChunks is the least Floats with more than one of the chunks of a MiB that run cuts parts into. The race detector looks at each byte that a
// daemon copies, hashes or sends, at every step: a test that needs no large state takes as much longer as its state is larger.
const severalChunks = 3 << 17

// rankSpec says what kind of rank.
type rankSpec struct {
	Steps    int           // then it leaves; 0: never
	Floats   int           // of weights; 0: 1000
	Pace     time.Duration // from step to step; 0: 50 ms, or the cores would train and do nothing else
	Token    string
	Twice    bool          // a second session is opened in the same process
	Stubborn bool          // SIGTERM is ignored
	Rest     int           // before this step it declares a pause, and stands still for RestFor
	RestFor  time.Duration // 0: 3 s
	Reject   bool          // a process that did not begin the job rejects the first state it is given
	Unequal  bool          // a further replicated region, "bias", starts as the rank's own number
	Poison   int           // from the update of this step on the first weight is not a number
	Sound    string        // while this file is there it is one all the same
	Own      string        // its private region changes in the window alone: "window" declares it so, "flagged" with InWindow as well
	Stuck    string        // the process that finds this file removes it and stands still, before it opens anything
	Free     bool          // it meets nobody at its steps, as ranks whose collectives go over other ways than the daemons'
	Slow     string        // a directory: it attaches once a file "attach" is there, and comes to rest once "join" is
	Patience time.Duration // for open and attach; 0: the tests'
	Late     string        // after a fence it comes to rest only once this file is there
	Meet     string        // address of the collective at which the ranks wait for each other; empty: the rendezvous
}

func (s rankSpec) env() []string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // plain data
	}
	return []string{rankMode + "=" + string(b)}
}

// trainer is a rank whose weights are all equal to the step they are of.
type trainer struct {
	*libreplicad.Session
	spec        rankSpec
	rank, world int
	weights     []float32
	moved       []uint64
	began       bool
	bias        []float32 // nil unless Unequal
	base        []uint64  // kept once, as no step changes it
}

// rankMain trains. What happens is a JSON line on standard output, as the daemon's log is.
func rankMain() int {
	t := &trainer{rank: envInt("REPLICAD_RANK"), world: envInt("REPLICAD_WORLD")}
	if err := json.Unmarshal([]byte(os.Getenv(rankMode)), &t.spec); err != nil {
		t.say("error", fields{"text": err.Error()})
		return 2
	}
	if t.spec.Stubborn {
		signal.Ignore(syscall.SIGTERM)
	}
	if t.spec.Floats == 0 {
		t.spec.Floats = 1000
	}
	if t.spec.Pace == 0 {
		t.spec.Pace = 50 * time.Millisecond
	}
	if t.spec.Patience == 0 {
		t.spec.Patience = patience
	}
	if t.spec.Stuck != "" && os.Remove(t.spec.Stuck) == nil {
		t.say("stuck", nil)
		select {}
	}
	err := t.train(context.Background())
	if e := new(libreplicad.Error); errors.As(err, &e) {
		t.say("error", fields{"code": e.Code, "text": err.Error()})
	} else if err != nil {
		t.say("error", fields{"text": err.Error()})
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, libreplicad.ErrStopped):
		return 3
	}
	return 1
}

func envInt(name string) int {
	n, err := strconv.Atoi(os.Getenv(name))
	if err != nil {
		fmt.Printf("%s: %v\n", name, err)
	}
	return n
}

func (t *trainer) say(event string, more fields) {
	f := fields{"event": event, "rank": t.rank, "pid": os.Getpid()}
	for k, v := range more {
		f[k] = v
	}
	b, err := json.Marshal(f)
	if err != nil {
		panic(err) // plain data
	}
	_, _ = os.Stdout.Write(append(b, '\n')) // nobody listens: SIGPIPE ends the rank
}

// open registers a region that steps change, one of this rank's alone, and one that is kept once, and attaches.
func (t *trainer) open(ctx context.Context) (*libreplicad.Session, []float32, []uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, pace.Of(t.spec.Patience))
	defer cancel()
	s, err := libreplicad.Open(ctx, libreplicad.Options{Rank: -1, Token: t.spec.Token, World: uint32(t.world), Group: replica.GroupID(envInt("REPLICAD_GROUP"))})
	if err != nil {
		return nil, nil, nil, err
	}
	w, weights, err := libreplicad.AllocFloat32s(t.spec.Floats)
	if err != nil {
		return nil, nil, nil, err
	}
	p, moved, err := libreplicad.AllocUint64s(8)
	if err != nil {
		return nil, nil, nil, err
	}
	b, base, err := libreplicad.AllocUint64s(1024)
	if err != nil {
		return nil, nil, nil, err
	}
	t.base = base
	regions := []libreplicad.Region{
		{Name: "weights", DType: replica.F32, Kind: replica.Replicated, Class: replica.Window, Data: w},
		{Name: "moved", DType: replica.U64, Kind: replica.Private, Class: replica.Volatile, Data: p},
		{Name: "base", DType: replica.U64, Kind: replica.Replicated, Class: replica.Frozen, Data: b}}
	if t.spec.Own != "" {
		regions[1].Class = replica.Window
	}
	if t.spec.Own == "flagged" {
		regions[1].Flags = replica.InWindow
	}
	if t.spec.Unequal {
		b, bias, err := libreplicad.AllocFloat32s(10)
		if err != nil {
			return nil, nil, nil, err
		}
		t.bias = bias
		regions = append(regions, libreplicad.Region{Name: "bias", DType: replica.F32, Kind: replica.Replicated, Class: replica.Window, Data: b})
	}
	if err := s.Register(regions...); err != nil {
		return nil, nil, nil, err
	}
	t.hold("attach")
	return s, weights, moved, s.Attach(ctx)
}

func (t *trainer) train(ctx context.Context) (err error) {
	if t.Session, t.weights, t.moved, err = t.open(ctx); err != nil {
		return err
	}
	t.say("attached", nil)
	t.hold("join")
	if t.spec.Twice {
		_, _, _, err := t.open(ctx)
		t.say("second", fields{"text": fmt.Sprint(err), "refused": errors.Is(err, libreplicad.ErrRefused)})
	}
	for {
		err := t.epoch(ctx)
		if !errors.Is(err, libreplicad.ErrFenced) {
			return err
		}
		t.say("fenced", nil)
		if t.spec.Late != "" {
			t.awaitFile(t.spec.Late)
		}
	}
}

// awaitFile returns once a file is there.
func (t *trainer) awaitFile(path string) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ; ; <-tick.C {
		if _, err := os.Stat(path); err == nil {
			return
		}
	}
}

// poisoned tells whether the update of a step goes wrong.
func (t *trainer) poisoned(step replica.Step) bool {
	if t.spec.Poison == 0 || int(step) < t.spec.Poison {
		return false
	}
	_, err := os.Stat(t.spec.Sound)
	return t.spec.Sound == "" || err != nil
}

// hold waits, where the rank is slow, until it may go on.
func (t *trainer) hold(what string) {
	for t.spec.Slow != "" {
		if _, err := os.Stat(filepath.Join(t.spec.Slow, what)); err == nil {
			return
		}
		<-time.After(time.Millisecond)
	}
}

// epoch joins and trains until the last step or the fence.
func (t *trainer) epoch(ctx context.Context) error {
	o, err := t.Join(ctx)
	if err != nil {
		return err
	}
	if o.Action == libreplicad.Init {
		t.began = true
		t.fill(o.Step)
		if err := t.begins(ctx, o.Step); err != nil {
			return err
		}
		for i := range t.base {
			t.base[i] = uint64(i) + 1
		}
		for i := range t.bias {
			t.bias[i] = float32(t.rank)
		}
		if err := t.SealInitial(ctx); err != nil {
			return err
		}
		return t.epoch(ctx)
	}
	if err := t.Load(); err != nil {
		return err
	}
	if t.spec.Reject && !t.began {
		t.began = true
		t.say("rejects", fields{"step": o.Step})
		if err := t.Reject("a NaN in weights"); err != nil {
			return err
		}
		return t.epoch(ctx)
	}
	for i, v := range t.weights {
		if v != float32(o.Step) || t.moved[0] != uint64(o.Step) {
			return fmt.Errorf("weight %d is %v and the private counter %d after a load of step %d", i, v, t.moved[0], o.Step)
		}
	}
	for i, v := range t.base {
		if v != uint64(i)+1 {
			return fmt.Errorf("word %d of what is kept once is %d after a load of step %d", i, v, o.Step)
		}
	}
	t.say("loaded", fields{"step": o.Step, "source": o.Source.String(), "epoch": o.Epoch, "job": o.Job.String()})
	if err := t.Ready(ctx); err != nil {
		return err
	}
	var at *meeting
	if t.spec.Meet != "" {
		if at, err = meet(t.spec.Meet); err != nil {
			return err
		}
		defer at.conn.Close()
	}
	tick := time.NewTicker(t.spec.Pace)
	defer tick.Stop()
	for step := o.Step + 1; t.spec.Steps == 0 || int(step) <= t.spec.Steps; step++ {
		<-tick.C
		switch {
		case at != nil:
			if err := at.wait(o.Epoch, step, t.Fenced); err != nil && !t.Fenced() { // a fenced rank finds out at step_enter
				return err
			}
		case t.world > 1 && !t.spec.Free:
			if err := t.Barrier(ctx, fmt.Sprintf("step %d", step), uint32(t.world)); err != nil {
				return err
			}
		}
		if int(step) == t.spec.Rest {
			if err := t.rest(); err != nil {
				return err
			}
		}
		if t.spec.Own == "" {
			t.moved[0] = uint64(step)
		}
		if err := t.StepEnter(step, patience); err != nil {
			return err
		}
		t.fill(step)
		if t.poisoned(step) {
			t.weights[0] = float32(math.NaN())
		}
		if err := t.StepExit(step, 0); err != nil {
			return err
		}
		t.say("step", fields{"step": step, "epoch": o.Epoch})
	}
	err = t.Leave(ctx)
	t.say("left", fields{"text": fmt.Sprint(err)})
	return err
}

// begins checks that a rank which is told to begin at a step knows from what.
func (t *trainer) begins(ctx context.Context, at replica.Step) error {
	from, err := t.From(ctx)
	switch {
	case err != nil:
		return err
	case from == nil && at == 0:
	case from == nil || from.Generation.Step != at:
		return fmt.Errorf("told to begin at step %d, with %+v", at, from)
	default:
		t.say("begins", fields{"step": at, "place": from.Place, "url": from.URL})
	}
	return nil
}

// rest stands still on purpose.
func (t *trainer) rest() error {
	if err := t.Pause(t.spec.RestFor + time.Minute); err != nil {
		return err
	}
	t.say("resting", nil)
	<-time.After(cmp.Or(t.spec.RestFor, 3*time.Second))
	return t.Pause(0)
}

func (t *trainer) fill(step replica.Step) {
	t.moved[0] = uint64(step)
	for i := range t.weights {
		t.weights[i] = float32(step)
	}
}
