//go:build cgo

package session_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/libreplicad"
	"github.com/replicad/replicad/replica"
)

const patience = 20 * time.Second

func init() { session.RankProcess = rankProcess }

// rankProcess trains as its input tells it ("step N", "join", "leave") and says what came of it.
func rankProcess(socket string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience) // it must not outlive the test for long
	defer cancel()
	r, err := libreplicad.Open(ctx, libreplicad.Options{Socket: socket, Job: "job", Rank: 2, World: 4, Group: 1})
	if err != nil {
		return err
	}
	defer r.Close()
	weight, w, err := libreplicad.AllocFloat32s(20000)
	if err != nil {
		return err
	}
	rng, n, err := libreplicad.AllocUint64s(4)
	if err != nil {
		return err
	}
	err = r.Register(libreplicad.Region{Name: "weight", DType: replica.F32, Data: weight}, libreplicad.Region{Name: "rng", DType: replica.U64, Kind: replica.Private, Class: replica.Volatile, Data: rng})
	if err == nil {
		err = r.Attach(ctx)
	}
	if err != nil {
		return err
	}
	in := bufio.NewScanner(os.Stdin)
	for {
		o, err := r.Join(ctx)
		if err != nil {
			return err
		}
		if o.Action == libreplicad.Init {
			if err := r.SealInitial(ctx); err != nil {
				return err
			}
			continue
		}
		if err := errors.Join(r.Load(), r.Ready(ctx)); err != nil {
			return err
		}
		fmt.Printf("ready epoch %d step %d weight %v rng %d\n", o.Epoch, o.Step, w[7], n[0])
		for again := false; !again && in.Scan(); {
			var step replica.Step
			switch line := in.Text(); {
			case line == "leave":
				return r.Leave(ctx)
			case line == "join":
				again = true
			default:
				if _, err := fmt.Sscanf(line, "step %d", &step); err != nil {
					return err
				}
				if err := trainStep(r, step, w, n); errors.Is(err, libreplicad.ErrFenced) {
					fmt.Println("fenced")
				} else if err != nil {
					return err
				} else {
					fmt.Println("stepped", step)
				}
			}
		}
	}
}

// trainStep leaves weights of 10 x step, and random numbers of one step more.
func trainStep(r *libreplicad.Session, step replica.Step, w []float32, n []uint64) error {
	if err := r.StepEnter(step, patience); err != nil {
		return err
	}
	for i := range w {
		w[i] = float32(step) * 10
	}
	err := r.StepExit(step, 0)
	n[0] = uint64(step) + 1 // drawn in the forward that comes next
	return err
}

// remote is a rank in another process.
type remote struct {
	t   *testing.T
	cmd *exec.Cmd
	in  *os.File
	out *bufio.Scanner
}

func startRank(t *testing.T, socket string) *remote {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), session.EnvRank+"="+socket)
	cmd.Stdin, cmd.Stderr = r, os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	_ = r.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return &remote{t, cmd, w, bufio.NewScanner(out)}
}

func (r *remote) tell(command string) {
	r.t.Helper()
	if _, err := r.in.WriteString(command + "\n"); err != nil {
		r.t.Fatal(err)
	}
}

func (r *remote) says(want string) {
	r.t.Helper()
	if !r.out.Scan() || !strings.HasPrefix(r.out.Text(), want) {
		r.t.Fatalf("the rank says %q (%v), want %q", r.out.Text(), r.out.Err(), want)
	}
}
