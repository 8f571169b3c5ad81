package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// The frames of a link that attacks send, as internal/control numbers them. Bodies are maps of its fields' numbers, so that a field
// which no client of ours would write so can be.
const (
	kindHello    wire.Kind = 32
	kindWelcome  wire.Kind = 33
	kindReport   wire.Kind = 34
	kindEvidence wire.Kind = 37
	kindClaim    wire.Kind = 38
	kindKV       wire.Kind = 40
	kindSuspect  wire.Kind = 41
	kindCorrupt  wire.Kind = 46
	kindView     wire.Kind = 48
	kindAskView  wire.Kind = 112
	kindOperator wire.Kind = 60

	kindClaimReply wire.Kind = 53
	kindKVReply    wire.Kind = 55
	kindOrderReply wire.Kind = 113
)

const maxFrame = 16 << 20 // of a link

type body = map[int]any

// welcome is what answers a hello.
type welcome struct {
	OK      bool             `cbor:"1,keyasint"`
	Reason  string           `cbor:"2,keyasint"`
	Leader  replica.NodeName `cbor:"3,keyasint"`
	Address string           `cbor:"4,keyasint"`
	Term    uint64           `cbor:"5,keyasint"`
	Era     replica.Era      `cbor:"6,keyasint"`
	Refused bool             `cbor:"7,keyasint,omitempty"`
	Raft    body             `cbor:"8,keyasint"`
}

// life is the incarnation under which mallory registers: the same in all patterns.
const life = 1

// self is a node's registration.
func (a *attack) self(node string) replica.Node {
	c := a.own
	return replica.Node{Name: replica.NodeName(node), Incarnation: life, Session: 1, Boot: replica.BootID{1}, Addr: c.Addr, Labels: map[string]string{"host": mallory}}
}

// greet says hello on a new stream, and reads what the victim answers.
func (a *attack) greet(ctx context.Context, e *endpoint.Endpoint, hello any) (*endpoint.Stream, welcome, error) {
	s, err := a.open(ctx, e, endpoint.Control)
	if err != nil {
		return nil, welcome{}, err
	}
	fail := func(err error) (*endpoint.Stream, welcome, error) {
		s.Conn().Close("")
		return nil, welcome{}, err
	}
	_ = s.SetDeadline(time.Now().Add(10 * time.Second)) // a stream that is closed fails what follows
	if err := wire.Write(s, kindHello, hello); err != nil {
		return fail(err)
	}
	kind, b, err := wire.Read(s, maxFrame)
	if err != nil {
		return fail(err)
	}
	var w welcome
	if kind != kindWelcome {
		return fail(fmt.Errorf("message %d instead of a welcome", kind))
	}
	if err := wire.Unmarshal(b, &w); err != nil {
		return fail(err)
	}
	_ = s.SetDeadline(time.Time{})
	return s, w, nil
}

// hello is mallory's, in its own name.
func (a *attack) hello(id *pki.Identity) body { return body{1: id.Cluster, 2: a.self(mallory)} }

// link is one that the victim took.
type link struct {
	*endpoint.Stream
	heard chan frame // what it says, but for views and beats; closed with the link
}

type frame struct {
	kind wire.Kind
	body []byte
}

// linked opens a good link, which shows that a hello like those of the attacks would be taken were it not for what is wrong in them.
func (a *attack) linked(ctx context.Context) (*link, *pki.Identity, error) {
	e, id, err := a.peer()
	if err != nil {
		return nil, nil, err
	}
	l, err := a.linkOn(ctx, e, id)
	return l, id, err
}

func (a *attack) linkOn(ctx context.Context, e *endpoint.Endpoint, id *pki.Identity) (*link, error) {
	s, w, err := a.greet(ctx, e, a.hello(id))
	if err == nil && !w.OK {
		err = errors.New(w.Reason)
	}
	if err != nil {
		return nil, fmt.Errorf("a good link: %w", err)
	}
	l := &link{s, make(chan frame, 1024)}
	go l.read() // ends with the process, or with the link
	return l, nil
}

func (l *link) read() {
	defer close(l.heard)
	for {
		kind, b, err := wire.Read(l, maxFrame)
		if err != nil {
			return
		}
		switch kind {
		case kindClaimReply, kindKVReply, kindOrderReply:
			select {
			case l.heard <- frame{kind, b}:
			default: // more than any attack asks for
			}
		}
	}
}

// answer waits for one of a kind.
func (l *link) answer(ctx context.Context, kind wire.Kind) ([]byte, error) {
	t := time.NewTimer(15 * time.Second)
	defer t.Stop()
	for {
		select {
		case f, ok := <-l.heard:
			if !ok {
				return nil, errors.New("hung up instead of an answer")
			}
			if f.kind == kind {
				return f.body, nil
			}
		case <-t.C:
			return nil, errors.New("no answer")
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// down waits until the victim hangs up.
func (l *link) down(within time.Duration) error {
	t := time.NewTimer(within)
	defer t.Stop()
	for {
		select {
		case _, ok := <-l.heard:
			if !ok {
				return nil
			}
		case <-t.C:
			return fmt.Errorf("still linked after %v", within)
		}
	}
}

// facts are what a stranger to a job can know of it.
type facts struct {
	ID        replica.JobID      `json:"id"`
	Name      string             `json:"name"`
	Phase     string             `json:"phase"`
	Epoch     replica.Epoch      `json:"epoch"`
	Committed replica.Generation `json:"committed"`
	Ranks     []struct {
		Node        replica.NodeName    `json:"node"`
		Incarnation replica.Incarnation `json:"incarnation"`
	} `json:"ranks"`
}

// get asks the victim's admin socket.
func (a *attack) get(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://admin"+path, nil)
	if err != nil {
		return err
	}
	resp, err := a.admin().RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.300s", resp.Status, b)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

// admin is a way to the victim's admin socket.
func (a *attack) admin() *http.Transport {
	return &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", a.victim.AdminSocket)
	}}
}

// training is the job that trains.
func (a *attack) training(ctx context.Context) (facts, error) {
	var s struct {
		Jobs []facts `json:"jobs"`
	}
	if err := a.get(ctx, "/status", &s); err != nil {
		return facts{}, err
	}
	for _, j := range s.Jobs {
		if j.Name == a.Job && j.Phase != "ended" && len(j.Ranks) > 0 {
			return j, nil
		}
	}
	return facts{}, fmt.Errorf("no job %s in the status of %s", a.Job, a.Victim)
}

func alpn(ctx context.Context, a *attack) error {
	e, _, err := a.peer()
	if err != nil {
		return err
	}
	return a.handshakes(ctx, e, "replicad-next/9")
}

func connections(ctx context.Context, a *attack) error {
	e, _, err := a.peer()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*a.Hold)
	defer cancel()
	const most = 48 // of one node
	err = each(ctx, 10_000, 64, func(i int) error {
		class := []endpoint.Class{endpoint.Control, endpoint.Bulk}[i%2]
		c, err := a.dial(ctx, e, class)
		if err != nil {
			if ctx.Err() == nil {
				a.count("not connected", 1)
			}
			return nil
		}
		a.count("connections", 1)
		if s, err := c.Open(ctx); err == nil { // which the victim sees with its first byte
			_, _ = s.Write([]byte{1})
		}
		t := time.NewTimer(time.Second)
		defer t.Stop()
		select {
		case <-c.Done():
			var closed *endpoint.CloseError
			if errors.As(c.Err(), &closed) && closed.Code == endpoint.CodeTooMany {
				a.count("refused with the limit", 1)
			}
		case <-t.C:
			a.count("kept", 1)
		case <-ctx.Done():
		}
		return nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil // as many as there was time for
	}
	if n := a.counted("refused with the limit"); err == nil && n == 0 && a.counted("connections") > 4*most {
		return fmt.Errorf("no connection of %d was refused", a.counted("connections"))
	}
	return err
}

// openMany opens 48 connections of 64 streams each, and writes to each stream.
func (a *attack) openMany(ctx context.Context, class endpoint.Class, first []byte) (list []*endpoint.Stream, err error) {
	e, _, err := a.peer()
	if err != nil {
		return nil, err
	}
	for range 48 {
		c, err := a.dial(ctx, e, class)
		if err != nil {
			return list, err
		}
		for range 64 {
			s, err := c.Open(ctx)
			if err != nil {
				a.count("connections ended", 1)
				break
			}
			if _, err := s.Write(first); err != nil {
				break
			}
			list = append(list, s)
		}
	}
	a.count("streams", len(list))
	return list, nil
}

func silentStreams(ctx context.Context, a *attack) error {
	list, err := a.openMany(ctx, endpoint.Control, []byte{0x52})
	if err != nil && len(list) == 0 {
		return err
	}
	return each(ctx, len(list), len(list), func(i int) error {
		if _, err := ends(list[i], 15*time.Second); err != nil {
			return fmt.Errorf("a stream without a hello: %w", err)
		}
		a.count("hung up", 1)
		return nil
	})
}

// broken are frames that no reader takes.
func broken() map[string][]byte {
	good, _ := wire.Append(nil, kindHello, body{1: 1}) // encodes
	change := func(at int, to byte) []byte { b := append([]byte(nil), good...); b[at] = to; return b }
	long := append([]byte(nil), good[:12]...)
	for i := range 4 {
		long[8+i] = 0xff
	}
	return map[string][]byte{
		"magic": change(0, 'X'), "version": change(4, 9), "reserved": change(6, 1), "checksum": change(len(good)-1, good[len(good)-1]+1), "4 GiB": long,
		"another kind": change(5, 200), "zeros": make([]byte, 4096), "http": []byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), "tls": {0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 0},
		"cut after the header": good[:12], "cut in the body": good[:len(good)-9], "cut in the checksum": good[:len(good)-1], "one byte": good[:1],
	}
}

func frames(ctx context.Context, a *attack) error {
	e, _, err := a.peer()
	if err != nil {
		return err
	}
	return a.cases(ctx, broken(), func(ctx context.Context) (*endpoint.Stream, error) { return a.open(ctx, e, endpoint.Control) }, 10*time.Second)
}

func cborBombs(ctx context.Context, a *attack) error {
	e, _, err := a.peer()
	if err != nil {
		return err
	}
	list := map[string][]byte{}
	for name, b := range map[string][]byte{
		"deep":            append([]byte(strings.Repeat("\x81", 500)), 0),
		"deep maps":       append([]byte(strings.Repeat("\xa1\x01", 500)), 0),
		"array of 2^32":   {0x9a, 0xff, 0xff, 0xff, 0xff},
		"array of 2^63":   {0x9b, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"map of 2^32":     {0xba, 0xff, 0xff, 0xff, 0xff},
		"text of 2^31":    {0xa1, 0x01, 0x7a, 0x7f, 0xff, 0xff, 0xff},
		"labels of 2^32":  {0xa1, 0x02, 0xa1, 0x06, 0xba, 0xff, 0xff, 0xff, 0xff},
		"endless":         {0xbf, 0x01, 0x9f, 0x01},
		"key twice":       {0xa2, 0x01, 0x01, 0x01, 0x01},
		"tag":             {0xd9, 0xd9, 0xf7, 0xa0},
		"trailing":        {0xa0, 0xa0},
		"empty":           {},
		"no map":          {0x01},
		"unknown field":   {0xa1, 0x18, 0x63, 0x01},
		"text that is no": {0xa1, 0x02, 0xa1, 0x01, 0x62, 0xff, 0xfe},
	} {
		if list[name], err = wire.AppendBody(nil, kindHello, b); err != nil {
			return err
		}
	}
	return a.cases(ctx, list, func(ctx context.Context) (*endpoint.Stream, error) { return a.open(ctx, e, endpoint.Control) }, 10*time.Second)
}

// refusedHello wants a hello refused with words.
func (a *attack) refusedHello(ctx context.Context, e *endpoint.Endpoint, name string, hello any, says ...string) error {
	s, w, err := a.greet(ctx, e, hello)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	s.Conn().Close("")
	if w.OK {
		return fmt.Errorf("%s: welcome", name)
	}
	for _, word := range says {
		if !strings.Contains(w.Reason, word) {
			return fmt.Errorf("%s: refused with %q, which does not say %q", name, w.Reason, word)
		}
	}
	a.count("refused by name", 1)
	return nil
}

func helloName(ctx context.Context, a *attack) error {
	e, id, err := a.peer()
	if err != nil {
		return err
	}
	other := replica.ClusterID{1, 2, 3}
	for _, v := range a.victim.Voters {
		if err := a.refusedHello(ctx, e, "as "+string(v.Name), body{1: id.Cluster, 2: a.self(string(v.Name))}, string(v.Name), mallory); err != nil {
			return err
		}
	}
	return a.refusedHello(ctx, e, "another cluster", body{1: other, 2: a.self(mallory)}, other.String(), id.Cluster.String())
}

func helloLabels(ctx context.Context, a *attack) error {
	e, id, err := a.peer()
	if err != nil {
		return err
	}
	many, long := a.self(mallory), a.self(mallory)
	many.Labels, long.Labels = map[string]string{}, map[string]string{"host": strings.Repeat("x", 40<<10)}
	for i := range 2000 {
		many.Labels[fmt.Sprintf("label-%d", i)] = "value"
	}
	for _, to := range []string{"", "not an address; $(x)", "127.0.0.1", strings.Repeat("a", 5000) + ":1"} {
		n := a.self(mallory)
		n.Addr = to
		if err := a.refusedHello(ctx, e, fmt.Sprintf("address %.20q", to), body{1: id.Cluster, 2: n}, "addr"); err != nil {
			return err
		}
	}
	for name, n := range map[string]replica.Node{"2,000 labels": many, "a label of 40 KiB": long} {
		if err := a.refusedHello(ctx, e, name, body{1: id.Cluster, 2: n}, "label"); err != nil {
			return err
		}
	}
	long.Labels["host"] = strings.Repeat("x", 60<<10)
	huge, err := wire.Append(nil, kindHello, body{1: id.Cluster, 2: long})
	if err != nil {
		return err
	}
	huge = append(huge, make([]byte, 12<<20)...)
	return a.cases(ctx, map[string][]byte{"a label of 60 KiB and 12 MiB behind it": huge}, func(ctx context.Context) (*endpoint.Stream, error) { return a.open(ctx, e, endpoint.Control) }, 10*time.Second)
}

// fickle is a node whose lives do not count.
const fickle = "trudy"

func helloLives(ctx context.Context, a *attack) error {
	id, err := a.identity(fickle)
	if err != nil {
		return err
	}
	e, err := a.as(id, nil)
	if err != nil {
		return err
	}
	err = a.until(ctx, func(int) error {
		n := a.self(fickle)
		n.Incarnation = replica.NodeIncarnation(rand.Uint64()>>1 + 2)
		s, w, err := a.greet(ctx, e, body{1: id.Cluster, 2: n})
		if err != nil {
			return nil // its former link was superseded meanwhile
		}
		s.Conn().Close("")
		if w.OK {
			a.count("registered", 1)
		} else if strings.Contains(w.Reason, "within seconds") {
			a.count("refused by its pace", 1)
		}
		return nil
	})
	if most := 8 + int(a.Hold/time.Second)*2; a.counted("registered") > most || a.counted("refused by its pace") == 0 {
		return fmt.Errorf("registered %d times in %v, refused %d times by its pace", a.counted("registered"), a.Hold, a.counted("refused by its pace"))
	}
	return err
}

func linkKinds(ctx context.Context, a *attack) error {
	e, id, err := a.peer()
	if err != nil {
		return err
	}
	for _, kind := range []wire.Kind{0, 1, 2, 16, 33, 48, 50, 96, 103, 110, 111, 124, 200, 255} {
		l, err := a.linkOn(ctx, e, id)
		if err != nil {
			return err
		}
		b, err := wire.AppendBody(nil, kind, []byte{0xa0})
		if err != nil {
			return err
		}
		_, _ = l.Write(b)
		if err := l.down(5 * time.Second); err != nil {
			return fmt.Errorf("kind %d: %w", kind, err)
		}
		a.count("hung up", 1)
	}
	return nil
}

func linkLarge(ctx context.Context, a *attack) error {
	e, id, err := a.peer()
	if err != nil {
		return err
	}
	whole, err := wire.AppendBody(nil, kindReport, make([]byte, maxFrame))
	if err != nil {
		return err
	}
	return a.until(ctx, func(i int) error {
		l, err := a.linkOn(ctx, e, id)
		if err != nil {
			return nil // the former one is still being read
		}
		n := len(whole)
		if i%2 == 0 {
			n--
		}
		_ = l.SetWriteDeadline(time.Now().Add(3 * time.Second))
		if m, _ := l.Write(whole[:n]); m > 0 {
			a.count("MiB sent", m>>20)
		}
		if i%2 == 1 {
			if err := l.down(10 * time.Second); err != nil {
				return err
			}
			a.count("hung up", 1)
		}
		return nil
	})
}

func reports(ctx context.Context, a *attack) error {
	l, id, err := a.linked(ctx)
	if err != nil {
		return err
	}
	job, err := a.training(ctx)
	if err != nil {
		return err
	}
	mine := replica.Holder{Node: id.Node, Incarnation: life}
	var seq uint64
	err = a.until(ctx, func(i int) error {
		seq++
		r := replica.NodeReport{Job: job.ID, Holder: mine, Session: 1, Seq: seq, Fenced: job.Epoch, Settled: i%2 == 0, Offers: 1 << 20}
		for k := range job.Ranks { // of ranks and parts that are others'
			r.Parts = append(r.Parts, replica.Held{Part: replica.OfRank(replica.Rank(k)), Generation: job.Committed})
		}
		if i%3 == 0 {
			r.Holder.Node = job.Ranks[0].Node
		}
		if err := wire.Write(l, kindReport, r); err != nil {
			a.count("hung up", 1)
			if l, err = a.again(ctx); err != nil {
				return nil
			}
		}
		a.count("reports", 1)
		return nil
	})
	return err
}

// again links after the victim hung up.
func (a *attack) again(ctx context.Context) (*link, error) {
	l, _, err := a.linked(ctx)
	return l, err
}

func lies(ctx context.Context, a *attack) error {
	l, id, err := a.linked(ctx)
	if err != nil {
		return err
	}
	job, err := a.training(ctx)
	if err != nil {
		return err
	}
	say := func(k wire.Kind, v any) error { a.count("lies", 1); return wire.Write(l, k, v) }
	refused := func(what string, kind wire.Kind, field int) error {
		b, err := l.answer(ctx, kind)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if err := wasRefused(b, field); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		a.count("refused by name", 1)
		return nil
	}
	err = a.paced(ctx, 200, func(i int) error {
		rank := replica.Rank(i % len(job.Ranks))
		of := job.Ranks[rank]
		for kind := replica.ProcessDead; kind <= replica.Outvoted; kind++ {
			if err := say(kindEvidence, body{1: job.ID, 2: replica.Fault{Epoch: job.Epoch, Kind: kind, Rank: rank, Incarnation: of.Incarnation, Detail: "a lie"}}); err != nil {
				return err
			}
		}
		if err := say(kindSuspect, body{1: replica.Holder{Node: of.Node, Incarnation: 1}, 2: map[replica.JobID]replica.Step{job.ID: 1 << 40}}); err != nil {
			return err
		}
		return say(kindCorrupt, body{1: job.ID, 2: replica.OfRank(rank), 3: job.Committed, 4: replica.Digest{1}, 5: of.Node})
	})
	if err != nil {
		return err
	}
	if err := say(kindClaim, body{1: uint64(1), 2: replica.Claim{Job: job.ID, Rank: 0, Expect: job.Ranks[0].Incarnation, Holder: replica.Holder{Node: job.Ranks[0].Node, Incarnation: 1}}}); err != nil {
		return err
	}
	if err := refused("a claim for another node", kindClaimReply, 3); err != nil {
		return err
	}
	if err := say(kindClaim, body{1: uint64(2), 2: replica.Claim{Job: job.ID, Rank: 0, Expect: job.Ranks[0].Incarnation, Holder: replica.Holder{Node: id.Node, Incarnation: life}}}); err != nil {
		return err
	}
	if err := refused("a claim of a held rank", kindClaimReply, 3); err != nil {
		return err
	}
	if err := say(kindKV, body{1: uint64(3), 2: 1, 3: job.ID, 4: job.Epoch, 5: "forged", 6: []byte("x"), 8: replica.Rank(0), 12: uint32(1)}); err != nil {
		return err
	}
	if err := refused("a rendezvous word of another's rank", kindKVReply, 4); err != nil {
		return err
	}
	for verb := range uint8(7) { // lost, drain, clear, end, voters, add, remove
		if err := say(kindOperator, body{1: uint64(10 + verb), 2: job.Ranks[0].Node, 3: "a lie", 4: verb, 5: a.Job, 6: a.own.Addr}); err != nil {
			return err
		}
		b, err := l.answer(ctx, kindOrderReply)
		if err != nil {
			return fmt.Errorf("order %d: %w", verb, err)
		}
		const voters, reason = 4, 2
		if err := wasRefused(b, reason); verb != voters && err != nil {
			return fmt.Errorf("order %d without a signature: %w", verb, err)
		}
		a.count("refused by name", 1)
	}
	return nil
}

// wasRefused looks for a reason in a field of an answer.
func wasRefused(b []byte, field int) error {
	var m map[int]any
	if err := wire.Unmarshal(b, &m); err != nil {
		return err
	}
	if text, _ := m[field].(string); text == "" {
		return fmt.Errorf("taken: %v", m)
	}
	return nil
}

func views(ctx context.Context, a *attack) error {
	e, id, err := a.peer()
	if err != nil {
		return err
	}
	return a.until(ctx, func(int) error {
		s, w, err := a.greet(ctx, e, a.hello(id))
		if err != nil || !w.OK {
			return nil
		}
		defer s.Conn().Close("")
		for end := time.Now().Add(a.Hold / 2); time.Now().Before(end); {
			_ = s.SetWriteDeadline(time.Now().Add(a.Hold / 2))
			if wire.Write(s, kindAskView, body{}) != nil {
				a.count("hung up", 1)
				return nil
			}
			a.count("questions", 1)
		}
		return nil
	})
}
