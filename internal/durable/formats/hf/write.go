package hf

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/replicad/replicad/internal/durable/formats"
	"github.com/replicad/replicad/internal/durable/safetensors"
)

// Names in a folder.
const (
	Single = "model.safetensors"
	Index  = "model.safetensors.index.json"
)

// ShardBytes is how large a shard gets, unless one tensor is larger.
const ShardBytes = 5_000_000_000

// WriteFile writes one safetensors file. Tensors of larger elements come first, so that each lies where its elements may be read in place.
func WriteFile(ctx context.Context, w io.Writer, metadata map[string]string, tensors []formats.Tensor) error {
	tensors = slices.Clone(tensors)
	slices.SortStableFunc(tensors, func(a, b formats.Tensor) int { return cmp.Compare(b.DType.Size(), a.DType.Size()) })
	list := make([]safetensors.Tensor, len(tensors))
	at := uint64(0)
	for i, t := range tensors {
		list[i] = safetensors.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Begin: at, End: at + t.Bytes()}
		at = list[i].End
	}
	head, err := safetensors.AppendHeader(metadata, list)
	if err != nil {
		return err
	}
	if _, err := w.Write(head); err != nil {
		return err
	}
	for _, t := range tensors {
		if err := formats.Stream(ctx, w, t); err != nil {
			return err
		}
	}
	return nil
}

// index is what the index file has.
type index struct {
	Metadata struct {
		TotalSize uint64 `json:"total_size"`
	} `json:"metadata"`
	WeightMap map[string]string `json:"weight_map"`
}

// WriteFolder writes tensors into a folder that is there, in shards of so many bytes: one file where all fit. A further name of a tensor is in the metadata of
// its shard.
func WriteFolder(ctx context.Context, dir string, tensors []formats.Tensor, aliases map[string]string, most uint64) error {
	shards := split(tensors, most)
	x := index{WeightMap: make(map[string]string)}
	for i, shard := range shards {
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards))
		if len(shards) == 1 {
			name = Single
		}
		meta := map[string]string{"format": "pt"}
		here := make(map[string]bool, len(shard))
		for _, t := range shard {
			here[t.Name] = true
		}
		for alias, of := range aliases {
			if alias != "format" && here[of] {
				meta[alias] = of
			}
		}
		err := formats.WriteFile(dir, name, func(w io.Writer) error { return WriteFile(ctx, w, meta, shard) })
		if err != nil {
			return err
		}
		for _, t := range shard {
			x.WeightMap[t.Name] = name
			x.Metadata.TotalSize += t.Bytes()
		}
	}
	if len(shards) == 1 {
		return nil
	}
	b, err := json.MarshalIndent(&x, "", "  ")
	if err != nil {
		return err
	}
	return formats.WriteFile(dir, Index, func(w io.Writer) error { _, err := w.Write(append(b, '\n')); return err })
}

// headerEntry bounds what a tensor takes in a header beside its name, in bytes.
const headerEntry = 400

// split parts tensors, in order.
func split(tensors []formats.Tensor, most uint64) (shards [][]formats.Tensor) {
	begin, n, names := 0, uint64(0), 0
	for i, t := range tensors {
		if i > begin && (n+t.Bytes() > most || names+6*len(t.Name)+headerEntry > safetensors.MaxHeader) {
			shards = append(shards, tensors[begin:i])
			begin, n, names = i, 0, 0
		}
		n += t.Bytes()
		names += 6*len(t.Name) + headerEntry // a byte of a name may take six
	}
	return append(shards, tensors[begin:])
}
