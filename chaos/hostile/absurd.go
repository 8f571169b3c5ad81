package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// What follows is of good form and absurd size: a user asks for what users may ask for, and far more of it than is there.

// launch has a launcher of a good form say hello, and waits until it is of its job, or refused. It is kept until the pattern is over.
func (a *attack) launch(h wire.RunHello) (c *caller, refused string, err error) {
	c, err = call(a.victim.Socket)
	if err != nil {
		return nil, "", err
	}
	a.later(func(c *caller) func() { return func() { _ = c.Close() } }(c)) // a refusal returns none
	// One that is refused before it speaks can't, and hears why.
	if err := c.say(wire.MRunHello, h.Append(nil)); err != nil && !errors.Is(err, unix.EPIPE) {
		return nil, "", err
	}
	for {
		h, b, _, err := c.hear(15 * time.Second)
		if err != nil {
			return nil, "", fmt.Errorf("a launcher's hello: %w", err)
		}
		switch h.Type {
		case wire.MRunOK:
			return c, "", nil
		case wire.MRefused:
			r, err := wire.ParseRefused(b)
			return nil, r.Text, err
		}
	}
}

// endJob ends a job of the attack's own on its way out: it would be there for minutes.
func (a *attack) endJob(name string) error {
	b, err := json.Marshal(map[string]any{"Verb": 3, "Job": name, "Why": "the pattern is over", "Now": true})
	if err != nil {
		return err
	}
	code, said, err := a.order(context.Background(), bytes.NewReader(b), int64(len(b)))
	if err == nil && code != 200 {
		err = fmt.Errorf("end job %s: %d %.200s", name, code, said)
	}
	return err
}

// firstAsk is how long the leader may take to ask for a first process.
const firstAsk = 20 * time.Second

// seats offers 8,000 processes for a job of 8,000 ranks, and starts none of those that it is asked for.
func seats(ctx context.Context, a *attack) error {
	name := unused("seats")
	l := a.launcher(name)
	l.World, l.Capacity = 8000, 8000
	c, refused, err := a.launch(l)
	switch {
	case err != nil:
		return err
	case refused != "":
		return fmt.Errorf("its launcher is refused: %s", refused)
	}
	hear := func(int) error {
		h, _, _, err := c.hear(100 * time.Millisecond)
		if late := net.Error(nil); errors.As(err, &late) && late.Timeout() {
			return nil
		}
		if err == nil && h.Type == wire.MRunStart {
			a.count("processes asked for", 1)
		}
		return err
	}
	for began := time.Now(); err == nil && a.counted("processes asked for") == 0 && time.Since(began) < firstAsk; { // the leader looks when it comes to it
		err = hear(0)
	}
	if err == nil {
		err = a.until(ctx, hear)
	}
	if n := a.counted("processes asked for"); err == nil && (n == 0 || n > 1023) {
		err = fmt.Errorf("it was asked for %d processes", n)
	}
	return errors.Join(err, a.endJob(name))
}

// manyJobs has launchers create jobs until one is refused.
func manyJobs(_ context.Context, a *attack) (err error) {
	var names []string
	defer func() {
		for _, n := range names {
			err = errors.Join(err, a.endJob(n))
		}
	}()
	for i := range 300 {
		l := a.launcher(unused(fmt.Sprintf("many-%d", i)))
		_, refused, err := a.launch(l)
		if err != nil {
			return err
		}
		if refused != "" {
			if !strings.Contains(refused, "per_user.jobs") || len(names) == 0 {
				return fmt.Errorf("job %d is refused with %q", i, refused)
			}
			a.count("refused with the number", 1)
			if a.counted("refused with the number") >= 10 {
				return nil
			}
			continue
		}
		names = append(names, l.Job)
		a.count("jobs", 1)
	}
	return errors.New("300 jobs of one user were taken")
}

// besideTraining is how many sessions the victim's own processes have at most, as the same user: the training job's launcher there, and its ranks.
const besideTraining = 1 + (world+voters-1)/voters

// manySessions has launchers of one job come until ten are refused, and keeps all of them. The user must have got every session that there is.
func manySessions(ctx context.Context, a *attack) (err error) {
	l := a.launcher(unused("sessions"))
	defer func() {
		if a.counted("sessions") > 0 {
			err = errors.Join(err, a.endJob(l.Job))
		}
	}()
	for range 1030 {
		_, refused, err := a.launch(l)
		switch {
		case err != nil:
			return err
		case refused == "":
			a.count("sessions", 1)
		case !strings.Contains(refused, "per_user.sessions"):
			return fmt.Errorf("session %d is refused with %q", a.counted("sessions"), refused)
		default:
			if a.count("refused with the number", 1); a.counted("refused with the number") < 10 {
				continue
			}
			most := a.victim.PerUser.Sessions
			if n := a.counted("sessions"); n < most-besideTraining || n > most {
				return fmt.Errorf("%d sessions were taken before the refusals: want %d to %d, which are per_user.sessions and that less the training job's launcher and ranks there", n, most-besideTraining, most)
			}
			a.wait(ctx)
			return nil
		}
	}
	return errors.New("1,030 sessions of one user were taken")
}

// ahead sets words in epochs that are far from beginning.
func ahead(r *ownRank, _ time.Duration) error {
	taken, refused := 0, 0
	for i := range uint64(200) {
		kv := wire.KV{Key: "word", Value: make([]byte, wire.MaxValueBytes), Once: uint32(i + 1)}
		if err := r.write(wire.AppendRank(nil, wire.RankHeader{Type: wire.MKVSet, Request: uint32(i + 1), Epoch: r.epoch + 2 + replica.Epoch(i)}, kv.Append(nil))); err != nil {
			return err
		}
		h, b, _, err := r.hear(10 * time.Second)
		if err != nil {
			return err
		}
		if code, err := wire.ParseKVOK(b); h.Type == wire.MKVOK && err == nil && code == wire.CodeOK {
			taken++
		} else {
			refused++
		}
	}
	fmt.Fprintf(r.out, "taken %d refused %d%s", taken, refused, isOver)
	return nil
}

// absent asks for keys that are not there, as fast as the daemon takes it, and waits for none.
func absent(r *ownRank, hold time.Duration) error {
	n := 0
	for end := time.Now().Add(hold); time.Now().Before(end); n++ {
		kv := wire.KV{Key: fmt.Sprint("absent-", n)}
		if err := r.write(wire.AppendRank(nil, wire.RankHeader{Type: wire.MKVGet, Request: uint32(n + 1), Epoch: r.epoch}, kv.Append(nil))); err != nil {
			return err
		}
	}
	fmt.Fprintln(r.out, "asked", n)
	return nil
}

func rankAhead(ctx context.Context, a *attack) error {
	out, err := a.run(ctx, unused("ahead"), "ahead", 0)
	if err != nil {
		return err
	}
	var taken, refused int
	if i := strings.Index(string(out), "taken "); i >= 0 {
		_, _ = fmt.Sscanf(string(out[i:]), "taken %d refused %d", &taken, &refused)
	}
	a.count("refused", refused)
	if refused == 0 || taken > 0 {
		return fmt.Errorf("%d words were taken, %d refused: %s", taken, refused, lastOf(out))
	}
	return nil
}

func rankAbsent(ctx context.Context, a *attack) error {
	out, err := a.run(ctx, unused("absent"), "absent", 5*a.Hold)
	if err != nil {
		return err
	}
	var asked int
	if i := strings.Index(string(out), "asked "); i >= 0 {
		_, _ = fmt.Sscanf(string(out[i:]), "asked %d", &asked)
	}
	if a.count("questions", asked); asked == 0 {
		return fmt.Errorf("it asked nothing: %s", lastOf(out))
	}
	return nil
}
