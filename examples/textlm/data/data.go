// Package data carries the text that textlm trains on: Newton's Opticks (see PROVENANCE.md), one token a byte value.
package data

import (
	_ "embed"
)

//go:embed opticks.txt
var opticks []byte

// Corpus is a text as token numbers.
type Corpus struct {
	Tokens []uint8 // each below Vocab
	Vocab  int
	Bytes  []byte // by token: the byte it stands for, ascending
}

// Opticks is the whole book.
func Opticks() Corpus { return Tokenize(opticks) }

// Tokenize numbers the byte values that occur in text, in ascending order.
func Tokenize(text []byte) Corpus {
	var seen [256]bool
	for _, b := range text {
		seen[b] = true
	}
	var number [256]uint8
	c := Corpus{Tokens: make([]uint8, len(text))}
	for b := range 256 {
		if seen[b] {
			number[b] = uint8(len(c.Bytes))
			c.Bytes = append(c.Bytes, byte(b))
		}
	}
	c.Vocab = len(c.Bytes)
	for i, b := range text {
		c.Tokens[i] = number[b]
	}
	return c
}
