package pickles

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"
)

// Class is a class or function by its name.
type Class struct{ Module, Name string }

func (c Class) String() string { return c.Module + "." + c.Name }

// Call is what Python would have called, or made an object by; State is what the object would have been given then.
type Call struct {
	Class Class
	Args  []any
	State any
}

// Values of a pickle: nil, bool, int64, Big, float64, string, []byte, Tuple, *List, *Dict, Class, *Call and Ref. An OrderedDict, and a defaultdict, is a
// *Dict; a set is a *Call. What an object of a class has of items says nothing here.
type (
	Tuple []any
	List  struct{ Items []any }
	Dict  struct{ Keys, Values []any }
	Ref   struct{ ID any } // names what lies elsewhere
	Big   string           // a number of more than 64 bits: its bytes in two's complement, the lowest first
)

// MaxBytes bounds a pickle; maxValues what it makes: a value takes some ten times its opcode in memory.
const (
	MaxBytes  = 64 << 20
	maxValues = 16 << 20
)

// ErrRefused marks a pickle that is cut, or has what is not admitted.
var ErrRefused = errors.New("refused, and nothing of it was executed")

func refuse(form string, args ...any) error {
	return fmt.Errorf("pickle %w: %s", ErrRefused, fmt.Sprintf(form, args...))
}

var (
	orderedDict = Class{"collections", "OrderedDict"}
	defaultDict = Class{"collections", "defaultdict"}
	set         = Class{"builtins", "set"}
	frozenSet   = Class{"builtins", "frozenset"}
)

// Any admits every class: they are names, whoever reads them.
func Any(Class) bool { return true }

// Load reads a pickle. admit says which classes it may name; OrderedDict it may always.
func Load(b []byte, admit func(Class) bool) (any, error) {
	if len(b) > MaxBytes {
		return nil, refuse("%d bytes, at most %d", len(b), MaxBytes)
	}
	return load(b, admit, maxValues)
}

func load(b []byte, admit func(Class) bool, most int) (any, error) {
	m := machine{b: b, admit: admit, most: most}
	return m.run()
}

// Stream reads pickles that follow each other.
type Stream struct {
	b     []byte
	admit func(Class) bool
	left  int
	At    int   // behind the last one
	Refs  []Ref // of all that were read
}

// NewStream begins with the first of the pickles in b, which bytes that are none may follow.
func NewStream(b []byte, admit func(Class) bool) *Stream {
	return &Stream{b: b[:min(len(b), MaxBytes)], admit: admit, left: maxValues}
}

// Next reads one more.
func (s *Stream) Next() (any, error) {
	m := machine{b: s.b[s.At:], admit: s.admit, most: s.left}
	v, err := m.run()
	s.left, s.At, s.Refs = s.left-m.made, s.At+m.at, append(s.Refs, m.refs...)
	return v, err
}

func (m *machine) run() (any, error) {
	for {
		op, err := m.byte()
		if err != nil {
			return nil, err
		}
		if op == '.' {
			return m.pop()
		}
		at := m.at - 1
		if err := m.do(op); err != nil {
			return nil, fmt.Errorf("%w (byte %d)", err, at)
		}
	}
}

type machine struct {
	b     []byte
	at    int
	admit func(Class) bool
	stack []any
	marks []int // where the stack was when a mark was set
	memo  []any
	refs  []Ref
	made  int // values, marks and places of the memo
	most  int // of these
}

// unset is a place of the memo that was passed over.
var unset = new(int)

// make counts one more.
func (m *machine) make() error {
	if m.made++; m.made > m.most {
		return refuse("it makes more than %d values", m.most)
	}
	return nil
}

func (m *machine) take(n uint64) ([]byte, error) {
	if n > uint64(len(m.b)-m.at) {
		return nil, refuse("it is cut: %d bytes are wanted at %d of %d", n, m.at, len(m.b))
	}
	b := m.b[m.at : m.at+int(n)]
	m.at += int(n)
	return b, nil
}

func (m *machine) byte() (byte, error) {
	b, err := m.take(1)
	if err != nil {
		return 0, err
	}
	return b[0], nil
}

// number reads a length or index of so many bytes.
func (m *machine) number(bytes uint64) (uint64, error) {
	b, err := m.take(bytes)
	if err != nil {
		return 0, err
	}
	var full [8]byte
	copy(full[:], b)
	return binary.LittleEndian.Uint64(full[:]), nil
}

// counted reads bytes behind their length, which has so many bytes.
func (m *machine) counted(bytes uint64) ([]byte, error) {
	n, err := m.number(bytes)
	if err != nil {
		return nil, err
	}
	return m.take(n)
}

// line reads what ends in a newline.
func (m *machine) line() (string, error) {
	n := bytes.IndexByte(m.b[m.at:], '\n')
	if n < 0 {
		return "", refuse("it is cut: a line does not end")
	}
	b, err := m.take(uint64(n) + 1)
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

func (m *machine) push(v any) error {
	m.stack = append(m.stack, v)
	return m.make()
}

// floor is how deep the stack may be taken from: what lies below the last mark belongs to it.
func (m *machine) floor() int {
	if len(m.marks) == 0 {
		return 0
	}
	return m.marks[len(m.marks)-1]
}

func (m *machine) pop() (any, error) {
	if len(m.stack) <= m.floor() {
		return nil, refuse("it takes from an empty stack")
	}
	v := m.stack[len(m.stack)-1]
	m.stack = m.stack[:len(m.stack)-1]
	return v, nil
}

func (m *machine) top() (any, error) {
	if len(m.stack) <= m.floor() {
		return nil, refuse("it looks at an empty stack")
	}
	return m.stack[len(m.stack)-1], nil
}

// popN takes so many values, in order.
func (m *machine) popN(n int) ([]any, error) {
	if len(m.stack)-m.floor() < n {
		return nil, refuse("it takes %d values from a stack of %d", n, len(m.stack)-m.floor())
	}
	list := append([]any(nil), m.stack[len(m.stack)-n:]...)
	m.stack = m.stack[:len(m.stack)-n]
	return list, nil
}

// popMark takes what lies above the last mark.
func (m *machine) popMark() ([]any, error) {
	if len(m.marks) == 0 {
		return nil, refuse("it takes up to a mark that is not there")
	}
	list, err := m.popN(len(m.stack) - m.floor())
	m.marks = m.marks[:len(m.marks)-1]
	return list, err
}

func (m *machine) do(op byte) error {
	switch op {
	case 0x80: // PROTO
		v, err := m.byte()
		if err == nil && v > 5 {
			err = refuse("protocol %d, up to 5 are known", v)
		}
		return err
	case 0x95: // FRAME: says only how much is read at once
		_, err := m.take(8)
		return err
	case '(':
		m.marks = append(m.marks, len(m.stack))
		return m.make()
	case 'N':
		return m.push(nil)
	case 0x88, 0x89:
		return m.push(op == 0x88)
	case 'J', 'K', 'M', 0x8a, 0x8b, 'G':
		return m.numeric(op)
	case 'X', 0x8c, 0x8d, 'U', 'T', 'B', 'C', 0x8e, 0x96:
		return m.text(op)
	case '0', '1':
		return m.drop(op)
	case 0x8f, 0x90, 0x91:
		return m.set(op)
	case ']', 'a', 'e', ')', 't', 0x85, 0x86, 0x87:
		return m.sequence(op)
	case '}', 's', 'u':
		return m.mapping(op)
	case 'q', 'r', 0x94, 'h', 'j':
		return m.remember(op)
	case 'c', 0x93, 'R', 0x81, 0x92, 'b', 'Q':
		return m.object(op)
	}
	return refuse("opcode %#02x is none that tensors are saved by", op)
}

func (m *machine) numeric(op byte) error {
	switch op {
	case 'K', 'M':
		v, err := m.number(map[byte]uint64{'K': 1, 'M': 2}[op])
		if err != nil {
			return err
		}
		return m.push(int64(v))
	case 'J':
		v, err := m.number(4)
		if err != nil {
			return err
		}
		return m.push(int64(int32(v)))
	case 'G':
		b, err := m.take(8)
		if err != nil {
			return err
		}
		return m.push(math.Float64frombits(binary.BigEndian.Uint64(b)))
	}
	b, err := m.counted(map[byte]uint64{0x8a: 1, 0x8b: 4}[op])
	if err != nil {
		return err
	}
	return m.long(b)
}

// long reads a number in two's complement.
func (m *machine) long(b []byte) error {
	if len(b) > 8 {
		return m.push(Big(b))
	}
	var v uint64
	for i, x := range b {
		v |= uint64(x) << (8 * i)
	}
	if n := len(b); n > 0 && n < 8 && b[n-1]&0x80 != 0 {
		v |= math.MaxUint64 << (8 * n)
	}
	return m.push(int64(v))
}

// lengths of the lengths of texts and bytes.
var lengths = map[byte]uint64{'X': 4, 0x8c: 1, 0x8d: 8, 'U': 1, 'T': 4, 'B': 4, 'C': 1, 0x8e: 8, 0x96: 8}

func (m *machine) text(op byte) error {
	b, err := m.counted(lengths[op])
	if err != nil {
		return err
	}
	if op == 'B' || op == 'C' || op == 0x8e || op == 0x96 || (op == 'U' || op == 'T') && !utf8.Valid(b) { // the latter are Python 2's, texts or bytes
		return m.push(bytes.Clone(b))
	}
	if !utf8.Valid(b) {
		return refuse("a text that is not UTF-8: %.40q", b)
	}
	return m.push(string(b))
}

func (m *machine) sequence(op byte) (err error) {
	var list []any
	switch op {
	case ']':
		return m.push(&List{})
	case ')':
		return m.push(Tuple{})
	case 0x85, 0x86, 0x87:
		list, err = m.popN(int(op - 0x84))
	case 'a':
		list, err = m.popN(1)
	case 't', 'e':
		list, err = m.popMark()
	}
	if err != nil {
		return err
	}
	if op != 'a' && op != 'e' {
		return m.push(Tuple(list))
	}
	v, err := m.top()
	if err != nil {
		return err
	}
	switch to := v.(type) {
	case *List:
		to.Items = append(to.Items, list...)
	case *Call:
	default:
		return refuse("it appends to a %T", v)
	}
	return nil
}

// drop takes a value, or all above the last mark, and forgets it.
func (m *machine) drop(op byte) error {
	if op == '1' {
		_, err := m.popMark()
		return err
	}
	if len(m.marks) > 0 && len(m.stack) == m.floor() { // as Python does
		m.marks = m.marks[:len(m.marks)-1]
		return nil
	}
	_, err := m.pop()
	return err
}

// set makes one, or adds to it: what is in it is data that nobody asks for.
func (m *machine) set(op byte) error {
	if op == 0x8f {
		return m.push(&Call{Class: set})
	}
	list, err := m.popMark()
	if err != nil {
		return err
	}
	if op == 0x91 {
		return m.push(&Call{Class: frozenSet, Args: list})
	}
	v, err := m.top()
	if err != nil {
		return err
	}
	if _, ok := v.(*Call); !ok {
		return refuse("it adds to a %T", v)
	}
	return nil
}

func (m *machine) mapping(op byte) (err error) {
	var list []any
	switch op {
	case '}':
		return m.push(&Dict{})
	case 's':
		list, err = m.popN(2)
	case 'u':
		list, err = m.popMark()
	}
	if err != nil {
		return err
	}
	if len(list)%2 != 0 {
		return refuse("a key of a dict has no value")
	}
	v, err := m.top()
	if err != nil {
		return err
	}
	to, ok := v.(*Dict)
	if _, object := v.(*Call); object {
		return nil
	}
	if !ok {
		return refuse("it sets an item of a %T", v)
	}
	for i := 0; i < len(list); i += 2 {
		to.Keys, to.Values = append(to.Keys, list[i]), append(to.Values, list[i+1])
	}
	return nil
}

func (m *machine) remember(op byte) error {
	var n uint64
	var err error
	switch op {
	case 'q', 'h':
		n, err = m.number(1)
	case 'r', 'j':
		n, err = m.number(4)
	case 0x94:
		n = uint64(len(m.memo))
	}
	if err != nil {
		return err
	}
	if op == 'h' || op == 'j' {
		if n >= uint64(len(m.memo)) || m.memo[n] == unset {
			return refuse("place %d of the memo is empty", n)
		}
		return m.push(m.memo[n])
	}
	v, err := m.top()
	if err != nil {
		return err
	}
	switch {
	case n < uint64(len(m.memo)):
		m.memo[n] = v
		return nil
	case n == uint64(len(m.memo))+1: // Python 2 counts them up from 1
		m.memo = append(m.memo, unset)
		if err := m.make(); err != nil {
			return err
		}
	case n > uint64(len(m.memo)): // Python counts them up
		return refuse("place %d of the memo is used, and place %d is not", n, len(m.memo))
	}
	m.memo = append(m.memo, v)
	return m.make()
}

func (m *machine) object(op byte) error {
	switch op {
	case 'c':
		module, err := m.line()
		if err != nil {
			return err
		}
		name, err := m.line()
		if err != nil {
			return err
		}
		return m.class(Class{module, name})
	case 0x93:
		list, err := m.popN(2)
		if err != nil {
			return err
		}
		module, ok := list[0].(string)
		name, ok2 := list[1].(string)
		if !ok || !ok2 {
			return refuse("it names a class by a %T and a %T", list[0], list[1])
		}
		return m.class(Class{module, name})
	case 'Q':
		id, err := m.pop()
		if err != nil {
			return err
		}
		m.refs = append(m.refs, Ref{id})
		return m.push(Ref{id})
	}
	if op == 0x92 { // with arguments by name
		if _, err := m.pop(); err != nil {
			return err
		}
	}
	list, err := m.popN(2)
	if err != nil {
		return err
	}
	if op == 'b' {
		return m.build(list[0], list[1])
	}
	class, ok := callee(list[0])
	args, ok2 := list[1].(Tuple)
	if !ok || !ok2 {
		return refuse("it calls a %T with a %T", list[0], list[1])
	}
	if class == orderedDict {
		d, ok := ordered(args)
		if !ok {
			return refuse("an OrderedDict of %d arguments, which are no list of pairs", len(args))
		}
		return m.push(d)
	}
	if class == defaultDict && len(args) < 2 { // what its function makes of no key says nothing
		return m.push(&Dict{})
	}
	return m.push(&Call{Class: class, Args: args})
}

// ordered is an OrderedDict of a list of pairs, as Python 2 wrote it, or an empty one.
func ordered(args Tuple) (*Dict, bool) {
	d := &Dict{}
	if len(args) == 0 {
		return d, true
	}
	list, ok := args[0].(*List)
	if !ok || len(args) > 1 {
		return nil, false
	}
	for _, v := range list.Items {
		pair, ok := v.(Tuple)
		if l, isList := v.(*List); isList {
			pair, ok = l.Items, true
		}
		if !ok || len(pair) != 2 {
			return nil, false
		}
		d.Keys, d.Values = append(d.Keys, pair[0]), append(d.Values, pair[1])
	}
	return d, true
}

// callee is what is called: a class, what a call returns, or a class whose source lies beside it.
func callee(v any) (Class, bool) {
	switch v := v.(type) {
	case Class:
		return v, true
	case *Call:
		return v.Class, true
	case Ref:
		if id, ok := v.ID.(Tuple); ok && len(id) > 1 && id[0] == "module" {
			c, ok := id[1].(Class)
			return c, ok
		}
	}
	return Class{}, false
}

func (m *machine) class(c Class) error {
	if c != orderedDict && !m.admit(c) {
		return refuse("it names %.128q, which is none of the names that tensors are saved by", c.String())
	}
	return m.push(c)
}

// build gives an object its state. What a dict has beside its items says nothing of tensors.
func (m *machine) build(v, state any) error {
	switch o := v.(type) {
	case *Call:
		o.State = state
	case *Dict:
	default:
		return refuse("it gives a %T a state", v)
	}
	return m.push(v)
}
