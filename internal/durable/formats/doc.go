// Package formats is what the formats of other programs have in common: tensors that are read in place, wholes made of pieces, and folders
// whose files nobody vouches for. Each format has a room of its own below; none of them knows a store or a catalog. What becomes of a
// generation, convert says.
//
// At most a few blocks of one tensor are in memory, whatever its size.
package formats
