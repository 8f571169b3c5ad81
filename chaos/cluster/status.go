package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/pace"
)

// Status is what a daemon serves at /status on its admin socket, as far as it is read here.
type Status struct {
	Node     string       `json:"node"`
	Session  uint64       `json:"session"`
	Leader   string       `json:"leader"`
	Term     uint64       `json:"term"`
	Adopting bool         `json:"adopting"`
	Nodes    []NodeStatus `json:"nodes"`
	Jobs     []JobStatus  `json:"jobs"`
}

// NodeStatus is a part of it.
type NodeStatus struct {
	Name  string `json:"name"`
	Voter bool   `json:"voter"`
	State string `json:"state"`
}

// Generation is a part of it.
type Generation struct {
	Epoch uint64 `json:"epoch"`
	Step  uint64 `json:"step"`
}

// JobStatus is a part of it.
type JobStatus struct {
	Name      string     `json:"name"`
	Phase     string     `json:"phase"`
	Epoch     uint64     `json:"epoch"`
	Committed Generation `json:"committed"`
	Durable   Generation `json:"durable"`
	Copies    int        `json:"copies"`
	Degraded  bool       `json:"degraded"`
	EndReason string     `json:"end_reason"`
	Ranks     []struct {
		Rank  int    `json:"rank"`
		Group int    `json:"group"`
		Node  string `json:"node"`
		PID   int    `json:"pid"`
		State string `json:"state"`
	} `json:"ranks"`
	Waiting  []string  `json:"waiting"`
	Holdings []Holding `json:"holdings"`
}

// Holding is a part that a node holds.
type Holding struct {
	Node string `json:"node"`
	Part string `json:"part"`
}

const maxStatus = 8 << 20 // bytes

// FetchStatus asks a daemon on its admin socket.
func FetchStatus(ctx context.Context, socket string) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, pace.Of(4*time.Second)) // a daemon gives its leader two of them
	defer cancel()
	t := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://admin/status", nil)
	if err != nil {
		return nil, err
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxStatus))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status of %s: %s: %.200s", socket, resp.Status, body)
	}
	s := new(Status)
	if err := json.Unmarshal(body, s); err != nil {
		return nil, fmt.Errorf("status of %s: %w", socket, err)
	}
	return s, nil
}

// Job finds a job; nil if it is not there.
func (s *Status) Job(name string) *JobStatus {
	if s == nil {
		return nil
	}
	for i := range s.Jobs {
		if s.Jobs[i].Name == name {
			return &s.Jobs[i]
		}
	}
	return nil
}

// Brief is a status on one line.
func (s *Status) Brief() string {
	if s == nil {
		return "no answer"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "leader %q term %d", s.Leader, s.Term)
	for _, n := range s.Nodes {
		fmt.Fprintf(&b, " %s=%s", n.Name, n.State)
	}
	for i := range s.Jobs {
		j := &s.Jobs[i]
		if j.Phase == "ended" {
			continue
		}
		fmt.Fprintf(&b, "; job %s %s epoch %d committed %d durable %d copies %d degraded %v", j.Name, j.Phase, j.Epoch, j.Committed.Step, j.Durable.Step, j.Copies, j.Degraded)
		for _, r := range j.Ranks {
			fmt.Fprintf(&b, " %d@%s=%s", r.Rank, r.Node, r.State)
		}
		if len(j.Waiting) > 0 {
			fmt.Fprintf(&b, " waiting for %s", strings.Join(j.Waiting, ", "))
		}
	}
	return b.String()
}

// Healthy tells what a cluster and its job lack to be whole; empty: nothing. It judges the newest status of every node.
func Healthy(all map[string]*Status, nodes []string, job string, ranks int) (why string) {
	leader := ""
	for _, name := range nodes {
		s := all[name]
		switch {
		case s == nil:
			return fmt.Sprintf("daemon of %s does not answer", name)
		case s.Adopting:
			return fmt.Sprintf("daemon of %s is still adopting", name)
		case s.Leader == "":
			return fmt.Sprintf("%s knows no leader", name)
		case leader != "" && s.Leader != leader:
			return fmt.Sprintf("%s and others disagree about the leader (%s, %s)", name, s.Leader, leader)
		}
		leader = s.Leader
	}
	s := all[leader]
	if s == nil {
		return fmt.Sprintf("leader %s is not one of ours", leader)
	}
	for _, name := range nodes {
		i := slices.IndexFunc(s.Nodes, func(n NodeStatus) bool { return n.Name == name })
		if i < 0 || s.Nodes[i].State != "alive" {
			return fmt.Sprintf("%s does not see %s alive", leader, name)
		}
	}
	j := s.Job(job)
	switch {
	case j == nil:
		return "the job is not there yet"
	case j.Phase != "open":
		return "the job is " + j.Phase
	case j.Degraded || j.Copies < 2:
		return fmt.Sprintf("parts have %d copies, degraded %v", j.Copies, j.Degraded)
	case len(j.Ranks) != ranks:
		return fmt.Sprintf("%d ranks", len(j.Ranks))
	}
	for _, r := range j.Ranks {
		if r.State != "alive" {
			return fmt.Sprintf("rank %d is %s", r.Rank, r.State)
		}
	}
	return ""
}
