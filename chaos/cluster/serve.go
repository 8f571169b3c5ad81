package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/usage"
)

// Serve starts the nodes and does what it is told until there is nobody to tell it anything, or a process ends by itself.
func Serve(ctx context.Context, plan Plan, in io.Reader, out io.Writer) (err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	spawn, j := NewSpawner(), NewJournal() // which hears here of processes that end by themselves alone
	defer func() { err = errors.Join(err, spawn.Close()) }()
	c, err := New(plan, spawn, j)
	if err != nil {
		return err
	}
	defer c.Release()
	say := func(line []byte) { // under the journal's lock, so that lines stay whole; who does not listen any more ends standard input too
		j.View(func() { _, _ = out.Write(append(line, '\n')) })
	}
	tell := func(event string, n *Node) {
		// plain data
		line, _ := json.Marshal(map[string]any{"event": event, "node": n.Name, "config": n.File, "log": c.Log(n.Name + "-daemon"),
			"socket": n.Config.Socket, "admin_socket": n.Config.AdminSocket, "daemon": n.Daemon.PID(), "keeper": n.Keeper.PID()})
		say(line)
	}
	for _, n := range c.Nodes {
		n.Hear = say
		if err := c.Start(n); err != nil {
			return err
		}
		tell("node", n)
	}
	words, feed := io.Pipe() // a read of standard input can't be broken off, that of a pipe can
	go func() { _, err := io.Copy(feed, in); _ = feed.CloseWithError(err) }()
	go func() {
		_ = feed.CloseWithError(j.Await(ctx, math.MaxInt64, "the end of standard input", func() bool { return false }))
	}()
	lines := bufio.NewScanner(words)
	for lines.Scan() {
		verb, name, _ := strings.Cut(lines.Text(), " ")
		n := c.Node(name)
		if verb != "kill" || n == nil {
			return usage.Wrong(fmt.Errorf("%q: say kill and one of the nodes %v", lines.Text(), c.Names()))
		}
		if err := c.Kill(n); err != nil {
			return err
		}
		tell("killed", n)
	}
	if lines.Err() == nil {
		c.Stop(10 * time.Second)
	}
	return lines.Err()
}
