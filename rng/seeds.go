package rng

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
)

// MaxPool is the largest pool of a seed sequence; numpy mixes one in the square of its size.
const MaxPool = 1024

var errNoSeeds = errors.New("not the text of a seed sequence")

// SeedSequence is numpy's, which Generator.spawn seeds others from: JSON without a space, its fields in this order, each whole number
// as large as it likes.
type SeedSequence struct {
	Entropy  Entropy    `json:"entropy"`
	Spawned  *big.Int   `json:"n_children_spawned"`
	PoolSize *big.Int   `json:"pool_size"`
	SpawnKey []*big.Int `json:"spawn_key"`
}

// Entropy is one number, or a list of them.
type Entropy struct {
	Number *big.Int // nil where there is a list
	List   []*big.Int
}

// MarshalJSON writes the number or the list.
func (e Entropy) MarshalJSON() ([]byte, error) {
	if e.Number != nil {
		return json.Marshal(e.Number)
	}
	return json.Marshal(e.List)
}

// UnmarshalJSON reads either.
func (e *Entropy) UnmarshalJSON(b []byte) error {
	if bytes.HasPrefix(b, []byte("[")) {
		return json.Unmarshal(b, &e.List)
	}
	return json.Unmarshal(b, &e.Number)
}

// parseSeeds takes only what append writes.
func parseSeeds(b []byte) (State, error) {
	var s SeedSequence
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, errNoSeeds
	}
	if err := s.Check(); err != nil {
		return nil, err
	}
	if again := s.append(nil); !bytes.Equal(again, b) {
		return nil, errNoSeeds
	}
	return s, nil
}

// Layout is that of seed sequences.
func (SeedSequence) Layout() Layout { return LayoutSeeds }

// Check refuses what numpy would, and numbers that cost more than a seed sequence is worth.
func (s SeedSequence) Check() error {
	numbers := append([]*big.Int{s.Spawned, s.PoolSize}, s.SpawnKey...)
	if s.Entropy.Number != nil {
		numbers = append(numbers, s.Entropy.Number)
	} else {
		numbers = append(numbers, s.Entropy.List...)
	}
	least := new(big.Int)
	for _, n := range numbers {
		if n == nil {
			return errNoSeeds
		}
		if n.Cmp(least) < 0 {
			least = n
		}
	}
	switch {
	case s.SpawnKey == nil, s.Entropy.Number == nil && s.Entropy.List == nil, s.Entropy.Number != nil && s.Entropy.List != nil:
		return errNoSeeds
	case least.Sign() < 0:
		return fmt.Errorf("%v, want no number below 0", least)
	case s.Spawned.Cmp(big.NewInt(math.MaxUint32)) > 0:
		return fmt.Errorf("%v children, want fewer than %d", s.Spawned, int64(math.MaxUint32)+1)
	case s.PoolSize.Cmp(big.NewInt(4)) < 0 || s.PoolSize.Cmp(big.NewInt(MaxPool)) > 0:
		return fmt.Errorf("a pool of %v, want 4 to %d", s.PoolSize, MaxPool)
	}
	return LayoutSeeds.checkSize(int64(len(s.append(nil))))
}

func (s SeedSequence) append(dst []byte) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // numbers and lists of them always have a text
	}
	return append(dst, b...)
}
