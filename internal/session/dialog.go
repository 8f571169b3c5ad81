package session

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/replicad/replicad/internal/durable/kept"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// fault ends a session: the peer broke the rules, and is told how.
type fault struct {
	request uint32
	code    int32
	err     error
}

func (f *fault) Error() string { return f.err.Error() }
func (f *fault) Unwrap() error { return f.err }

// dialog is what a session remembers between messages: pure, owned by the peer's reader.
type dialog struct {
	greeted  bool
	launcher bool
	regions  []replica.Region // of the geometry being sent
	attached *geometry        // that an attach has ended; nil: none yet
	back     bool             // the rank has its arena since before this connection
	recipe   []byte           // of the growth being sent
}

// geometry tells one that was sent from another: an attach may be asked again, never with another one.
type geometry struct {
	regions int
	digest  [sha256.Size]byte
	group   replica.GroupID
}

// take turns one message into an event; nil for one that is not complete yet. Descriptors that it keeps are removed from files.
func (d *dialog) take(token func(job string) string, p *conn, b []byte, files *[]*os.File) (Event, error) {
	h, body, err := wire.ParseRank(b)
	if err != nil {
		code := wire.CodeInvalid
		if _, ok := errors.AsType[*wire.RankVersionError](err); ok {
			code = wire.CodeVersion
		}
		return nil, &fault{code: code, err: err}
	}
	ev, err := d.event(token, p, h, body, files)
	if err != nil {
		if _, ok := errors.AsType[*fault](err); !ok {
			err = &fault{request: h.Request, code: wire.CodeInvalid, err: err}
		}
		return nil, err
	}
	return ev, nil
}

func (d *dialog) event(token func(job string) string, p *conn, h wire.RankHeader, body []byte, files *[]*os.File) (Event, error) {
	switch h.Type {
	case wire.MHello, wire.MReattach, wire.MRunHello:
		return d.greet(token, p, h, body, files)
	}
	if !d.greeted {
		return nil, fmt.Errorf("message type %d before a hello", h.Type)
	}
	if d.launcher && h.Type == wire.MRunAgent {
		v, err := wire.ParseAgent(body)
		return RunAgent{p, v}, err
	}
	if d.launcher {
		v, err := wire.ParseRunExited(body)
		switch h.Type {
		case wire.MRunRunning:
			return RunRunning{p, v}, err
		case wire.MRunLeaving:
			return RunLeaving{p}, err
		case wire.MRunExited:
			return RunExited{p, v}, err
		}
		return nil, fmt.Errorf("message type %d from a launcher", h.Type)
	}
	switch h.Type {
	case wire.MRegions:
		return nil, d.addRegions(body)
	case wire.MAttach:
		return d.attach(p, h, body)
	case wire.MRecipePart:
		return nil, d.addRecipe(body)
	case wire.MGrow:
		return d.grow(p, h, body)
	case wire.MResumed:
		if len(body) != 0 {
			return nil, fmt.Errorf("resumed: body of %d bytes, want none", len(body))
		}
		return Resumed{p, h}, nil
	case wire.MFrom:
		if len(body) != 0 {
			return nil, fmt.Errorf("from: body of %d bytes, want none", len(body))
		}
		return From{p, h}, nil
	case wire.MRecipe:
		n, err := wire.ParseRecipe(body)
		return Recipe{p, h, n}, err
	case wire.MSealed:
		v, err := wire.ParseSealed(body)
		return Sealed{p, h, v}, err
	case wire.MStopped:
		v, err := wire.ParseStopped(body)
		return Stopped{p, h, v}, err
	case wire.MLoaded:
		v, err := wire.ParseLoaded(body)
		return Loaded{p, h, v}, err
	case wire.MFail:
		return Fail{p, h, replica.Cut(string(body), wire.MaxRefusedText)}, nil
	case wire.MReject:
		return Reject{p, h, replica.Cut(string(body), wire.MaxRefusedText)}, nil
	case wire.MUnloadable:
		return Unloadable{p, h, replica.Cut(string(body), wire.MaxRefusedText)}, nil
	case wire.MPause:
		most, err := wire.ParsePause(body)
		return Pause{p, h, most}, err
	case wire.MEnding:
		most, err := wire.ParsePause(body)
		return Ending{p, h, most}, err
	case wire.MLacks:
		text, err := wire.ParseLacks(body)
		return Lacks{p, h, replica.Line(text, replica.MaxLacks)}, err
	case wire.MSaid:
		list, err := wire.ParseRemarks(body)
		return Said{p, h, list}, err
	case wire.MLeave:
		if len(body) != 0 {
			return nil, fmt.Errorf("leave: body of %d bytes, want none", len(body))
		}
		return Leave{p, h}, nil
	case wire.MKVSet, wire.MKVGet, wire.MBarrier, wire.MKVAdd, wire.MKVCheck, wire.MKVCompareSet, wire.MKVDelete:
		v, err := wire.ParseKV(h.Type, body)
		return KV{p, h, h.Type, v}, err
	case wire.MScope:
		if len(body) != 0 {
			return nil, fmt.Errorf("scope: body of %d bytes, want none", len(body))
		}
		return Scope{p, h}, nil
	}
	return nil, fmt.Errorf("message type %d is not one that a rank sends", h.Type)
}

// greet takes the first message of a session.
func (d *dialog) greet(token func(job string) string, p *conn, h wire.RankHeader, body []byte, files *[]*os.File) (Event, error) {
	if d.greeted {
		return nil, fmt.Errorf("a second hello on one connection: open another for another rank")
	}
	if h.Type == wire.MRunHello {
		v, err := wire.ParseRunHello(body)
		if err != nil {
			return nil, err
		}
		if err := admit(token(v.Job), v.ABI, v.Token, h.Request); err != nil {
			return nil, err
		}
		ev := RunHello{Peer: p, Header: h, RunHello: v}
		if v.Flags&wire.RunKeeps != 0 {
			if len(*files) != 1 {
				return nil, fmt.Errorf("a launcher's files to be kept, with %d descriptors: want one", len(*files))
			}
			if ev.Kept, err = kept.Open((*files)[0]); err != nil {
				return nil, err
			}
			*files = nil
		}
		d.greeted, d.launcher = true, true
		p.launcher.Store(true)
		return ev, nil
	}
	v, err := wire.ParseHello(body)
	if err != nil {
		return nil, err
	}
	if err := admit(token(v.Job), v.ABI, v.Token, h.Request); err != nil {
		return nil, err
	}
	ev := Hello{Peer: p, Header: h, Hello: v}
	if h.Type == wire.MReattach {
		if len(*files) != 1 {
			return nil, fmt.Errorf("reattach with %d descriptors, want the arena's", len(*files))
		}
		ev.File, *files = (*files)[0], nil
		d.back = true
	}
	d.greeted = true
	return ev, nil
}

// admit checks the version and the token of a hello.
func admit(token string, abi uint32, got string, request uint32) error {
	if abi != wire.RankABI {
		return &fault{request, wire.CodeVersion, fmt.Errorf("library version %d, this daemon speaks %d: use the libreplicad that came with it", abi, wire.RankABI)}
	}
	if token != "" && subtle.ConstantTimeCompare([]byte(token), []byte(got)) != 1 {
		return &fault{request, wire.CodeRefused, errors.New("the token is not the job's: set REPLICAD_TOKEN, or --token-file, to what `replicad job token NAME` prints on a node")}
	}
	return nil
}

// addRegions takes one run of region records. Runs come in order. A run that came before, or a part of one, may come again with equal content: a
// client repeats what it does not know to have been taken.
func (d *dialog) addRegions(body []byte) error {
	first, regions, err := wire.ParseRegions(body)
	if err != nil {
		return err
	}
	if first == 0 && d.hasArena() {
		d.regions, d.recipe = nil, nil // of a growth that was given up
	}
	at, have := uint64(first), uint64(len(d.regions))
	switch {
	case at > have:
		return fmt.Errorf("region %d comes after %d regions: want them in order, from 0", at, have)
	case at+uint64(len(regions)) > replica.MaxRegions:
		return fmt.Errorf("%d regions and %d more: at most %d", at, len(regions), replica.MaxRegions)
	}
	again := min(have-at, uint64(len(regions)))
	for i, r := range regions[:again] {
		if was := d.regions[at+uint64(i)]; !slices.Equal(records(was), records(r)) {
			return fmt.Errorf("region %d was %q, and comes again as another one, %q: what is sent again must be the same; open another connection for another geometry", at+uint64(i), was.Name, r.Name)
		}
	}
	d.regions = append(d.regions, regions[again:]...)
	return nil
}

// records are regions as they are sent.
func records(regions ...replica.Region) []byte { return wire.AppendRegions(nil, 0, regions) }

// attach ends the geometry. Without one it asks again with the geometry before; with one it must be the same.
func (d *dialog) attach(p *conn, h wire.RankHeader, body []byte) (Event, error) {
	n, group, err := wire.ParseAttach(body)
	if err != nil {
		return nil, err
	}
	ev := Attach{Peer: p, Header: h, Regions: d.regions, Group: group}
	is := geometry{regions: len(d.regions), group: group}
	if d.attached != nil && d.attached.group == replica.NoGroup {
		d.attached.group = group // it may be named after a refusal for want of it
	}
	if was := d.attached; was != nil && len(d.regions) == 0 {
		is.regions, is.digest, ev.Again = was.regions, was.digest, true
	} else {
		is.digest = sha256.Sum256(records(d.regions...))
	}
	switch was := d.attached; {
	case uint64(n) != uint64(is.regions):
		return nil, fmt.Errorf("attach with %d regions, %d were sent", n, is.regions)
	case was != nil && is != *was:
		return nil, fmt.Errorf("attach again with other regions than before (%d in group %s, now %d in group %s): what is sent again must be the same; open another connection for another geometry", was.regions, groupName(was.group), is.regions, groupName(is.group))
	}
	d.regions, d.attached = nil, &is
	return ev, nil
}

// hasArena tells whether the rank may ask to grow: what it sends then is a geometry beside that of its arena.
func (d *dialog) hasArena() bool { return d.attached != nil || d.back }

// addRecipe takes a piece of the recipe. Pieces come in order, and a whole one begins at 0.
func (d *dialog) addRecipe(body []byte) error {
	p, err := wire.ParsePiece(body)
	if err != nil {
		return err
	}
	if p.Offset == 0 {
		d.recipe = nil
	}
	if int(p.Offset) != len(d.recipe) || !d.hasArena() {
		return fmt.Errorf("piece of a recipe from byte %d, behind %d: want the pieces in order, from a rank that has attached", p.Offset, len(d.recipe))
	}
	d.recipe = append(d.recipe, p.Bytes...)
	return nil
}

// grow ends the geometry and the recipe of a growth.
func (d *dialog) grow(p *conn, h wire.RankHeader, body []byte) (Event, error) {
	g, err := wire.ParseGrowth(body)
	if err != nil {
		return nil, err
	}
	switch {
	case !d.hasArena():
		return nil, errors.New("a growth before an attach")
	case int(g.Regions) != len(d.regions) || int(g.Recipe) != len(d.recipe):
		return nil, fmt.Errorf("growth with %d regions and a recipe of %d bytes, %d and %d were sent", g.Regions, g.Recipe, len(d.regions), len(d.recipe))
	}
	ev := Grow{Peer: p, Header: h, Growth: g, Regions: d.regions, Recipe: d.recipe}
	d.regions, d.recipe = nil, nil
	return ev, nil
}

func groupName(g replica.GroupID) string {
	if g == replica.NoGroup {
		return "none"
	}
	return fmt.Sprint(g)
}
