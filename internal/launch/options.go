package launch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Options say which ranks to run, and how. Zero values of the job's own options mean the daemon's defaults.
type Options struct {
	Socket string // the daemon's socket for ranks
	// Daemons are the users whose daemon is believed on it, besides root and the launcher's own: one, or none.
	Daemons []uint32
	Token   string // its job token, if it asks for one
	// Program is this program, if known: ranks that read or write durable generations start it.
	Program string
	Start   string // the command that starts the daemon, if known: a launcher that finds none says so
	Admin   string // its admin socket, if known: ranks may ask it what they would lose
	Host    string // address of this node for the ranks' own sockets; default 127.0.0.1

	Job      string
	World    int               // ranks in the job, everywhere
	Groups   []replica.GroupID // replica group of each rank; nil: all in one
	Named    bool              // the ranks name their groups; Groups is nil
	Ranks    []replica.Rank    // preferred ones
	Spare    bool              // takes no rank unless one is lost elsewhere
	Warm     int               // processes that are started beforehand and wait for a rank
	Capacity int               // processes at the same time; default: as many as Ranks, else World

	Preload   string   // PreloadAuto, which "" is too, or PreloadNone
	Preloaded *os.File // a connection to a process that restarts can fork from already (internal/preload); nil: none

	// Job options, where this launcher creates the job. Resume: it goes on from the newest durable generation of that name.
	MinCopies, Cadence, Slots, ChunkMB     int
	DurableEvery                           replica.Step // as replica.Options has it
	PrivateCapMB, LoneAhead                int
	Nondeterministic                       []replica.GroupID // groups whose lowest rank's state counts
	Resume, RequireVotes, CollectiveWindow bool
	UnlessEnded                            bool // it is not created where the newest of its name has ended unfinished, unless it is to resume

	Notes []replica.Remark // that durable generations have, by kind Note
	From  *wire.From       // what a new job begins with; nil: its program's own state
	Again <-chan error     // the cause of a signal that comes after the one that ended the context; nil: none comes
	Begun func()           // called once the job needs no more what From names; it must not wait; nil: nobody
	Kept  *os.File         // sealed: a tar of files that the run is to carry (internal/durable/kept); nil: none. It stays the caller's

	Command []string // and its arguments
	Env     []string // "NAME=value"; REPLICAD_* and torchrun's are replaced
	Stdout  io.Writer
	Stderr  io.Writer
	Logf    func(format string, args ...any) // what the launcher itself has to say; nil: nothing

	Grace    time.Duration // between SIGTERM and SIGKILL; default 10 s
	Patience time.Duration // without a daemon and without a process, before giving up; default 60 s

	helloWait    time.Duration // for a daemon to answer the hello; default 10 s
	preloadAgain time.Duration // from the end of the process that restarts fork from to the start of the next one; default 5 s
	warmAgain    time.Duration // from when a process that waits was needed, or ended by itself, to the start of the next one; default 5 s
}

// Limits that the rank protocol sets.
const maxText = 63 // a job name or token

// withDefaults returns a copy with defaults filled in.
func (o Options) withDefaults() Options {
	if o.Capacity == 0 {
		o.Capacity = o.World
		if len(o.Ranks) > 0 {
			o.Capacity = len(o.Ranks)
		}
	}
	if o.Host == "" {
		o.Host = "127.0.0.1"
	}
	if o.Grace == 0 {
		o.Grace = 10 * time.Second
	}
	if o.helloWait == 0 {
		o.helloWait = 10 * time.Second
	}
	if o.warmAgain == 0 {
		o.warmAgain = 5 * time.Second
	}
	if o.preloadAgain == 0 {
		o.preloadAgain = 5 * time.Second
	}
	if o.Patience == 0 {
		o.Patience = time.Minute
	}
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	return o
}

// Validate reports all faults, joined.
func (o Options) Validate() error {
	var list []error
	bad := func(format string, args ...any) { list = append(list, fmt.Errorf(format, args...)) }
	if o.Socket == "" {
		bad("no socket: give --config FILE or --socket PATH of this node's daemon")
	}
	if o.Job == "" {
		bad("--job NAME is required: the name of the job")
	} else if err := replica.CheckJobName(o.Job); err != nil {
		bad("--job: %w", err)
	}
	if len(o.Token) > maxText {
		bad("token of %d bytes: at most %d", len(o.Token), maxText)
	}
	if o.World == 0 {
		bad("--world 0: --world N is required, the number of ranks in the job, 1 to %d", wire.MaxRunWorld)
	} else if o.World < 1 || o.World > wire.MaxRunWorld {
		bad("--world %d: want 1 to %d, the number of ranks in the job", o.World, wire.MaxRunWorld)
	}
	o.checkRanks(bad)
	if o.Warm < 0 || o.Warm > 64 {
		bad("--warm %d: want 0 to 64 processes that wait", o.Warm)
	}
	if o.Preload != "" && o.Preload != PreloadAuto && o.Preload != PreloadNone {
		bad("--preload %q: want %s or %s", o.Preload, PreloadAuto, PreloadNone)
	}
	if o.Capacity < 0 || o.Capacity > max(o.World, 0) {
		bad("--capacity %d: want 1 to --world %d", o.Capacity, o.World)
	}
	for _, f := range []struct {
		flag     string
		value    int
		min, max int
	}{{"--min-copies", o.MinCopies, 1, wire.MaxRunMinCopies}, {"--cadence", o.Cadence, 1, wire.MaxRunCadence}, {"--slots", o.Slots, wire.MinRunSlots, wire.MaxRunSlots}, {"--chunk-mb", o.ChunkMB, 1, wire.MaxRunChunkMB}, {"--private-cap-mb", o.PrivateCapMB, 1, wire.MaxRunPrivateCapMB},
		{"--lone-ahead", o.LoneAhead, 1, 1<<16 - 1}} {
		if f.value != 0 && (f.value < f.min || f.value > f.max) {
			bad("%s %d: want %d to %d, or 0 for the default", f.flag, f.value, f.min, f.max)
		}
	}
	if err := replica.CheckDurableEvery(o.DurableEvery); err != nil {
		bad("--durable-every: %w", err)
	}
	if err := replica.CheckRemarks(o.Notes); err != nil {
		bad("--note: %w", err)
	} else if most := wire.MaxRankMessage - wire.RankHeaderBytes - len(replica.JobID{}); o.World > 0 && o.World <= wire.MaxRunWorld && len(o.hello().Append(nil)) > most {
		bad("--note: %d notes do not fit beside %d ranks: say fewer, or shorter ones, or have the program say them (session.note)", len(o.Notes), o.World)
	}
	if o.From != nil {
		if err := o.From.Check(); err != nil {
			bad("--from: %w", err)
		}
	}
	if len(o.Command) == 0 {
		bad("no command: put it after --, as in `replicad run --job demo --world 1 -- python train.py`")
	} else if _, err := exec.LookPath(o.Command[0]); err != nil {
		bad("command %q: %w", o.Command[0], err)
	}
	return errors.Join(list...)
}

func (o Options) checkRanks(bad func(string, ...any)) {
	if o.Spare && len(o.Ranks) > 0 {
		bad("--spare with --ranks: a spare takes whatever rank is lost elsewhere, so it prefers none")
	}
	seen := map[replica.Rank]bool{}
	for _, r := range o.Ranks {
		if int(r) >= o.World || seen[r] {
			bad("--ranks: %d is not below --world %d, or named twice", r, o.World)
		}
		seen[r] = true
	}
	if len(o.Nondeterministic) > wire.MaxRunNondeterministic {
		bad("--nondeterministic names %d groups: at most %d", len(o.Nondeterministic), wire.MaxRunNondeterministic)
	}
	for i, g := range o.Nondeterministic {
		if o.Groups == nil && g != 0 || o.Groups != nil && !slices.Contains(o.Groups, g) || slices.Contains(o.Nondeterministic[:i], g) {
			bad("--nondeterministic: no rank is in group %d, or it is named twice", g)
		}
	}
	if o.Named && (o.Groups != nil || o.Nondeterministic != nil) {
		bad("--groups auto with groups by number (--groups, --nondeterministic): give either")
	}
	if o.Groups == nil {
		return
	}
	if len(o.Groups) != o.World {
		bad("--groups names %d ranks, --world %d", len(o.Groups), o.World)
	}
	members := map[replica.GroupID]int{}
	for _, g := range o.Groups {
		members[g]++
	}
	for g := range len(members) {
		if members[replica.GroupID(g)] == 0 {
			bad("--groups: nobody is in group %d, but %d groups are named: number them 0, 1, 2 ... without a gap", g, len(members))
			return
		}
	}
}

func (o Options) hello() wire.RunHello {
	flags := uint32(0)
	if o.Resume {
		flags |= wire.RunResume
	}
	if o.UnlessEnded {
		flags |= wire.RunUnlessEnded
	}
	if o.RequireVotes {
		flags |= wire.RunRequireVotes
	}
	if o.CollectiveWindow {
		flags |= wire.RunCollectiveWindow
	}
	if o.Named {
		flags |= wire.RunNameGroups
	}
	if o.Kept != nil {
		flags |= wire.RunKeeps
	}
	return wire.RunHello{
		Flags: flags,
		ABI:   wire.RankABI, World: uint32(o.World), Capacity: uint32(o.Capacity), Spare: o.Spare, Ranks: o.Ranks, Groups: o.Groups,
		MinCopies: uint32(o.MinCopies), Cadence: uint32(o.Cadence), Slots: uint32(o.Slots), ChunkBytes: uint32(o.ChunkMB) << 20, DurableEvery: uint32(o.DurableEvery),
		Job: o.Job, Token: o.Token, PrivateCapMB: uint32(o.PrivateCapMB), LoneAhead: uint16(o.LoneAhead), Nondeterministic: o.Nondeterministic, Notes: o.Notes, From: o.From,
	}
}

// nobody is the end of a launcher that no daemon served.
func (o Options) nobody(err error) error {
	if _, there := errors.AsType[*silence](err); there {
		return fmt.Errorf("socket %s: %w", o.Socket, err)
	}
	return fmt.Errorf("%w on %s: %w; %s", ErrNoDaemon, o.Socket, err, o.remedy())
}

// environ is what a rank's process finds in its environment.
func (o Options) environ(start wire.RunStart, at seat) []string {
	return append(o.inherited(), o.placed(start, at)...)
}

// placed is the part of a process's environment that says which rank it is, and of which job.
func (o Options) placed(start wire.RunStart, at seat) []string {
	number := func(v uint32) string { return strconv.FormatUint(uint64(v), 10) }
	env := append(o.torchEnviron(start, at), "REPLICAD_SOCKET="+o.Socket, "REPLICAD_JOB="+o.Job, "REPLICAD_RANK="+number(uint32(start.Rank)),
		"REPLICAD_WORLD="+number(start.World), "REPLICAD_HOST="+o.Host)
	if start.Group != replica.NoGroup {
		env = append(env, "REPLICAD_GROUP="+number(uint32(start.Group)))
	}
	if groups := groupsVariable(start.Group == replica.NoGroup, start.Groups); groups != "" {
		env = append(env, groups)
	}
	return append(env, o.access()...)
}

// access is how a process asks this node's daemon, besides the socket for ranks.
func (o Options) access() (env []string) {
	if o.Token != "" {
		env = append(env, "REPLICAD_TOKEN="+o.Token)
	}
	if o.Admin != "" {
		env = append(env, "REPLICAD_ADMIN_SOCKET="+o.Admin)
	}
	if o.Program != "" {
		env = append(env, "REPLICAD_PROGRAM="+o.Program)
	}
	if len(o.Daemons) > 0 {
		env = append(env, unixsock.DaemonUID+"="+strconv.FormatUint(uint64(o.Daemons[0]), 10))
	}
	return append(env, "REPLICAD_SLOTS="+strconv.Itoa(o.slots()))
}

// slots is how many slots the job has if this launcher creates it: session.explain() says what they take before there is an arena.
func (o Options) slots() int {
	if o.Slots != 0 {
		return o.Slots
	}
	layout := replica.Layout{World: uint32(o.World), Groups: o.Groups}
	if o.Groups == nil && !o.Named {
		layout.Groups = make([]replica.GroupID, o.World)
	}
	return layout.DefaultSlots(o.MinCopies)
}

// maxGroupsVariable bounds REPLICAD_GROUPS, in bytes: a process that waits is told its environment in one line of at most 64 KiB.
const maxGroupsVariable = 32 << 10

// groupsVariable tells a rank the groups of all, which it holds against its model's sharding; empty where there is nothing to tell.
func groupsVariable(named bool, groups []replica.GroupID) string {
	const name = "REPLICAD_GROUPS="
	if named {
		return name + GroupsAuto
	}
	list := make([]string, len(groups))
	for i, g := range groups {
		list[i] = strconv.FormatUint(uint64(g), 10)
	}
	if text := strings.Join(list, ","); text != "" && len(text) <= maxGroupsVariable {
		return name + text
	}
	return ""
}

// GroupsAuto stands for groups that the ranks name, where groups are given.
const GroupsAuto = "auto"

// ParseGroups reads --groups: a list, or GroupsAuto.
func ParseGroups(s string) (groups []replica.GroupID, named bool, err error) {
	if s == GroupsAuto {
		return nil, true, nil
	}
	groups, err = ParseList[replica.GroupID](s)
	return groups, false, err
}

// ParseList reads "0,3,5", as --ranks and --groups have it.
func ParseList[T ~uint32](s string) ([]T, error) {
	if s == "" {
		return nil, nil
	}
	var list []T
	for field := range strings.SplitSeq(s, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(field), 10, 32)
		if err != nil || n >= replica.MaxRanks {
			return nil, fmt.Errorf("%q in %q: want numbers from 0 to %d, separated by commas", field, s, replica.MaxRanks-1)
		}
		list = append(list, T(n))
	}
	return list, nil
}
