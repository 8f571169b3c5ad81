// Package rng holds the bytes of random number generators' states: what a rank keeps of python's, numpy's, torch's and Megatron's
// generators at each step. Parse gives typed states, Append the same bytes back; whatever no generator can be in is refused with the
// generator's name. The python side is python/src/replicad/_core/rngcodec.py; testdata holds both to the same bytes and refusals.
//
// Layout (little-endian): "RPRNG001", u32 number of records; each record is u8 place, u8 layout, u16 length of the name, u32 length of
// the payload, the name (UTF-8), the payload. Payloads are described beside the types below.
//
// Invariant: a state has one encoding. Records ascend by place and name, python's own is the first, CUDA devices are named "0", "1", ...
// without a gap, a seed sequence has the name of an added generator of numpy's, fields that mean nothing are zero, and nothing follows the last record; so Parse then Append is the identity.
//
// It is pure: no I/O, clock or goroutine, it draws no numbers, and it imports the standard library alone.
package rng
