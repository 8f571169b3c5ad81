package control

import (
	"bytes"
	"fmt"
	"net"
	"reflect"
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// idleLink is a link of which nobody writes the queue, and written takes what waits there.
func idleLink(t *testing.T, to Direction) *Link {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	return NewLink(near, to)
}

func written(t *testing.T, l *Link) (msgs []any) {
	t.Helper()
	for frame := l.Take(); frame != nil; frame = l.Take() {
		k, b, err := wire.Read(bytes.NewReader(frame), MaxLinkFrame)
		if err != nil {
			t.Fatal(err)
		}
		msg, err := Decode(l.to, k, b)
		if err != nil {
			t.Fatal(err)
		}
		msgs = append(msgs, msg)
	}
	return msgs
}

func down(l *Link) bool {
	select {
	case <-l.Down:
		return true
	default:
		return false
	}
}

// What one job sends never closes a link, and holds up neither other jobs nor what is nobody's.
func TestOneJobDoesNotFillALink(t *testing.T) {
	l := idleLink(t, ToLeader)
	loud, other := replica.JobID{1}, replica.JobID{2}
	left := map[any]int{}
	l.Full = func(of any) { left[of]++ }
	const sent = 2 * (laneCredits + laneMost)
	for i := range sent {
		l.Send(KVRequest{ID: uint64(i), Job: loud, Op: KVGet, Key: "k"})
	}
	l.Send(Evidence{Job: other})
	l.Send(StatusRequest{7})
	if down(l) || len(left) != 1 || left[loud] != laneCredits+laneMost {
		t.Fatalf("down: %v; left out: %v, want %d of job %v", down(l), left, laneCredits+laneMost, loud)
	}
	got := written(t, l)
	if at := slices.IndexFunc(got, func(m any) bool { e, ok := m.(Evidence); return ok && e.Job == other }); at < 0 || at > laneCredits {
		t.Errorf("the other job's message is number %d", at)
	}
	if at := slices.Index(got, any(StatusRequest{7})); at < 0 || at > laneCredits+1 {
		t.Errorf("the question of nobody's is number %d", at)
	}
	next := uint64(0)
	for _, m := range got {
		if r, ok := m.(KVRequest); ok {
			if r.ID != next {
				t.Fatalf("request %d comes where %d should", r.ID, next)
			}
			next++
		}
	}
	if next != laneCredits+laneMost {
		t.Errorf("%d requests came", next)
	}
	if len(l.queue.lanes) != 0 || l.queue.frames != 0 || l.queue.line.Len() != 0 {
		t.Errorf("an empty queue has %d lanes and counts %d frames", len(l.queue.lanes), l.queue.frames)
	}
}

// The newest report of a job replaces the one that waits, wherever that waits; other kinds and other jobs stay.
func TestTheNewestReplaces(t *testing.T) {
	for _, before := range []int{0, laneCredits + 3} {
		l := idleLink(t, ToLeader)
		a, b := replica.JobID{1}, replica.JobID{2}
		for i := range before {
			l.Send(KVRequest{ID: uint64(i), Job: a})
		}
		for seq := range uint64(10_000) {
			l.Send(replica.NodeReport{Job: a, Seq: seq})
			l.Send(replica.NodeReport{Job: b, Seq: seq})
		}
		l.Send(KVRequest{ID: 99, Job: a})
		var seqs []uint64
		got := written(t, l)
		for _, m := range got {
			if r, ok := m.(replica.NodeReport); ok {
				seqs = append(seqs, r.Seq)
			}
		}
		if !slices.Equal(seqs, []uint64{9_999, 9_999}) || len(got) != before+3 || down(l) {
			t.Errorf("behind %d requests: reports %v, %d messages; down: %v", before, seqs, len(got), down(l))
		}
		if last, ok := got[len(got)-1].(KVRequest); !ok || last.ID != 99 {
			t.Errorf("the request that came last is not the last: %+v", got[len(got)-1])
		}
	}
}

// Offers that wait are added to: the node has heard of none of them.
func TestOffersThatWaitAreOneMessage(t *testing.T) {
	l := idleLink(t, ToNode)
	job := replica.JobID{1}
	for r := range replica.Rank(300) {
		o := Offers{Job: job}
		o.Add(r, 0)
		l.Send(o)
	}
	again := Offers{Job: job}
	again.Add(17, 4)
	l.Send(again)
	want := []any{Offers{job, []OfferRange{{0, 17, 0}, {17, 1, 4}, {18, 282, 0}}}}
	if got := written(t, l); !reflect.DeepEqual(got, want) || down(l) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if n := len(Offers{Ranges: slices.Repeat([]OfferRange{{0, 1 << 31, 0}}, 1<<20)}.In(1 << 10)); n != 1<<10 {
		t.Errorf("%d ranks are offered by ranges that lie over each other", n)
	}
	if n := len(Offers{Ranges: []OfferRange{{1, 1 << 31, 0}, {3, 1, 2}}}.In(4)); n != 3 {
		t.Errorf("%d ranks of a job of four are offered by ranges of any size, want 3", n)
	}
}

// What a node keeps for the rendezvous comes in order, whatever the jobs, and its end last.
func TestWhatIsKeptEndsLast(t *testing.T) {
	l := idleLink(t, ToLeader)
	const many = laneCredits + laneMost + 10
	for i := range many {
		l.Send(KVKept{Job: replica.JobID{byte(i)}, Epoch: replica.Epoch(i)})
	}
	l.Send(KVKept{Done: true})
	l.Send(StatusRequest{1})
	at := 0
	for _, m := range written(t, l) {
		if k, ok := m.(KVKept); ok {
			if k.Done != (at == many) || !k.Done && k.Epoch != replica.Epoch(at) {
				t.Fatalf("number %d is %+v", at, k)
			}
			at++
		}
	}
	if at != many+1 || down(l) {
		t.Errorf("%d of %d came; down: %v", at, many+1, down(l))
	}
}

// requests sends so many requests of a job, numbered from a first one.
func requests(l *Link, job replica.JobID, first, n int) {
	for i := range n {
		l.Send(KVRequest{ID: uint64(first + i), Job: job, Op: KVGet, Key: "k"})
	}
}

// reads takes so many messages off a link; of which job's reports it tells the newest.
func reads(t *testing.T, l *Link, n int) (newest uint64, requests int) {
	t.Helper()
	for range n {
		frame := l.Take()
		if frame == nil {
			break
		}
		k, b, err := wire.Read(bytes.NewReader(frame), MaxLinkFrame)
		if err != nil {
			t.Fatal(err)
		}
		msg, err := Decode(l.to, k, b)
		if err != nil {
			t.Fatal(err)
		}
		switch m := msg.(type) {
		case replica.NodeReport:
			newest = m.Seq
		case KVRequest:
			requests++
		}
	}
	return newest, requests
}

// However often a report is made anew while others of its job wait, it leaves when its turn comes, and so does all else.
func TestWhatIsReplacedKeepsItsTurn(t *testing.T) {
	for _, backlog := range []int{2, laneCredits, 3 * laneCredits, laneCredits + laneMost - 1} {
		for _, first := range []bool{false, true} { // the report stands in the line of all, or waits in the lane
			l := idleLink(t, ToLeader)
			job, out := replica.JobID{1}, 0
			l.Full = func(any) { out++ }
			if first {
				l.Send(replica.NodeReport{Job: job, Seq: 1})
			}
			requests(l, job, 0, backlog)
			asked, came, left, seq := backlog, 0, uint64(0), uint64(1)
			for range backlog/5 + 2 { // as many are asked as are read: the backlog stays
				seq++
				l.Send(replica.NodeReport{Job: job, Seq: seq})
				requests(l, job, asked, 5)
				asked += 5
				r, n := reads(t, l, 5)
				came, left = came+n, max(left, r)
			}
			if left == 0 {
				t.Errorf("backlog %d, first %v: none of %d reports has left after %d others", backlog, first, seq, came)
			}
			r, n := reads(t, l, 10*backlog)
			if came += n; max(left, r) != seq {
				t.Errorf("backlog %d, first %v: report %d is the newest that comes, of %d", backlog, first, max(left, r), seq)
			}
			if came != asked-out || len(l.queue.lanes) != 0 || l.queue.line.Len() != 0 {
				t.Errorf("backlog %d, first %v: %d of %d requests came, %d were left out, %d lanes are left", backlog, first, came, asked, out, len(l.queue.lanes))
			}
		}
	}
}

// A report that stands in the line of all is made anew, again and again, while others wait: the lane goes on until it is empty.
func TestALaneGoesOnThoughItsReportsAreReplaced(t *testing.T) {
	l := idleLink(t, ToLeader)
	job := replica.JobID{1}
	requests(l, job, 0, laneCredits+1)
	asked, came := laneCredits+1, 0
	for seq := range uint64(2 * laneCredits) {
		l.Send(replica.NodeReport{Job: job, Seq: seq})
		requests(l, job, asked, 1)
		asked++
		_, n := reads(t, l, 2)
		came += n
	}
	_, n := reads(t, l, 2*asked)
	if came += n; came != asked || len(l.queue.lanes) != 0 {
		t.Errorf("%d of %d requests came; %d lanes are left", came, asked, len(l.queue.lanes))
	}
}

// A newer report never costs the one that waits its place: where the lane is full, one of the two leaves.
func TestAFullLaneKeepsItsNewestReport(t *testing.T) {
	l := idleLink(t, ToLeader)
	job := replica.JobID{1}
	l.Send(replica.NodeReport{Job: job, Seq: 1})
	requests(l, job, 0, 2*(laneCredits+laneMost))
	l.Send(replica.NodeReport{Job: job, Seq: 2})
	if newest, _ := reads(t, l, laneCredits+laneMost); newest != 2 {
		t.Errorf("report %d comes, want the newest", newest)
	}
}

// What a node says of a job by itself, and what a leader does, always has a place: nobody says it again when a flood of the job's processes is
// over.
func TestOnlyWhatProcessesCauseIsLeftOut(t *testing.T) {
	job := replica.JobID{1}
	for to, flood := range map[Direction]any{ToLeader: KVRequest{Job: job}, ToNode: KVReply{Value: make([]byte, 1000)}} {
		l := idleLink(t, to)
		left := 0
		l.Full = func(any) { left++ }
		for range 2 * (laneCredits + laneMost) {
			l.SendFor(job, flood)
		}
		for _, r := range table {
			if r.to != to || !r.handled || r.job < 0 {
				continue
			}
			before := left
			l.SendFor(job, reflect.Zero(r.typ).Interface())
			if out := left > before; before == 0 || out != slices.Contains([]wire.Kind{kindKV, kindEvidence, kindReject}, r.kind) {
				t.Errorf("%v is left out: %v, behind %d others that were", r.typ, out, before)
			}
		}
	}
}

// What waits in a lane is bounded in bytes too.
func TestALaneIsBoundedInBytes(t *testing.T) {
	l := idleLink(t, ToNode)
	job, left := replica.JobID{1}, 0
	l.Full = func(any) { left++ }
	const each, sent = 32 << 10, 2000
	for range sent {
		l.SendFor(job, KVReply{Value: make([]byte, each)})
	}
	n := len(written(t, l))
	if most := (laneBytes + laneCredits*(each+1000)) / each; n > most || n < most-laneCredits || n+left != sent || down(l) {
		t.Errorf("%d answers of 32 KiB wait, at most %d; %d are left out; down: %v", n, most, left, down(l))
	}
	for range sent / 2 { // there is room again
		l.SendFor(job, KVReply{Value: make([]byte, each)})
	}
	if again := len(written(t, l)); again != sent/2 || l.queue.lanes[job] != nil {
		t.Errorf("%d of %d come once the lane was empty", again, sent/2)
	}
}

// Claims and creates were nobody's: 1,024 of them that waited closed the link of the whole node, and so did the answers.
func TestALoopOfClaimsAndCreatesClosesNoLink(t *testing.T) {
	const each = 2000
	loud, other := replica.JobID{1}, replica.JobID{2}
	for to, says := range map[Direction]func(l *Link, i uint64){
		ToLeader: func(l *Link, i uint64) {
			l.Send(CreateRequest{ID: i, Owner: 1002})
			l.Send(ClaimRequest{ID: i, Claim: replica.Claim{Job: loud}})
		},
		ToNode: func(l *Link, i uint64) {
			l.SendFor(User(1002), CreateReply{ID: i})
			l.SendFor(loud, ClaimReply{ID: i})
		},
	} {
		l := idleLink(t, to)
		left := 0
		l.Full = func(any) { left++ }
		for i := range uint64(each) {
			says(l, i)
		}
		var commit, order any = replica.Pinned{Job: other}, StatusRequest{7}
		if to == ToNode {
			commit, order = replica.Candidate{Job: other}, StatusReply{ID: 7, Status: LeaderStatus{Jobs: []JobStatus{}}}
		}
		l.Send(commit)
		l.Send(order)
		if down(l) {
			t.Fatalf("direction %d: the link is closed", to)
		}
		got := written(t, l)
		if len(got) != 2*each+2 || left != 0 {
			t.Errorf("direction %d: %d messages come, %d are left out", to, len(got), left)
		}
		for _, m := range []any{commit, order} {
			if at := slices.IndexFunc(got, func(is any) bool { return reflect.TypeOf(is) == reflect.TypeOf(m) }); at < 0 || at > 2*laneCredits+1 {
				t.Errorf("direction %d: the other user's %T is number %d", to, m, at)
			}
		}
		next := map[reflect.Type]uint64{}
		for _, m := range got {
			if id := reflect.ValueOf(m).FieldByName("ID"); id.IsValid() && reflect.TypeOf(m) != reflect.TypeOf(order) {
				if id.Uint() != next[reflect.TypeOf(m)] {
					t.Fatalf("direction %d: %T %d comes where %d should", to, m, id.Uint(), next[reflect.TypeOf(m)])
				}
				next[reflect.TypeOf(m)]++
			}
		}
	}
}

// TestWhatIsKeptIsEncodedWhenItIsWritten: a new leader is told all that the processes of a node contributed. What waits of it takes no memory beside
// the desk's own: at an election a user's 64 MiB were there once more as frames.
func TestWhatIsKeptIsEncodedWhenItIsWritten(t *testing.T) {
	l := idleLink(t, ToLeader)
	var all []KVKept
	for i := range 2 * laneCredits {
		all = append(all, KVKept{Job: replica.JobID{1}, Epoch: 1, Entries: []KVEntry{{Op: KVSet, Key: fmt.Sprint(i), Value: make([]byte, 1<<10), Seq: uint64(i + 1)}}})
	}
	all = append(all, KVKept{Done: true})
	for _, k := range all {
		l.Send(k)
	}
	encoded := 0
	for e := l.queue.line.Front(); e != nil; e = e.Next() {
		encoded += len(e.Value.(*waiting).frames)
	}
	for _, lane := range l.queue.lanes {
		for _, w := range lane.waits {
			encoded += len(w.frames)
		}
	}
	if encoded > 0 {
		t.Errorf("%d of %d frames are encoded though none is written", encoded, len(all))
	}
	for i, k := range all {
		want, err := Encode(ToLeader, k)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.Take(); len(want) != 1 || !bytes.Equal(got, want[0]) {
			t.Fatalf("frame %d is not what it should be", i)
		}
	}
	if l.Take() != nil {
		t.Error("there is more")
	}
}
