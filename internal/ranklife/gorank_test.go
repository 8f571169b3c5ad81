//go:build cgo

package ranklife

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/replicad/replicad/libreplicad"
	"github.com/replicad/replicad/replica"
)

func init() { goRank = runGoRank }

// goProgram is a rank on libreplicad's Go binding. It carries out a command for each line that it reads, and prints what it gets.
type goProgram struct {
	s      *libreplicad.Session
	weight []float32
	own    []uint64
	memory []*libreplicad.Memory
	start  replica.Step
	backs  uint64
}

func runGoRank(in io.Reader, out io.Writer) error {
	p := &goProgram{}
	defer p.close()
	for lines := bufio.NewScanner(in); lines.Scan(); {
		what, number, _ := strings.Cut(lines.Text(), " ")
		if what == "end" {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		got, err := p.does(ctx, what, number)
		cancel()
		if err != nil {
			got = answerOf(err)
		}
		fmt.Fprintln(out, got)
	}
	return nil
}

func (p *goProgram) close() {
	if p.s != nil {
		_ = p.s.Close()
	}
	for _, m := range p.memory {
		_ = m.Free()
	}
}

func answerOf(err error) string {
	for word, is := range map[string]error{
		"refused": libreplicad.ErrRefused, "state": libreplicad.ErrState,
		"stopped": libreplicad.ErrStopped, "timeout": libreplicad.ErrTimeout,
	} {
		if errors.Is(err, is) {
			return fmt.Sprintf("%s: %v", word, err)
		}
	}
	if errors.Is(err, libreplicad.ErrFenced) {
		return "fenced"
	}
	return fmt.Sprintf("error: %v", err)
}

func (p *goProgram) does(ctx context.Context, what, number string) (string, error) {
	var step replica.Step
	if number != "" {
		if _, err := fmt.Sscan(number, &step); err != nil {
			return "", err
		}
	}
	switch what {
	case "open":
		return "ok", p.open(ctx)
	case "attach":
		return "ok", p.s.Attach(ctx)
	case "join":
		o, err := p.s.Join(ctx)
		p.start = o.Step
		action := "load"
		if o.Action == libreplicad.Init {
			action = "initialise"
		}
		return fmt.Sprintf("%s %d:%d", action, o.Epoch, o.Step), err
	case "seal":
		p.update(p.start)
		p.own[0] = uint64(p.start)
		return "ok", p.s.SealInitial(ctx)
	case "load":
		err := p.s.Load()
		return fmt.Sprintf("holds %g %d", p.weight[len(p.weight)-1], p.own[0]), err
	case "ready":
		return "ok", p.s.Ready(ctx)
	case "enter":
		p.own[0] = uint64(step)
		return "ok", p.s.StepEnter(step, Patience)
	case "exit":
		p.update(step)
		return "ok", p.s.StepExit(step, 0)
	case "notice":
		return p.notice(ctx)
	case "back":
		return p.back()
	case "leave":
		return "ok", p.s.Leave(ctx)
	}
	return "", fmt.Errorf("no command is called %q", what)
}

func (p *goProgram) open(ctx context.Context) (err error) {
	if p.s, err = libreplicad.Open(ctx, libreplicad.Options{Rank: 0, World: 1}); err != nil {
		return err
	}
	weight, w, err := libreplicad.AllocFloat32s(2500)
	if err != nil {
		return err
	}
	own, o, err := libreplicad.AllocUint64s(4)
	if err != nil {
		return err
	}
	p.weight, p.own, p.memory = w, o, []*libreplicad.Memory{weight, own}
	return p.s.Register(libreplicad.Region{Name: "weight", DType: replica.F32, Data: weight},
		libreplicad.Region{Name: "own", DType: replica.U64, Kind: replica.Private, Class: replica.Volatile, Data: own})
}

func (p *goProgram) update(to replica.Step) {
	for i := range p.weight {
		p.weight[i] = float32(to)
	}
}

func (p *goProgram) notice(ctx context.Context) (string, error) {
	select {
	case <-p.s.Fence():
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if !p.s.Fenced() {
		return "over", nil
	}
	return "fenced", nil
}

// back waits until the session's watcher has found the daemon again, or has given it up.
func (p *goProgram) back() (string, error) {
	p.backs++
	for p.s.Stats().Reconnects < p.backs {
		select {
		case <-p.s.Fence():
			return "over", nil
		case <-time.After(time.Millisecond):
		}
	}
	return "ok", nil
}
