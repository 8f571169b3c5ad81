package data

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"testing"
)

func TestOpticksIsTheFileOfTheProvenanceNote(t *testing.T) {
	sum := sha256.Sum256(opticks)
	if got, want := hex.EncodeToString(sum[:]), "d4a9ac22462b35e7821a4f2706c211093da678620a8f9997989ee7cf8d507bbd"; got != want {
		t.Fatalf("opticks.txt has SHA-256 %s, want %s: a checkout that changes line ends changes the training data", got, want)
	}
}

func TestTokensStandForTheirBytes(t *testing.T) {
	c := Opticks()
	if c.Vocab != 93 {
		t.Fatalf("vocabulary of %d, want 93", c.Vocab)
	}
	back := make([]byte, len(c.Tokens))
	for i, n := range c.Tokens {
		back[i] = c.Bytes[n]
	}
	if !bytes.Equal(back, opticks) {
		t.Fatal("tokens do not give the text back")
	}
}
