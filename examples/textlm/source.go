package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/replicad/replicad/replica"
)

// source is a generation that is open for reading: `replicad ckpt pipe URL` speaks to the store, with the credentials of this environment, and checks
// each byte. A request is a line of JSON; so is an answer, and where it says how many bytes, they follow it.
type source struct {
	Where  string `json:"where"` // below the root
	Commit struct {
		Layout replica.Layout `json:"layout"`
	} `json:"commit"`
	Index struct {
		Tensors []tensor `json:"tensors"`
	} `json:"index"`

	in    io.WriteCloser
	out   *bufio.Reader
	ended func() error
}

// tensor is one that the index names.
type tensor struct {
	Name   string  `json:"name"`
	Class  string  `json:"class"` // window, volatile, frozen or private
	Pieces []piece `json:"pieces"`
}

// piece is what one group has of a tensor, or one rank where it is private.
type piece struct {
	Index int      `json:"index"`
	Bytes int      `json:"bytes"`
	Shape []uint64 `json:"shape"`

	part, name string
	into       []byte
}

// openSource opens the generation that a job's record says it began with.
func openSource(ctx context.Context, from *replica.Origin) (*source, error) {
	program := cmp.Or(os.Getenv("REPLICAD_PROGRAM"), "replicad") // the launcher's, which knows this daemon's protocol
	p := exec.CommandContext(ctx, program, "ckpt", "pipe", "--", from.URL)
	p.Stderr = os.Stderr // what it has to say of the store is for people
	in, err := p.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, err
	}
	s := &source{in: in, out: bufio.NewReader(out), ended: func() error { return errors.Join(out.Close(), p.Wait()) }}
	if err := s.open(from); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *source) open(from *replica.Origin) error {
	at := fmt.Sprintf("%d.e%d", from.Generation.Step, from.Generation.Epoch)
	if err := s.ask(map[string]any{"op": "open", "job": from.Job, "at": at}, s); err != nil {
		return err
	}
	if strings.Trim(s.Where, "/") != strings.Trim(from.Place, "/") {
		return fmt.Errorf("%s lies where %s lay when the job began: begin a new job", s.Where, from.Place)
	}
	return nil
}

// ask sends a request and takes the line of its answer.
func (s *source) ask(request map[string]any, answer any) error {
	line, err := json.Marshal(request)
	if err == nil {
		_, err = s.in.Write(append(line, '\n'))
	}
	if err != nil {
		return err
	}
	return s.answer(answer)
}

func (s *source) answer(to any) error {
	line, err := s.out.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("replicad ckpt pipe: %w", err)
	}
	var failed struct {
		Error string `json:"error"`
	}
	if err := json.Unmarshal(line, &failed); err != nil {
		return fmt.Errorf("replicad ckpt pipe: answer %.80q: %w", line, err)
	}
	if failed.Error != "" {
		return errors.New(failed.Error)
	}
	return json.Unmarshal(line, to)
}

// read fills a piece. It comes in stretches, each behind a line that says how long it is.
func (s *source) read(p piece) error {
	var some struct {
		Bytes int `json:"bytes"`
	}
	err := s.ask(map[string]any{"op": "read", "part": p.part, "index": p.Index, "name": p.name, "from": 0, "bytes": len(p.into)}, &some)
	for got := 0; err == nil; err = s.answer(&some) {
		if some.Bytes < 0 || some.Bytes > len(p.into)-got || some.Bytes == 0 && got < len(p.into) {
			return fmt.Errorf("replicad ckpt pipe sends %d bytes of %d", some.Bytes, len(p.into)-got)
		}
		if _, err := io.ReadFull(s.out, p.into[got:got+some.Bytes]); err != nil {
			return fmt.Errorf("replicad ckpt pipe: %w", err)
		}
		if got += some.Bytes; got == len(p.into) {
			return nil
		}
	}
	return err
}

// close ends the program, which gives its lease on the generation back.
func (s *source) close() error { return errors.Join(s.in.Close(), s.ended()) }
