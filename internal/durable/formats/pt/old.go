package pt

import (
	"encoding/binary"
	"errors"
	"io"
	"math"

	"github.com/replicad/replicad/internal/durable/formats"
	"github.com/replicad/replicad/internal/durable/formats/pickles"
)

// oldVersion is the one that the older format ever had.
const oldVersion = 1001

// span is where a storage's bytes lie.
type span struct{ at, size int64 }

// openOld reads the format before torch 1.6: pickles that follow each other (a mark, a version, the machine's sizes, the object, the keys of its storages),
// and the storages in the order of the keys, each behind the number of its elements.
func openOld(src io.ReaderAt, size int64, most limits) (v any, r *reader, err error) {
	head := make([]byte, min(size, pickles.MaxBytes))
	if err := readAt(src, head, 0); err != nil {
		return nil, nil, err
	}
	s := pickles.NewStream(head, pickles.Any)
	var parts [5]any
	for i := range parts {
		if parts[i], err = s.Next(); err != nil {
			return nil, nil, bad("the older format, pickle %d of %d: %w", i+1, len(parts), err)
		}
	}
	if parts[1] != int64(oldVersion) {
		return nil, nil, bad("the older format in version %v, want %d", parts[1], oldVersion)
	}
	if sizes, ok := parts[2].(*pickles.Dict); ok {
		for i, k := range sizes.Keys {
			if k == "little_endian" && sizes.Values[i] != true {
				return nil, nil, bad("its numbers are big-endian")
			}
		}
	}
	keys, ok := parts[4].(*pickles.List)
	if !ok {
		return nil, nil, bad("a %T where the keys of storages belong", parts[4])
	}
	where, err := oldStorages(src, size, int64(s.At), s.Refs, keys.Items)
	if err != nil {
		return nil, nil, err
	}
	r = &reader{src: src, size: size, visits: most.visits, storages: make(map[string]*storage)}
	r.locate = func(key string) (at, size int64, err error) {
		w, ok := where[key]
		if !ok {
			return 0, 0, bad("it has no storage %.128q", key)
		}
		return w.at, w.size, nil
	}
	return parts[3], r, nil
}

// oldStorages finds the storages behind the pickles. How large an element is the references say.
func oldStorages(src io.ReaderAt, size, at int64, refs []pickles.Ref, keys []any) (map[string]span, error) {
	sizes := make(map[string]uint64)
	for _, ref := range refs {
		class, key, _, err := named(ref)
		if _, refused := errors.AsType[formats.Refused](err); err == nil {
			sizes[key] = elementSize(class)
		} else if refused {
			return nil, bad("%w", err) // where the next one begins cannot be told
		}
	}
	where := make(map[string]span, len(keys))
	for _, k := range keys {
		key, ok := k.(string)
		if _, twice := where[key]; !ok || twice || sizes[key] == 0 {
			return nil, bad("a storage has a %T for a key, or is there twice, or nothing says what it has", k)
		}
		var n [8]byte
		if at > size-8 {
			return nil, bad("storage %.40q at %d, the file ends at %d: it is cut", key, at, size)
		}
		if err := readAt(src, n[:], at); err != nil {
			return nil, err
		}
		elements := binary.LittleEndian.Uint64(n[:])
		if at += 8; elements > math.MaxInt64/16 || elements*sizes[key] > uint64(size-at) {
			return nil, bad("storage %.40q at %d has %d elements of %d bytes, the file ends at %d: it is cut", key, at, elements, sizes[key], size)
		}
		where[key] = span{at, int64(elements * sizes[key])}
		at += where[key].size
	}
	if at != size {
		return nil, bad("%d bytes follow its storages", size-at)
	}
	return where, nil
}
