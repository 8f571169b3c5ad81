package format

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/replicad/replicad/replica"
)

// Fixed names below the root, a job and a run.
const (
	RootKey    = "replicad.json"
	LastKey    = "last.json"
	BestKey    = "best.json"
	LogPrefix  = "log/"
	RunKey     = "run.json"
	SummaryKey = "summary.json"
	KeptKey    = "kept.tar" // what the run carries beside its state

	CommitPrefix = "commits/"
	EpochPrefix  = "epochs/"
	FrozenPrefix = "frozen/"
	PinPrefix    = "pins/"
	ReadPrefix   = "reads/"
	StepPrefix   = "step-"
	TrashPrefix  = "trash/"
)

// RunsBegin is how every run's name begins, until the year 3000: a list of a job's runs passes over what is called otherwise.
const RunsBegin = "2"

const (
	shardExt  = ".safetensors"
	beganForm = "20060102T1504Z"
)

// RunName is the directory of a run. Its time is for people: nothing is ordered by it.
func RunName(began time.Time, id replica.JobID) string {
	return began.UTC().Format(beganForm) + "-" + id.String()[:8]
}

// ParseRunName reads a run's name: when it began, and the first 8 digits of its UUID.
func ParseRunName(name string) (began time.Time, digits string, ok bool) {
	day, digits, ok := strings.Cut(name, "-")
	began, err := time.Parse(beganForm, day)
	if !ok || err != nil || began.Format(beganForm) != day || !strings.HasPrefix(name, RunsBegin) || !isHex(digits, 8) {
		return time.Time{}, "", false
	}
	return began, digits, true
}

func isHex(s string, n int) bool {
	_, err := hex.DecodeString(s)
	return err == nil && len(s) == n && strings.ToLower(s) == s
}

// StepName names a generation within its run.
func StepName(g replica.Generation) string { return fmt.Sprintf("step-%08d.e%d", g.Step, g.Epoch) }

// ParseStepName reads a generation's name, in exactly the form that is written.
func ParseStepName(name string) (g replica.Generation, ok bool) {
	step, epoch, _ := strings.Cut(strings.TrimPrefix(name, StepPrefix), ".e")
	s, err := strconv.ParseUint(step, 10, 64)
	e, err2 := strconv.ParseUint(epoch, 10, 64)
	g = replica.Generation{Epoch: replica.Epoch(e), Step: replica.Step(s)}
	if err != nil || err2 != nil || g.Epoch > replica.MaxEpoch || g.Step > replica.MaxStep || StepName(g) != name {
		return replica.Generation{}, false
	}
	return g, true
}

// Kind is what an object of a run is.
type Kind uint8

// The kinds of a run's objects, in the order of their keys.
const (
	Stray Kind = iota // nothing of ours
	CommitKind
	ClaimKind
	SharedKind
	KeptKind
	PinKind
	ReadKind
	RunKind
	ShardKind
	IndexKind
	SummaryKind
	TrashKind
)

// Name is a parsed key below a run. Which fields count follows from the kind; String gives the key.
type Name struct {
	Kind       Kind
	Generation replica.Generation
	Epoch      replica.Epoch  // of claims
	Fleet      string         // of claims in a store without conditions: FleetKey
	Write      uint64         // of shards and indexes
	Shard      string         // "group-0", "node-b", "private-3"
	Group      uint32         // of frozen parts
	Root       replica.Digest // of frozen parts
	Seal       string         // of shards and frozen parts that are encrypted: to whom, and which of several; see NewSeal
	Twin       byte           // of frozen parts: 'a' or 'b'
	Who        string         // of pins and reads
	Number     uint64         // of reads: one above the records that their reader saw; 0: of a former version
	At         int64          // of reads: seconds since 1970, for people
	Good       bool           // of reads
}

func (n Name) String() string {
	step, seal := StepName(n.Generation), ""
	if n.Seal != "" {
		seal = "." + n.Seal
	}
	switch n.Kind {
	case CommitKind:
		return CommitPrefix + step + ".json"
	case ClaimKind:
		if n.Fleet != "" {
			return fmt.Sprintf("%s%06d.%s.json", EpochPrefix, n.Epoch, n.Fleet)
		}
		return fmt.Sprintf("%s%06d.json", EpochPrefix, n.Epoch)
	case SharedKind:
		return fmt.Sprintf("%sgroup-%d-%v%s.%c%s", FrozenPrefix, n.Group, n.Root, seal, n.Twin, shardExt)
	case PinKind:
		return PinPrefix + step + "-" + n.Who + ".json"
	case ReadKind:
		how := "bad"
		if n.Good {
			how = "good"
		}
		if n.Number > 0 {
			step = fmt.Sprintf("%s.%d", step, n.Number)
		}
		return fmt.Sprintf("%s%s.%d.%s-%s.json", ReadPrefix, step, n.At, how, n.Who)
	case RunKind:
		return RunKey
	case ShardKind:
		return fmt.Sprintf("%s/%s.w%d%s%s", step, n.Shard, n.Write, seal, shardExt)
	case IndexKind:
		return fmt.Sprintf("%s/index.w%d.json", step, n.Write)
	case SummaryKind:
		return SummaryKey
	case KeptKind:
		return KeptKey
	case TrashKind:
		return TrashPrefix + step + ".json"
	case Stray:
	}
	return ""
}

// forms are tried only where a key begins as theirs do: a list has many keys.
var forms = []struct {
	kind   Kind
	begins string
	form   *regexp.Regexp
}{
	{CommitKind, CommitPrefix, regexp.MustCompile(`^commits/(?P<step>step-[^/]+)\.json$`)},
	{ClaimKind, EpochPrefix, regexp.MustCompile(`^epochs/(?P<epoch>\d{6,8})(?:\.(?P<fleet>[0-9a-f]{16}))?\.json$`)},
	{SharedKind, FrozenPrefix, regexp.MustCompile(`^frozen/group-(?P<group>\d{1,7})-(?P<root>[0-9a-f]{32})(?:\.(?P<seal>[0-9a-f]{16}))?\.(?P<twin>[ab])\.safetensors$`)},
	{KeptKind, KeptKey, regexp.MustCompile(`^kept\.tar$`)},
	{PinKind, PinPrefix, regexp.MustCompile(`^pins/(?P<step>step-\d+\.e\d+)-(?P<who>[^/]+)\.json$`)},
	{ReadKind, ReadPrefix, regexp.MustCompile(`^reads/(?P<step>step-\d+\.e\d+)(?:\.(?P<number>\d{1,19}))?\.(?P<at>\d{1,12})\.(?P<how>good|bad)-(?P<who>[^/]+)\.json$`)},
	{RunKind, RunKey, regexp.MustCompile(`^run\.json$`)},
	{ShardKind, StepPrefix, regexp.MustCompile(`^(?P<step>step-[^/]+)/(?P<shard>(?:group|private|node)-[^/]+)\.w(?P<write>\d{1,19})(?:\.(?P<seal>[0-9a-f]{16}))?\.safetensors$`)},
	{IndexKind, StepPrefix, regexp.MustCompile(`^(?P<step>step-[^/]+)/index\.w(?P<write>\d{1,19})\.json$`)},
	{SummaryKind, SummaryKey, regexp.MustCompile(`^summary\.json$`)},
	{TrashKind, TrashPrefix, regexp.MustCompile(`^trash/(?P<step>step-[^/]+)\.json$`)},
}

// ParseName reads a key below a run, in exactly the form that is written; anything else is Stray.
func ParseName(key string) Name {
	for _, f := range forms {
		if !strings.HasPrefix(key, f.begins) {
			continue
		}
		m := f.form.FindStringSubmatch(key)
		if m == nil {
			continue
		}
		n, ok := Name{Kind: f.kind}, true
		for i, field := range f.form.SubexpNames() {
			ok = ok && n.set(field, m[i])
		}
		if ok && n.String() == key {
			return n
		}
	}
	return Name{}
}

func (n *Name) set(field, text string) (ok bool) {
	number, err := strconv.ParseUint(text, 10, 63)
	switch field {
	case "step":
		n.Generation, ok = ParseStepName(text)
		return ok
	case "epoch":
		n.Epoch = replica.Epoch(number)
		return err == nil && n.Epoch <= replica.MaxEpoch
	case "fleet":
		n.Fleet = text
	case "write":
		n.Write = number
		return err == nil
	case "number":
		n.Number = number
		return text == "" || err == nil
	case "at":
		n.At = int64(number)
		return err == nil
	case "group":
		n.Group = uint32(number)
		return err == nil && number < replica.MaxRanks
	case "shard":
		n.Shard = text
		return replica.CheckName(text) == nil || len(text) > replica.MaxNameBytes && replica.CheckName(text[len("node-"):]) == nil
	case "who":
		n.Who = text
		return replica.CheckName(text) == nil
	case "root":
		return n.Root.UnmarshalText([]byte(text)) == nil
	case "seal":
		n.Seal = text
	case "twin":
		n.Twin = text[0]
	case "how":
		n.Good = text == "good"
	}
	return true
}

// Outweighs tells whether a record of a read counts in place of another one of the same generation: whose reader had seen the other, and of two that
// saw the same the one that found damage. Clocks order those alone that have no number.
func (n Name) Outweighs(o Name) bool {
	if n.Number != o.Number {
		return n.Number > o.Number
	}
	if n.Number == 0 && n.At != o.At {
		return n.At > o.At
	}
	return o.Good && !n.Good
}

// OfGeneration tells whether the object belongs to one generation.
func (n Name) OfGeneration() bool {
	switch n.Kind {
	case CommitKind, PinKind, ReadKind, ShardKind, IndexKind, TrashKind:
		return true
	case Stray, ClaimKind, SharedKind, KeptKind, RunKind, SummaryKind:
	}
	return false
}

// NewSeal tells an encrypted object from others of the same parts: tag, 8 digits, says to whom it is encrypted. The rest is random, since no two
// are encrypted to the same: who writes one writes beside others, not over them.
func NewSeal(tag string) string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // it never fails
	return tag + hex.EncodeToString(b[:])
}

// SealedFor tells whether a shard or a frozen part is encrypted to those that a tag stands for.
func (n Name) SealedFor(tag string) bool { return n.Seal != "" && n.Seal[:8] == tag }

// FleetKey stands for a fleet in the keys of claims, where the store has no conditions and each fleet has keys of its own.
func FleetKey(cluster replica.ClusterID, fleet string) string {
	return Sum([]byte(cluster.String() + "/" + fleet))[:16]
}

// Place is where a run lies below the root.
type Place struct{ Job, Run string }

// Key is the whole key of one of the run's objects.
func (p Place) Key(n Name) string { return p.Under(n.String()) }

// Under is the whole key of what has this name below the run.
func (p Place) Under(name string) string { return path.Join(p.Job, p.Run, name) }

// Prefix is how all keys of the run begin.
func (p Place) Prefix() string { return p.Job + "/" + p.Run + "/" }

// Check tells whether the place is one that a run may have.
func (p Place) Check() error {
	if err := replica.CheckJobName(p.Job); err != nil {
		return err
	}
	if _, _, ok := ParseRunName(p.Run); !ok {
		return fmt.Errorf("run %.64q: want a time and 8 digits, as 20261125T1716Z-4385b34d", p.Run)
	}
	return nil
}

// Who makes a name for a key of what somebody calls himself.
func Who(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, s)
	s = strings.Trim(s[:min(len(s), replica.MaxNameBytes)], "-_.")
	if s == "" {
		return "somebody"
	}
	return s
}
