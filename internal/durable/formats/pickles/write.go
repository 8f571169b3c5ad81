package pickles

import (
	"encoding/binary"
	"math"
)

// Writer writes a pickle of protocol 2, the one that every torch reads, opcode by opcode.
type Writer struct {
	b    []byte
	memo map[string]uint32 // what was put before, by its opcode and bytes
}

// NewWriter begins a pickle.
func NewWriter() *Writer { return &Writer{[]byte{0x80, 2}, make(map[string]uint32)} }

// Bytes ends the pickle.
func (w *Writer) Bytes() []byte { return append(w.b, '.') }

// Class names a class or function.
func (w *Writer) Class(module, name string) {
	w.once("c"+module+"\n"+name+"\n", func() { w.b = append(w.b, "c"+module+"\n"+name+"\n"...) })
}

// Name puts a text that is put several times.
func (w *Writer) Name(s string) { w.once("X"+s, func() { w.Text(s) }) }

// once puts a value, and from the second time on the place of the memo that has it.
func (w *Writer) once(key string, put func()) {
	if n, ok := w.memo[key]; ok {
		w.b = binary.LittleEndian.AppendUint32(append(w.b, 'j'), n)
		return
	}
	put()
	n := uint32(len(w.memo))
	w.memo[key] = n
	w.b = binary.LittleEndian.AppendUint32(append(w.b, 'r'), n)
}

// Text puts a text.
func (w *Writer) Text(s string) {
	w.b = append(w.b, 'X')
	w.b = binary.LittleEndian.AppendUint32(w.b, uint32(len(s)))
	w.b = append(w.b, s...)
}

// Int puts a number below 2^63.
func (w *Writer) Int(n uint64) {
	if n <= math.MaxInt32 {
		w.b = append(w.b, 'J')
		w.b = binary.LittleEndian.AppendUint32(w.b, uint32(n))
		return
	}
	w.b = append(w.b, 0x8a, 8)
	w.b = binary.LittleEndian.AppendUint64(w.b, n)
}

// Bool puts a truth value.
func (w *Writer) Bool(v bool) {
	if v {
		w.b = append(w.b, 0x88)
	} else {
		w.b = append(w.b, 0x89)
	}
}

// None puts None.
func (w *Writer) None() { w.b = append(w.b, 'N') }

// Tuple puts a tuple of what fill puts.
func (w *Writer) Tuple(fill func()) {
	w.b = append(w.b, '(')
	fill()
	w.b = append(w.b, 't')
}

// Ints puts a tuple of numbers.
func (w *Writer) Ints(list []uint64) {
	w.Tuple(func() {
		for _, n := range list {
			w.Int(n)
		}
	})
}

// Dict puts a dict of the keys and values that fill puts by turns.
func (w *Writer) Dict(fill func()) {
	w.b = append(w.b, '}', '(')
	fill()
	w.b = append(w.b, 'u')
}

// List puts a list of what fill puts.
func (w *Writer) List(fill func()) {
	w.b = append(w.b, ']', '(')
	fill()
	w.b = append(w.b, 'e')
}

// Call puts what a function returns for the arguments that fill puts.
func (w *Writer) Call(module, name string, fill func()) {
	w.Class(module, name)
	w.Tuple(fill)
	w.b = append(w.b, 'R')
}

// Object puts an object of a class, whose state fill puts.
func (w *Writer) Object(module, name string, fill func()) {
	w.Class(module, name)
	w.b = append(w.b, ')', 0x81)
	fill()
	w.b = append(w.b, 'b')
}

// Ref puts a reference to what the tuple names that fill puts.
func (w *Writer) Ref(fill func()) {
	w.Tuple(fill)
	w.b = append(w.b, 'Q')
}
