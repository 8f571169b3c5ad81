package node

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/host"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/leader"
	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/membership"
	"github.com/replicad/replicad/replica"
)

// statusTimeout bounds how long status waits for the leader before it answers with what this node knows alone. The answer of a busy leader
// about thousands of ranks takes most of a second.
const statusTimeout = 2 * time.Second

// operatorTimeout is how long the leader may take to answer an operator who names no time: longer than anything that it waits for itself.
const operatorTimeout = control.DrainTimeout + leader.ProposeTimeout

// maxOrder bounds the JSON of an order, in bytes.
const maxOrder = 64 << 10

// adminTimes are how long a connection of the admin socket may take: for the headers of a request, for its body, from there to the end of the
// answer, and until the next request.
type adminTimes struct{ headers, body, answer, idle time.Duration }

var defaultAdminTimes = adminTimes{time.Second, 5 * time.Second, operatorTimeout + 10*time.Second, 10 * time.Second}

// informant is what the admin socket asks of this node's host.
type informant interface {
	Status(ctx context.Context) (host.Status, bool)
	Ask(ctx context.Context, patience time.Duration, question func(id uint64) any) (reply any, ok bool)
}

// admin serves the operator's socket: status, and orders to the leader. HTTP over a unix socket of mode 0600.
type admin struct {
	host    informant
	self    replica.NodeName
	audit   *journal.Auditor
	log     *journal.Journal
	store   *tier.Tier // nil: no durable tier here
	probes  *prober
	base    func() control.Status      // what this daemon knows of itself and of Raft
	members func() []membership.Member // as gossip knows them; asked where base has gossip keys
	version string
	// here does, where this node leads, what needs no link to the leader; false: it does not lead. Nil: it never leads.
	here   func(context.Context, control.Order) (control.OperatorReply, bool)
	voters func() string // who votes as far as this node alone can tell
	owner  func() uint32 // whose socket it is
	// users counts what users have here, but for their requests, which the host counts; nil: nobody counts.
	users func() control.Here
	times adminTimes // zero: the default ones
}

func listenAdmin(path string) (net.Listener, error) {
	l, err := unixsock.Listen("unix", path)
	if errors.Is(err, unixsock.ErrInUse) {
		return nil, fmt.Errorf("admin %w: another daemon answers on it: stop that one, or give this node its own admin_socket", err)
	}
	if err != nil {
		return nil, fmt.Errorf("admin %w (admin_socket chooses another)", err)
	}
	return l, nil
}

func (a *admin) serve(ctx context.Context, l net.Listener) error {
	t := a.times
	if t == (adminTimes{}) {
		t = defaultAdminTimes
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(a.status(r.Context())) //nolint:errcheck // the caller went away
	})
	mux.HandleFunc("GET /challenge", func(w http.ResponseWriter, r *http.Request) {
		a.operator(w, r, control.Order{Verb: control.VerbChallenge})
	})
	mux.HandleFunc("POST /order", func(w http.ResponseWriter, r *http.Request) {
		var q control.Order
		d := json.NewDecoder(r.Body)
		d.DisallowUnknownFields()
		if err := d.Decode(&q); err != nil {
			http.Error(w, fmt.Sprintf("not an order: %v: are daemon and command line of one release?", err), http.StatusBadRequest)
			return
		}
		q.UID = userOf(r).uid
		if more := q.Patience() - control.DrainTimeout; more > 0 {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(t.answer + more)) // a closed connection fails the answer
		}
		a.operator(w, r, q)
	})
	s := &http.Server{Handler: a.guard(whole(mux, t.body)), ConnContext: withUser, MaxHeaderBytes: 64 << 10, ReadHeaderTimeout: t.headers, WriteTimeout: t.answer, IdleTimeout: t.idle}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin socket: %w", err)
	}
	return nil
}

// whole reads a request's body before anything is done with it, in bounded time. The server's own ReadTimeout would also end the context of
// an order that takes longer than its body.
func whole(h http.Handler, within time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			conn := http.NewResponseController(w)
			_ = conn.SetReadDeadline(time.Now().Add(within)) // a closed connection fails the read
			b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxOrder))
			if err != nil {
				w.Header().Set("Connection", "close") // the rest is not waited for
				http.Error(w, fmt.Sprintf("the body of the request: %v: it has at most %d bytes, and comes within %v", err, maxOrder, within), http.StatusBadRequest)
				return
			}
			_ = conn.SetReadDeadline(time.Time{})
			r.Body = io.NopCloser(bytes.NewReader(b))
		}
		h.ServeHTTP(w, r)
	})
}

// asker is who is at the other end of a connection.
type asker struct {
	uid uint32
	err error // of finding out
}

type userKey struct{}

func withUser(ctx context.Context, c net.Conn) context.Context {
	var u asker
	if c, ok := c.(*net.UnixConn); !ok {
		u.err = fmt.Errorf("a %T is no unix socket", c)
	} else if cred, err := unixsock.Peer(c); err != nil {
		u.err = err
	} else {
		u.uid = cred.Uid
	}
	return context.WithValue(ctx, userKey{}, u)
}

func userOf(r *http.Request) asker { return r.Context().Value(userKey{}).(asker) }

// guard lets this daemon's own user and root in, whatever the mode of the socket says by now.
func (a *admin) guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		owner := a.owner()
		switch u := userOf(r); {
		case u.err != nil:
			http.Error(w, fmt.Sprintf("the asking user is unknown: %v", u.err), http.StatusForbidden)
		case u.uid != owner && u.uid != 0:
			text := fmt.Sprintf("user %d may not use the admin socket of user %d: ask as that user", u.uid, owner)
			a.audit.Refused("admin socket", a.self, audit.Fields{"path": r.URL.Path, "refused": text})
			http.Error(w, text, http.StatusForbidden)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// operator passes an operator's request on to the leader, and its answer back.
func (a *admin) operator(w http.ResponseWriter, r *http.Request, q control.Order) {
	if q.Besides() && a.here != nil {
		if answer, leads := a.here(r.Context(), q); leads {
			a.reply(w, answer)
			return
		}
	}
	said, _ := a.host.Ask(r.Context(), q.Patience()+leader.ProposeTimeout, func(id uint64) any {
		q.ID = id
		return q
	})
	if answer, ok := said.(control.OperatorReply); ok {
		a.reply(w, answer)
		return
	}
	if q.Verb == control.Voters { // which changes nothing
		a.reply(w, control.OperatorReply{Text: a.voters()})
		return
	}
	http.Error(w, "no leader answered, and the outcome of the request is unknown: repeat it once replicad status names a leader", http.StatusServiceUnavailable)
}

func (a *admin) reply(w http.ResponseWriter, answer control.OperatorReply) {
	if answer.Refused != "" {
		http.Error(w, answer.Refused, http.StatusConflict)
		return
	}
	fmt.Fprintln(w, answer.Text)
}

// status asks the leader for the whole picture, and falls back to this node's own.
func (a *admin) status(ctx context.Context) control.Status {
	st := a.base()
	if a.store != nil {
		st.DurableSilent = a.store.Silent()
	}
	own, ok := a.host.Status(ctx)
	if ok {
		st.Adopting, st.KeeperLost, st.Scrubbed = own.Adopting, own.KeeperLost, own.Scrubbed
		st.Jobs = append(st.Jobs, own.Jobs...)
		st.Sizes = own.Sizes
		if own.Linked {
			st.Leader, st.Term = own.Leader, own.Term
		} else if !st.IsLeader {
			st.Leader = ""
		}
		for name, n := range own.Nodes {
			state := a.probes.state(name)
			if name == a.self {
				state = "alive"
			}
			st.Nodes = append(st.Nodes, control.NodeStatus{Name: name, Addr: n.Addr, State: state, Session: n.Session})
		}
		if own.Holding.UnderWay > 0 {
			st.Network.HeldTo, st.Network.HeldWhy = own.Holding.Limit, own.Holding.Why
		}
		for _, t := range own.Traffic {
			st.Network.Peers = append(st.Network.Peers, control.TrafficStatus{Peer: t.Peer, Over: t.Over.String(), Fetched: t.Fetched, Pushed: t.Pushed, Rate: t.Rate, Failures: t.Failures, Why: t.Why, WhyAt: t.WhyAt})
		}
	}
	st.CommitLagP50US, st.CommitLagP99US = lagUS(a.log)
	reply, _ := a.host.Ask(ctx, statusTimeout, func(id uint64) any { return control.StatusRequest{ID: id} })
	if said, ok := reply.(control.StatusReply); ok {
		leads := said.Status
		st.Jobs, st.Steps, st.Accounts, st.Voters = leads.Jobs, &leads.Steps, leads.Accounts, leads.Voters
		for i := range st.Nodes {
			st.Nodes[i].Revoked = slices.Contains(leads.Revoked, st.Nodes[i].Name)
		}
	}
	for i := range st.Nodes {
		at := slices.IndexFunc(st.Voters, func(v control.VoterStatus) bool { return v.Name == st.Nodes[i].Name && !v.Joining })
		st.Nodes[i].Voter, st.Nodes[i].Votes = at >= 0, at >= 0 && st.Voters[at].Votes
	}
	if a.users != nil {
		here := a.users()
		here.Requests = own.Requests
		st.Accounts = here.AddTo(st.Accounts)
	}
	slices.SortFunc(st.Nodes, func(x, y control.NodeStatus) int { return cmp.Compare(string(x.Name), string(y.Name)) })
	if len(st.GossipKeys) > 0 {
		st.GossipUnknown = unknownKeys(st.Node, a.members(), st.Nodes, a.probes.hears)
	}
	slices.SortFunc(st.Jobs, func(x, y control.JobStatus) int { return cmp.Compare(x.ID.String(), y.ID.String()) })
	return st
}

func lagUS(j *journal.Journal) (p50, p99 int64) {
	a, b := j.Lag()
	return a.Microseconds(), b.Microseconds()
}
