package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/replicad/replicad/replica"
)

var le = binary.LittleEndian

// Hello is the body of MHello and MReattach.
type Hello struct {
	ABI        uint32
	Rank       replica.Rank
	World      uint32
	Group      replica.GroupID // NoGroup: named with MAttach
	Nonce      uint64          // random: a claim sent twice is one claim
	PID        uint64          // as the sender sees itself; trust the socket's credentials
	Job, Token string          // at most 63 bytes each
}

const helloBytes = 160

// Append appends the body.
func (h Hello) Append(dst []byte) []byte {
	dst = le.AppendUint32(dst, h.ABI)
	dst = le.AppendUint32(dst, uint32(h.Rank))
	dst = le.AppendUint32(dst, h.World)
	dst = le.AppendUint32(dst, uint32(h.Group))
	dst = le.AppendUint64(dst, h.Nonce)
	dst = le.AppendUint64(dst, h.PID)
	return appendText(appendText(dst, h.Job, 64), h.Token, 64)
}

// ParseHello reads the body of MHello and MReattach.
func ParseHello(b []byte) (h Hello, err error) {
	if err := checkBody("hello", b, helloBytes); err != nil {
		return h, err
	}
	h = Hello{ABI: le.Uint32(b), Rank: replica.Rank(le.Uint32(b[4:])), World: le.Uint32(b[8:]), Group: replica.GroupID(le.Uint32(b[12:])), Nonce: le.Uint64(b[16:]), PID: le.Uint64(b[24:])}
	if h.World == 0 || h.World > replica.MaxRanks || uint32(h.Rank) >= h.World || uint32(h.Group) >= h.World && h.Group != replica.NoGroup {
		return Hello{}, fmt.Errorf("hello: rank %d, group %d of a world of %d: want both below it, and it at most %d", h.Rank, h.Group, h.World, replica.MaxRanks)
	}
	if h.Job, err = parseText("hello: job", b[32:96]); err != nil {
		return Hello{}, err
	}
	if h.Token, err = parseText("hello: token", b[96:160]); err != nil {
		return Hello{}, err
	}
	return h, nil
}

// MaxRegionsPerMessage is how many region records fit a message.
const MaxRegionsPerMessage = (MaxRankMessage - RankHeaderBytes - 8) / replica.RegionRecordBytes

// AppendRegions appends the body of MRegions: a run of region records, the first of which is number first.
func AppendRegions(dst []byte, first uint32, regions []replica.Region) []byte {
	dst = le.AppendUint32(dst, first)
	dst = le.AppendUint32(dst, uint32(len(regions)))
	for _, r := range regions {
		r.Offset = 0
		dst = replica.AppendRegion(dst, r)
	}
	return dst
}

// ParseRegions reads the body of MRegions.
func ParseRegions(b []byte) (first uint32, regions []replica.Region, err error) {
	if len(b) < 8 {
		return 0, nil, fmt.Errorf("regions: body of %d bytes, want at least 8", len(b))
	}
	first = le.Uint32(b)
	n := le.Uint32(b[4:])
	if n == 0 || n > MaxRegionsPerMessage || len(b) != 8+int(n)*replica.RegionRecordBytes {
		return 0, nil, fmt.Errorf("regions: %d records in a body of %d bytes, want 1 to %d of %d bytes", n, len(b), MaxRegionsPerMessage, replica.RegionRecordBytes)
	}
	regions = make([]replica.Region, n)
	for i := range regions {
		at := 8 + i*replica.RegionRecordBytes
		if regions[i], err = replica.ParseRegion(b[at : at+replica.RegionRecordBytes]); err != nil {
			return 0, nil, fmt.Errorf("regions: record %d: %w", uint64(first)+uint64(i), err)
		}
		if regions[i].Offset != 0 {
			return 0, nil, fmt.Errorf("regions: record %d (%q): offset %d, want 0: the daemon lays regions out", uint64(first)+uint64(i), regions[i].Name, regions[i].Offset)
		}
	}
	return first, regions, nil
}

// AppendAttach appends the body of MAttach: how many regions were sent in all, and the replica group; NoGroup: that of the hello.
func AppendAttach(dst []byte, regions uint32, group replica.GroupID) []byte {
	return le.AppendUint32(le.AppendUint32(dst, regions), uint32(group+1)) // 0 for NoGroup, as a rank sends it that has nothing to add
}

// ParseAttach reads the body of MAttach.
func ParseAttach(b []byte) (regions uint32, group replica.GroupID, err error) {
	if err := checkBody("attach", b, 8); err != nil {
		return 0, replica.NoGroup, err
	}
	if group = replica.GroupID(le.Uint32(b[4:])) - 1; group != replica.NoGroup && group >= replica.MaxRanks {
		return 0, replica.NoGroup, fmt.Errorf("attach: group %d: want one below %d", group, replica.MaxRanks)
	}
	return le.Uint32(b), group, nil
}

// Piece is the body of MRecipePart, and of MRecipeIs: a piece of a recipe.
type Piece struct {
	Offset, Total uint32 // Total is of the whole recipe
	Bytes         []byte
}

// MaxPiece is how many bytes of a recipe a message holds.
const MaxPiece = 32 << 10

// Append appends the body.
func (p Piece) Append(dst []byte) []byte {
	return append(le.AppendUint32(le.AppendUint32(dst, p.Offset), p.Total), p.Bytes...)
}

// ParsePiece reads the body of MRecipePart and of MRecipeIs. The bytes are a copy.
func ParsePiece(b []byte) (p Piece, err error) {
	if len(b) < 8 || len(b) > 8+MaxPiece {
		return p, fmt.Errorf("piece of a recipe: body of %d bytes, want 8 to %d", len(b), 8+MaxPiece)
	}
	p = Piece{Offset: le.Uint32(b), Total: le.Uint32(b[4:]), Bytes: append([]byte(nil), b[8:]...)}
	if p.Total > replica.MaxRecipe || p.Offset > p.Total || uint32(len(p.Bytes)) > p.Total-p.Offset {
		return Piece{}, fmt.Errorf("piece of a recipe: %d bytes from %d of %d: want them in a recipe of at most %d", len(p.Bytes), p.Offset, p.Total, replica.MaxRecipe)
	}
	return p, nil
}

// Growth is the body of MGrow.
type Growth struct {
	Step    replica.Step // at which the rank stands
	Regions uint32       // that were sent before
	Recipe  uint32       // bytes, likewise
}

// Append appends the body.
func (g Growth) Append(dst []byte) []byte {
	return le.AppendUint32(le.AppendUint32(le.AppendUint64(dst, uint64(g.Step)), g.Regions), g.Recipe)
}

// ParseGrowth reads the body of MGrow.
func ParseGrowth(b []byte) (g Growth, err error) {
	if err := checkBody("growth", b, 16); err != nil {
		return g, err
	}
	g = Growth{Step: replica.Step(le.Uint64(b)), Regions: le.Uint32(b[8:]), Recipe: le.Uint32(b[12:])}
	if g.Step > replica.MaxStep || g.Recipe > replica.MaxRecipe || g.Regions == 0 || g.Regions > replica.MaxRegions {
		return Growth{}, fmt.Errorf("growth at step %d with %d regions and a recipe of %d bytes: want at most step %d, 1 to %d regions and %d bytes", g.Step, g.Regions, g.Recipe, replica.MaxStep, replica.MaxRegions, replica.MaxRecipe)
	}
	return g, nil
}

// AppendRecipe appends the body of MRecipe: from where on it is asked for.
func AppendRecipe(dst []byte, offset uint32) []byte {
	return le.AppendUint32(le.AppendUint32(dst, offset), 0)
}

// ParseRecipe reads the body of MRecipe.
func ParseRecipe(b []byte) (offset uint32, err error) {
	if err := checkBody("recipe", b, 8); err != nil {
		return 0, err
	}
	return le.Uint32(b), parseZero("recipe", b[4:])
}

// Sealed is the body of MSealed.
type Sealed struct {
	Kind       uint32 // 0 slot, 1 ring place, 2 frozen
	Index      uint32
	Word       replica.SlotWord // after sealing
	Generation replica.Generation
}

// Append appends the body.
func (s Sealed) Append(dst []byte) []byte {
	dst = le.AppendUint32(le.AppendUint32(dst, s.Kind), s.Index)
	return le.AppendUint64(le.AppendUint64(dst, uint64(s.Word)), uint64(s.Generation.Word()))
}

// ParseSealed reads the body of MSealed.
func ParseSealed(b []byte) (s Sealed, err error) {
	if err := checkBody("sealed", b, 24); err != nil {
		return s, err
	}
	s = Sealed{Kind: le.Uint32(b), Index: le.Uint32(b[4:]), Word: replica.SlotWord(le.Uint64(b[8:]))}
	if s.Kind > 2 || s.Index >= 16 || s.Word.State() != replica.SlotSealed {
		return Sealed{}, fmt.Errorf("sealed: place kind %d index %d in state %v, want a sealed slot, ring place or frozen area", s.Kind, s.Index, s.Word.State())
	}
	s.Generation, err = parseGeneration("sealed", b[16:])
	return s, err
}

// AppendStopped appends the body of MStopped: the live step word.
func AppendStopped(dst []byte, live replica.Word) []byte { return le.AppendUint64(dst, uint64(live)) }

// ParseStopped reads the body of MStopped.
func ParseStopped(b []byte) (replica.Word, error) {
	if err := checkBody("stopped", b, 8); err != nil {
		return 0, err
	}
	return replica.Word(le.Uint64(b)), nil
}

// ParseLacks reads the body of MLacks: what the rank's copies lack, as bytes that may be no text; none: nothing.
func ParseLacks(b []byte) (string, error) {
	if len(b) > replica.MaxLacks {
		return "", fmt.Errorf("lacks: a text of %d bytes, at most %d", len(b), replica.MaxLacks)
	}
	return string(b), nil
}

// remarkBytes is the length of a remark in MSaid, without its name and text.
const remarkBytes = 24

// AppendRemarks appends the body of MSaid: all that a rank says.
func AppendRemarks(dst []byte, list []replica.Remark) []byte {
	for _, r := range list {
		dst = le.AppendUint16(le.AppendUint16(dst, uint16(r.Kind)), uint16(len(r.Name)))
		dst = le.AppendUint64(le.AppendUint32(dst, uint32(len(r.Text))), uint64(r.Step))
		dst = append(append(le.AppendUint64(dst, math.Float64bits(r.Value)), r.Name...), r.Text...)
	}
	return dst
}

// ParseRemarks reads the body of MSaid.
func ParseRemarks(b []byte) (list []replica.Remark, err error) {
	for len(b) > 0 {
		if len(b) < remarkBytes {
			return nil, fmt.Errorf("said: %d bytes behind %d remarks", len(b), len(list))
		}
		name, text := uint64(le.Uint16(b[2:])), uint64(le.Uint32(b[4:]))
		r := replica.Remark{Kind: replica.RemarkKind(le.Uint16(b)), Step: replica.Step(le.Uint64(b[8:])), Value: math.Float64frombits(le.Uint64(b[16:]))}
		if b = b[remarkBytes:]; name+text > uint64(len(b)) {
			return nil, fmt.Errorf("said: remark %d has a name of %d bytes and a text of %d, there are %d", len(list), name, text, len(b))
		}
		r.Name, r.Text = strings.ToValidUTF8(string(b[:name]), "?"), strings.ToValidUTF8(string(b[name:name+text]), "?")
		list, b = append(list, r), b[name+text:]
	}
	if err := replica.CheckRemarks(list); err != nil {
		return nil, fmt.Errorf("said: %w", err)
	}
	return list, nil
}

// ParsePause reads the body of MPause and of MEnding: nanoseconds, at most a day's.
func ParsePause(b []byte) (time.Duration, error) {
	if err := checkBody("pause", b, 8); err != nil {
		return 0, err
	}
	ns := le.Uint64(b)
	if ns > uint64(24*time.Hour) {
		return 0, fmt.Errorf("pause of %d ns, at most a day", ns)
	}
	return time.Duration(ns), nil
}

// AppendPause appends the body of MPause and of MEnding.
func AppendPause(b []byte, most time.Duration) []byte { return le.AppendUint64(b, uint64(most)) }

// Loaded is the body of MLoaded.
type Loaded struct {
	Generation                  replica.Generation // origin's name of what was loaded
	ReplicatedRoot, PrivateRoot replica.Digest
}

// Append appends the body.
func (l Loaded) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, uint64(l.Generation.Word()))
	return append(append(dst, l.ReplicatedRoot[:]...), l.PrivateRoot[:]...)
}

// ParseLoaded reads the body of MLoaded.
func ParseLoaded(b []byte) (l Loaded, err error) {
	if err := checkBody("loaded", b, 40); err != nil {
		return l, err
	}
	copy(l.ReplicatedRoot[:], b[8:])
	copy(l.PrivateRoot[:], b[24:])
	l.Generation, err = parseGeneration("loaded", b)
	return l, err
}

// KV is the body of MKVSet, MKVGet, MBarrier, MKVAdd, MKVCheck, MKVCompareSet and MKVDelete.
type KV struct {
	Key     string
	Value   []byte // MKVAdd: the addend, 8 bytes. MKVCompareSet: what is expected, then what is desired
	Members uint32 // MBarrier. MKVCompareSet: how many bytes of Value are expected
	Once    uint32 // of a write: a process says it again with the same number; 0 in what writes nothing
}

// Append appends the body.
func (k KV) Append(dst []byte) []byte {
	dst = le.AppendUint32(dst, uint32(len(k.Key)))
	dst = le.AppendUint32(dst, uint32(len(k.Value)))
	dst = le.AppendUint32(dst, k.Members)
	dst = le.AppendUint32(dst, k.Once)
	return append(append(dst, k.Key...), k.Value...)
}

// ParseKV reads the body of a message of type op: MKVSet, MKVGet, MBarrier, MKVAdd, MKVCheck, MKVCompareSet or MKVDelete. The
// value is a copy.
func ParseKV(op uint16, b []byte) (k KV, err error) {
	if len(b) < 16 {
		return k, fmt.Errorf("kv: body of %d bytes, want at least 16", len(b))
	}
	nk, nv := le.Uint32(b), le.Uint32(b[4:])
	if nk == 0 || nk > MaxKeyBytes || nv > MaxValueBytes || len(b) != 16+int(nk)+int(nv) {
		return k, fmt.Errorf("kv: key of %d and value of %d bytes in a body of %d: want 1 to %d, and at most %d", nk, nv, len(b), MaxKeyBytes, MaxValueBytes)
	}
	k = KV{Key: string(b[16 : 16+nk]), Value: append([]byte(nil), b[16+nk:]...), Members: le.Uint32(b[8:]), Once: le.Uint32(b[12:])}
	members, value, write := false, false, false // which of the fields the message has
	switch op {
	case MKVSet:
		value, write = true, true
	case MKVAdd:
		value, write = true, true
		if nv != 8 {
			return KV{}, fmt.Errorf("kv add: addend of %d bytes, want 8", nv)
		}
	case MKVCompareSet:
		members, value, write = true, true, true
		if k.Members > nv {
			return KV{}, fmt.Errorf("kv compare: %d bytes expected in a value of %d", k.Members, nv)
		}
	case MKVDelete:
		write = true
	case MBarrier:
		members = true
	}
	if !members && k.Members != 0 || !value && nv != 0 || write != (k.Once != 0) {
		return KV{}, fmt.Errorf("kv message %d: value of %d bytes, members %d, once %d: a field that it does not have, or a write without its number", op, nv, k.Members, k.Once)
	}
	return k, nil
}

// KVTotal is the body of MKVTotal.
type KVTotal struct {
	Code  int32
	Total int64 // after MKVAdd; after MKVDelete 1 if there was a key
}

// Append appends the body.
func (v KVTotal) Append(dst []byte) []byte {
	return le.AppendUint64(le.AppendUint32(le.AppendUint32(dst, uint32(v.Code)), 0), uint64(v.Total))
}

// ParseKVTotal reads the body of MKVTotal.
func ParseKVTotal(b []byte) (v KVTotal, err error) {
	if err := checkBody("kv total", b, 16); err != nil {
		return v, err
	}
	return KVTotal{Code: int32(le.Uint32(b)), Total: int64(le.Uint64(b[8:]))}, parseZero("kv total", b[4:])
}

// Scoped is the body of MScoped.
type Scoped struct{ Epoch replica.Epoch }

// Append appends the body.
func (s Scoped) Append(dst []byte) []byte { return le.AppendUint64(dst, uint64(s.Epoch)) }

// ParseScoped reads the body of MScoped.
func ParseScoped(b []byte) (s Scoped, err error) {
	if err := checkBody("scoped", b, 8); err != nil {
		return s, err
	}
	if s.Epoch = replica.Epoch(le.Uint64(b)); s.Epoch == 0 || s.Epoch > replica.MaxEpoch {
		return Scoped{}, fmt.Errorf("scoped: epoch %d, want 1 to %d", s.Epoch, replica.MaxEpoch)
	}
	return s, nil
}

// Welcome is the body of MWelcome and MRunOK.
type Welcome struct {
	ABI        uint32
	Rank       replica.Rank
	Cluster    replica.ClusterID
	Job        replica.JobID
	Era        replica.Era
	ChunkBytes uint32
}

// Append appends the body.
func (w Welcome) Append(dst []byte) []byte {
	dst = le.AppendUint32(le.AppendUint32(dst, w.ABI), uint32(w.Rank))
	dst = append(append(dst, w.Cluster[:]...), w.Job[:]...)
	return le.AppendUint32(le.AppendUint32(dst, uint32(w.Era)), w.ChunkBytes)
}

// ParseWelcome reads the body of MWelcome and MRunOK.
func ParseWelcome(b []byte) (w Welcome, err error) {
	if err := checkBody("welcome", b, 48); err != nil {
		return w, err
	}
	w = Welcome{ABI: le.Uint32(b), Rank: replica.Rank(le.Uint32(b[4:])), Era: replica.Era(le.Uint32(b[40:])), ChunkBytes: le.Uint32(b[44:])}
	copy(w.Cluster[:], b[8:])
	copy(w.Job[:], b[24:])
	return w, nil
}

// Attached is the body of MAttached.
type Attached struct {
	ArenaBytes  uint64
	Incarnation replica.Incarnation
	Slots, Ring uint32
	Fence       replica.Epoch
	Job         replica.JobID
}

// Append appends the body.
func (a Attached) Append(dst []byte) []byte {
	dst = le.AppendUint64(le.AppendUint64(dst, a.ArenaBytes), uint64(a.Incarnation))
	dst = le.AppendUint32(le.AppendUint32(dst, a.Slots), a.Ring)
	return append(le.AppendUint64(dst, uint64(a.Fence)), a.Job[:]...)
}

// ParseAttached reads the body of MAttached.
func ParseAttached(b []byte) (a Attached, err error) {
	if err := checkBody("attached", b, 48); err != nil {
		return a, err
	}
	a = Attached{ArenaBytes: le.Uint64(b), Incarnation: replica.Incarnation(le.Uint64(b[8:])), Slots: le.Uint32(b[16:]), Ring: le.Uint32(b[20:]), Fence: replica.Epoch(le.Uint64(b[24:]))}
	copy(a.Job[:], b[32:])
	return a, nil
}

// Refused is the body of MRefused and MRunDone: a code (or exit code) and a text that says why and the remedy.
type Refused struct {
	Code int32
	Text string // at most MaxRefusedText bytes
}

// MaxRefusedText caps the text of a refusal in bytes; longer ones are cut.
const MaxRefusedText = 1024

// Append appends the body.
func (r Refused) Append(dst []byte) []byte {
	dst = le.AppendUint32(le.AppendUint32(dst, uint32(r.Code)), 0)
	return append(dst, r.Text[:min(len(r.Text), MaxRefusedText)]...)
}

// ParseRefused reads the body of MRefused and MRunDone.
func ParseRefused(b []byte) (r Refused, err error) {
	if len(b) < 8 || len(b) > 8+MaxRefusedText {
		return r, fmt.Errorf("refused: body of %d bytes, want 8 to %d", len(b), 8+MaxRefusedText)
	}
	return Refused{Code: int32(le.Uint32(b)), Text: string(b[8:])}, parseZero("refused", b[4:])
}

// The actions of an Order (RP_ORDER_*).
const (
	OrderInit    uint32 = 1
	OrderLoad    uint32 = 2
	OrderGo      uint32 = 3
	OrderStop    uint32 = 4
	OrderCapture uint32 = 5 // of a stopped rank: seal the live state as Generation, then wait on
)

// MaxOrderText bounds the text of an order, in bytes.
const MaxOrderText = 63

// Order is the body of MOrder; the header's epoch is the one ordered.
type Order struct {
	Action                      uint32
	Source                      replica.Tier // 0 unless Action is OrderLoad
	Step                        replica.Step // T
	Generation                  replica.Generation
	Slot, Place                 uint32 // where the parts to load lie, sealed
	ReplicatedRoot, PrivateRoot replica.Digest
	Code                        int32 // OrderStop: CodeStopped
	Text                        string
}

// Append appends the body.
func (o Order) Append(dst []byte) []byte {
	dst = le.AppendUint32(le.AppendUint32(dst, o.Action), uint32(o.Source))
	dst = le.AppendUint64(le.AppendUint64(dst, uint64(o.Step)), uint64(o.Generation.Word()))
	dst = le.AppendUint32(le.AppendUint32(dst, o.Slot), o.Place)
	dst = append(append(dst, o.ReplicatedRoot[:]...), o.PrivateRoot[:]...)
	dst = le.AppendUint32(le.AppendUint32(dst, uint32(o.Code)), 0)
	return appendText(dst, o.Text, MaxOrderText+1)
}

// ParseOrder reads the body of MOrder.
func ParseOrder(b []byte) (o Order, err error) {
	if err := checkBody("order", b, 136); err != nil {
		return o, err
	}
	source := le.Uint32(b[4:])
	o = Order{Action: le.Uint32(b), Source: replica.Tier(source), Step: replica.Step(le.Uint64(b[8:])), Slot: le.Uint32(b[24:]), Place: le.Uint32(b[28:]), Code: int32(le.Uint32(b[64:]))}
	if o.Action < OrderInit || o.Action > OrderCapture || source > uint32(replica.Disk) || o.Step > replica.MaxStep {
		return Order{}, fmt.Errorf("order: action %d, source %d, step %d out of range", o.Action, source, o.Step)
	}
	copy(o.ReplicatedRoot[:], b[32:])
	copy(o.PrivateRoot[:], b[48:])
	if o.Generation, err = parseGeneration("order", b[16:]); err != nil {
		return Order{}, err
	}
	if err = parseZero("order", b[68:]); err != nil {
		return Order{}, err
	}
	o.Text, err = parseText("order", b[72:136])
	return o, err
}

// AppendKVOK appends the body of MKVOK.
func AppendKVOK(dst []byte, code int32) []byte {
	return le.AppendUint32(le.AppendUint32(dst, uint32(code)), 0)
}

// ParseKVOK reads the body of MKVOK.
func ParseKVOK(b []byte) (code int32, err error) {
	if err := checkBody("kv ok", b, 8); err != nil {
		return 0, err
	}
	return int32(le.Uint32(b)), parseZero("kv ok", b[4:])
}

// KVValue is the body of MKVValue.
type KVValue struct {
	Code  int32
	Value []byte
}

// Append appends the body.
func (v KVValue) Append(dst []byte) []byte {
	dst = le.AppendUint32(le.AppendUint32(dst, uint32(v.Code)), uint32(len(v.Value)))
	return append(dst, v.Value...)
}

// ParseKVValue reads the body of MKVValue. The value is a copy.
func ParseKVValue(b []byte) (v KVValue, err error) {
	if len(b) < 8 || len(b) > 8+MaxValueBytes || int(le.Uint32(b[4:])) != len(b)-8 {
		return v, fmt.Errorf("kv value: body of %d bytes does not fit its length or the cap of %d", len(b), MaxValueBytes)
	}
	return KVValue{Code: int32(le.Uint32(b)), Value: append([]byte(nil), b[8:]...)}, nil
}
