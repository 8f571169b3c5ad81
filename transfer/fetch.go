package transfer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/replicad/replicad/replica"
)

// fetch is one Fetch under way. mu guards report, errs and the start; the queue guards itself.
type fetch struct {
	key    Key
	begin  func(replica.Manifest) (Sink, error)
	cancel context.CancelCauseFunc // for what no other source can mend: begin or put failed

	mu       sync.Mutex
	started  bool
	starting chan struct{} // closed once begin has returned
	manifest replica.Manifest
	sink     Sink
	queue    *queue
	mix      *mix
	report   Report
	errs     map[replica.NodeName][]error
	served   map[replica.NodeName]bool          // a lane of it was not at fault
	whole    int                                // lanes to sources that have all, not ended
	alone    chan struct{}                      // closed when there are none
	shuffle  *rand.Rand                         // where others receive the part too: they then have what this one lacks, and serve it on
	quic     map[replica.NodeName]bool          // it has a lane over QUIC
	beside   []*Source                          // lanes over TCP to those
	lanes    map[replica.NodeName]int           // to sources that have all, not ended
	gates    map[replica.NodeName]chan struct{} // of nodes in reserve; closed once one may be asked
	reserve  []replica.NodeName                 // those whose gate is closed to them, the next first
	working  map[*Source]bool                   // of those with an address: false once the lane has failed, until it brings a chunk again
}

// errComplete ends the lanes that are still waiting when the last chunk was put.
var errComplete = errors.New("transfer complete")

// Fetch brings the part that k names from sources into the sink that begin returns. begin is called once, when a manifest
// whose root is k.Root has arrived. Chunks come from the first few sources at once and are verified before Put; a source that fails
// is set aside with its reason, the next one takes its place, and the others finish. The error names every source that failed when none is left, or what
// began or put could not do. Whatever was put stays put: a later Fetch with a sink that has it goes on from there.
func Fetch(ctx context.Context, k Key, sources []Source, begin func(replica.Manifest) (Sink, error)) (Report, error) {
	lanes, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f := &fetch{key: k, begin: begin, cancel: cancel, starting: make(chan struct{}), alone: make(chan struct{}), mix: newMix(), errs: make(map[replica.NodeName][]error), served: make(map[replica.NodeName]bool), quic: make(map[replica.NodeName]bool), working: make(map[*Source]bool), lanes: make(map[replica.NodeName]int), gates: make(map[replica.NodeName]chan struct{})}
	f.report.By, f.report.Failed = make(map[replica.NodeName]uint64), make(map[replica.NodeName]string)

	var wg sync.WaitGroup
	for i := range sources {
		s := &sources[i]
		if s.Receives {
			f.shuffle = rand.New(rand.NewPCG(uint64(k.Rank), uint64(k.Incarnation)))
			continue
		}
		if f.lanes[s.Node]++; f.lanes[s.Node] == 1 && len(f.lanes) > donorsAtOnce {
			f.gates[s.Node], f.reserve = make(chan struct{}), append(f.reserve, s.Node)
		}
		if f.quic[s.Node] = f.quic[s.Node] || s.Over == QUIC; s.At != "" {
			f.working[s] = true
		}
		f.whole++
	}
	for i := range sources {
		if s := &sources[i]; !s.Receives && s.Over == TCP && f.quic[s.Node] {
			f.beside = append(f.beside, s)
		}
	}
	if f.whole == 0 {
		close(f.alone)
	}
	var watch sync.WaitGroup
	if len(f.reserve) > 0 {
		watch.Go(func() { f.hasten(lanes) })
	}
	for i := range sources {
		s := &sources[i]
		wg.Go(func() { f.ended(s, f.source(lanes, s)) })
	}
	wg.Wait()
	cause := context.Cause(lanes)
	cancel(nil)
	watch.Wait()
	return f.finish(ctx, cause)
}

// hasten has a node of the reserve asked each time that nothing has come for stallAfter: those that are asked may all say "not yet", or bring a
// little and never stall.
func (f *fetch) hasten(ctx context.Context) {
	for before := uint64(0); ; {
		select {
		case <-time.After(stallAfter):
		case <-ctx.Done():
			return
		}
		f.mu.Lock()
		beginning := f.started && f.queue == nil // the receiver is making room
		if f.report.Bytes == before && !beginning {
			f.callReserveLocked()
		}
		before = f.report.Bytes
		f.mu.Unlock()
	}
}

func (f *fetch) callReserveLocked() {
	if len(f.reserve) > 0 {
		close(f.gates[f.reserve[0]])
		f.reserve = f.reserve[1:]
	}
}

// finish is what Fetch returns; no lane runs any more.
func (f *fetch) finish(ctx context.Context, cause error) (Report, error) {
	for node, errs := range f.errs {
		if f.served[node] && !slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, ErrCorrupt) }) {
			continue
		}
		texts := make([]string, len(errs))
		for i, err := range errs {
			texts[i] = reason(err)
			if errors.Is(err, ErrCorrupt) && !slices.Contains(f.report.Corrupt, node) {
				f.report.Corrupt = append(f.report.Corrupt, node)
			}
		}
		f.report.Failed[node] = strings.Join(texts, "; ")
	}
	slices.Sort(f.report.Corrupt)
	if errors.Is(cause, errComplete) {
		return f.report, nil
	}
	what := fmt.Sprintf("fetch %v %v for rank %d, epoch %d", f.key.Part, f.key.Generation, f.key.Rank, f.key.Epoch)
	if cause != nil && ctx.Err() == nil {
		return f.report, fmt.Errorf("%s: %w", what, cause)
	}
	all := make([]error, 0, len(f.errs)+1)
	if cause != nil {
		all = append(all, cause)
	}
	nodes := make([]replica.NodeName, 0, len(f.errs))
	for node := range f.errs {
		nodes = append(nodes, node)
	}
	slices.Sort(nodes)
	for _, node := range nodes {
		for _, err := range f.errs[node] {
			all = append(all, fmt.Errorf("%s: %w", node, err))
		}
	}
	return f.report, fmt.Errorf("%s: none of %d sources could finish it: %w", what, len(nodes), errors.Join(all...))
}

// reason is err for people; a wrong digest carries the name of the fault it is evidence for.
func reason(err error) string {
	if errors.Is(err, ErrCorrupt) {
		return replica.BadDigest.String() + ": " + err.Error()
	}
	return err.Error()
}

// ended notes how a lane ended.
func (f *fetch) ended(s *Source, err error) {
	f.mix.gone(s)
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.working, s)
	if !s.Receives {
		if f.whole--; f.whole == 0 {
			close(f.alone)
		}
		if f.lanes[s.Node]--; f.lanes[s.Node] == 0 {
			f.callReserveLocked()
		}
	}
	if errors.Is(err, errNotWanted) || s.Receives && err != nil && !errors.Is(err, ErrCorrupt) {
		return // a receiver's end is no failure of a source
	}
	f.report.Lanes = append(f.report.Lanes, f.mix.report(s, err))
	if err == nil {
		f.served[s.Node] = true
		return
	}
	f.errs[s.Node] = append(f.errs[s.Node], err)
}

// source pulls chunks over one lane until all are done; nil means that it was not at fault.
func (f *fetch) source(ctx context.Context, s *Source) error {
	if gate := f.gates[s.Node]; gate != nil && !s.Receives {
		select {
		case <-gate:
		case <-ctx.Done():
			return errNotWanted
		}
	}
	if !f.wanted(ctx, s) {
		return errNotWanted
	}
	if s.Receives {
		return f.receiver(ctx, s)
	}
	if s.At != "" {
		return f.pullAgain(ctx, s)
	}
	return f.pullAll(ctx, s)
}

// pullAgain pulls from one address of several. What fails there is tried again, later each time, for as long as another lane to the node
// works; the chunks are back in the queue meanwhile.
func (f *fetch) pullAgain(ctx context.Context, s *Source) error {
	for wait := redialFirst; ; wait = min(2*wait, redialMost) {
		err := f.pullAll(ctx, s)
		f.works(s, false)
		if err == nil || final(err) {
			return err
		}
		select {
		case <-time.After(wait/2 + rand.N(wait)):
		case <-ctx.Done():
			return err
		}
		if !f.othersWork(s) {
			return err
		}
	}
}

// final tells whether a lane ended for a reason that another try, or another address, would meet again: the peer's word, or its bytes.
func final(err error) bool {
	return slices.ContainsFunc([]error{ErrCorrupt, ErrFenced, ErrUnknownPart, ErrNotYet, ErrRefused, ErrPeer, ErrProtocol}, func(e error) bool { return errors.Is(err, e) })
}

func (f *fetch) works(s *Source, yes bool) {
	if s.At == "" {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.working[s] = yes
}

// othersWork tells whether another lane to the node of s has not failed.
func (f *fetch) othersWork(s *Source) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for o, yes := range f.working {
		if yes && o.Node == s.Node {
			return true
		}
	}
	return false
}

// receiver pulls what a source has that receives the part itself. That may have begun later than this fetch, or begin anew.
func (f *fetch) receiver(ctx context.Context, s *Source) error {
	for {
		err := f.pullAll(ctx, s)
		if err == nil || errors.Is(err, ErrCorrupt) || errors.Is(err, errNoMore) {
			return err
		}
		select {
		case <-time.After(retryMost / 4):
		case <-f.alone:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// pullAll dials and pulls; it comes back to a lane that yielded.
func (f *fetch) pullAll(ctx context.Context, s *Source) error {
	dialing, stop := context.WithTimeout(ctx, dialAfter)
	l, err := s.Dial(dialing)
	stop()
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("dial: %w", err)
	}
	defer l.Close()
	for {
		err = retry(ctx, func() error { return f.lane(ctx, s, l) })
		if errors.Is(err, errStale) {
			continue
		}
		if !errors.Is(err, errYield) {
			return f.excuse(ctx, err)
		}
		if !f.standBack(ctx, s) {
			return nil
		}
	}
}

// errNotWanted is a lane that did not start: a small part comes over QUIC alone, where that brings it.
var errNotWanted = errors.New("one lane is enough")

// wanted waits, for a source that receives the part itself, until there is a manifest, and for a lane over TCP to a node that has one over QUIC, until that has brought the manifest, and tells whether the part is
// worth more lanes, or needs another. QUIC gets a head start only: where that one does not get through, the others must (RFC 8305, section 5, between two families).
func (f *fetch) wanted(ctx context.Context, s *Source) bool {
	if s.Receives {
		select {
		case <-f.starting:
		case <-f.alone: // where a manifest came before, receivers may have the rest
		case <-ctx.Done():
			return false
		}
		return f.wide()
	}
	if s.Over == QUIC || !f.quic[s.Node] {
		return true
	}
	late := time.NewTimer(headStart)
	defer late.Stop()
	select {
	case <-f.starting:
		return f.wide() || f.stuck(ctx)
	case <-late.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// stuck waits until nothing has come for headStart: UDP may bring the manifest, and no more. False where the fetch has ended first.
func (f *fetch) stuck(ctx context.Context) bool {
	for before := uint64(0); ; {
		select {
		case <-time.After(headStart):
		case <-ctx.Done():
			return false
		}
		f.mu.Lock()
		bytes := f.report.Bytes
		f.mu.Unlock()
		if bytes == before {
			return true
		}
		before = bytes
	}
}

// wide tells whether the part is worth more lanes; once it has started.
func (f *fetch) wide() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.manifest.Bytes >= wideFrom
}

// errYield ends a stream over QUIC that is not of use now.
var errYield = errors.New("yields to the lanes over TCP")

// errStale ends a stream that was idle while the receiver made room, looked for what it has of the part, or had all chunks asked for on other lanes: the
// source has given it up by now, or soon will.
var errStale = errors.New("it was idle for too long")

// standBack waits until a lane over QUIC is of use again; false where the fetch has ended first.
func (f *fetch) standBack(ctx context.Context, s *Source) bool {
	for {
		yes, again, changed := f.mix.yields(s, time.Now())
		if !yes {
			return ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-again:
		case <-ctx.Done():
			return false
		}
	}
}

// excuse forgives a source what it ran into because the fetch was already complete or given up. What the source did of
// its own stays its fault, however late it is noticed.
func (f *fetch) excuse(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	switch {
	case cause == nil, errors.Is(err, ErrCorrupt):
		return err
	case errors.Is(err, cause), onlyInterrupted(err):
		return nil
	}
	return err
}

// start calls begin for the first good manifest; the others wait for it and share its sink.
func (f *fetch) start(ctx context.Context, m replica.Manifest) error {
	f.mu.Lock()
	first := !f.started
	f.started = true
	f.mu.Unlock()
	if !first {
		select {
		case <-f.starting:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	sink, err := f.begin(m)
	if err != nil {
		err = fmt.Errorf("begin: %w", err)
		f.cancel(err)
		return err
	}
	var reused uint64
	q := newQueue(len(m.Chunks), f.shuffle, func(i int) bool {
		have := sink.Have(i)
		if have {
			_, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
			reused += n
		}
		return have
	})
	f.mu.Lock()
	f.manifest, f.sink, f.queue, f.report.Reused = m, sink, q, reused
	f.mu.Unlock()
	if f.wide() {
		f.mix.expects(f.beside, time.Now())
	}
	close(f.starting)
	return nil
}

// retry repeats try while the peer asks for patience.
func retry(ctx context.Context, try func() error) error {
	wait, waited := retryFirst, time.Duration(0)
	for {
		err := try()
		if err == nil || !Retryable(err) || waited >= patience {
			return err
		}
		pause := wait/2 + rand.N(wait) // many may have been refused at the same moment
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
		waited += pause
		wait = min(2*wait, retryMost)
	}
}
