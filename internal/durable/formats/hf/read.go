package hf

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/replicad/replicad/internal/durable/formats"
	"github.com/replicad/replicad/internal/durable/safetensors"
)

// Saved is what safetensors files have. Aliases are further names of tensors, as save_model writes them: the other name, and the tensor's.
type Saved struct {
	Tensors []formats.Tensor
	Left    []formats.Left
	Aliases map[string]string
	Ours    bool // replicad wrote it
}

// add takes in what a file has.
func (s *Saved) add(more *Saved) {
	s.Tensors, s.Left = append(s.Tensors, more.Tensors...), append(s.Left, more.Left...)
	maps.Copy(s.Aliases, more.Aliases)
}

// ReadFile lists the tensors of a safetensors file of a folder.
func ReadFile(f *formats.Folder, name string) (*Saved, error) {
	h, err := header(f, name)
	if err != nil {
		return nil, err
	}
	s := &Saved{Aliases: make(map[string]string), Ours: h.Metadata["replicad"] != ""}
	names := make(map[string]bool, len(h.Tensors))
	for _, t := range h.Tensors {
		if t.Refused != "" {
			s.Left = append(s.Left, formats.Left{Name: t.Name, Why: t.Refused})
			continue
		}
		names[t.Name] = true
		at := int64(h.Size + t.Begin)
		s.Tensors = append(s.Tensors, formats.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, ReadAt: func(p []byte, off uint64) error { return f.ReadAt(name, p, at+int64(off)) }})
	}
	for alias, of := range h.Metadata {
		if names[of] && !names[alias] {
			s.Aliases[alias] = of
		}
	}
	return s, nil
}

func header(f *formats.Folder, name string) (*safetensors.Header, error) {
	o, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	if o.Size < 8 {
		return nil, fmt.Errorf("%s: %w: %d bytes", name, safetensors.ErrFormat, o.Size)
	}
	var first [8]byte
	if err := f.ReadAt(name, first[:], 0); err != nil {
		return nil, err
	}
	n, err := safetensors.HeaderLength(first)
	if err == nil && n > uint64(o.Size)-8 {
		err = fmt.Errorf("%w: a header of %d bytes in a file of %d: it is cut", safetensors.ErrFormat, n, o.Size)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	size, text := uint64(o.Size), make([]byte, n)
	if err := f.ReadAt(name, text, 8); err != nil {
		return nil, err
	}
	h, err := safetensors.ParseForeign(text, size-8-n)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return h, nil
}

// Bounds of an index, and of the shards that it names.
const (
	maxIndex  = 256 << 20 // a million names
	maxShards = 1 << 12
)

// ErrIndex marks an index that is none, or that says otherwise than its shards.
var ErrIndex = errors.New("not an index of safetensors shards that replicad accepts")

// ParseIndex reads an index: the shard of each tensor.
func ParseIndex(b []byte) (map[string]string, error) {
	var x index
	if err := json.Unmarshal(b, &x); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIndex, err)
	}
	if n := len(x.WeightMap); n > formats.MaxTensors {
		return nil, fmt.Errorf("%w: it names %d tensors, at most %d", ErrIndex, n, formats.MaxTensors)
	}
	if len(x.WeightMap) == 0 {
		return nil, fmt.Errorf("%w: it names no tensors", ErrIndex)
	}
	shards := make(map[string]bool)
	for _, file := range x.WeightMap {
		if shards[file] = true; !strings.HasSuffix(file, ".safetensors") || strings.ContainsAny(file, `/\`) || len(shards) > maxShards {
			return nil, fmt.Errorf("%w: shard %.128q is one of %d: want at most %d names of files of this folder that end in .safetensors", ErrIndex, file, len(shards), maxShards)
		}
	}
	return x.WeightMap, nil
}

// ReadFolder lists the tensors of a folder: those of its index's shards, or of the one safetensors file that is there.
func ReadFolder(f *formats.Folder) (*Saved, error) {
	names, err := f.Names()
	if err != nil {
		return nil, err
	}
	indexes, files := ending(names, ".safetensors.index.json"), ending(names, ".safetensors")
	switch {
	case len(indexes) > 1:
		return nil, fmt.Errorf("%s has %d indexes, %.200q: keep one of them in a folder of its own", f.Dir(), len(indexes), indexes)
	case len(indexes) == 1:
		return readShards(f, indexes[0])
	case len(files) != 1:
		return nil, fmt.Errorf("%s has %d safetensors files and no index: import the one that is meant: %.200q", f.Dir(), len(files), files)
	}
	return ReadFile(f, files[0])
}

func ending(names []string, with string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !strings.HasSuffix(n, with) })
}

// Holds tells whether a folder is of this format.
func Holds(names []string) bool {
	return len(ending(names, ".safetensors.index.json"))+len(ending(names, ".safetensors")) > 0
}

func readShards(f *formats.Folder, name string) (*Saved, error) {
	b, err := f.Small(name, maxIndex)
	if err != nil {
		return nil, err
	}
	where, err := ParseIndex(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	shards, found := make(map[string]bool), make(map[string]bool)
	for _, file := range where {
		shards[file] = true
	}
	all := &Saved{Aliases: make(map[string]string)}
	for _, file := range slices.Sorted(maps.Keys(shards)) {
		s, err := ReadFile(f, file)
		if err != nil {
			return nil, err
		}
		lies := func(t string) error {
			at, there := where[t]
			if !there {
				return fmt.Errorf("%s: %w: tensor %.128q lies in %s, and the index does not list it", name, ErrIndex, t, file)
			}
			if at != file {
				return fmt.Errorf("%s: %w: tensor %.128q lies in %s, the index says %.128q", name, ErrIndex, t, file, at)
			}
			found[t] = true
			return nil
		}
		for _, t := range s.Tensors {
			if err := lies(t.Name); err != nil {
				return nil, err
			}
		}
		for _, t := range s.Left {
			if err := lies(t.Name); err != nil {
				return nil, err
			}
		}
		all.add(s)
	}
	for t, file := range where {
		if !found[t] {
			return nil, fmt.Errorf("%s: %w: it says that tensor %.128q lies in %s, which has no such tensor", name, ErrIndex, t, file)
		}
	}
	return all, nil
}
