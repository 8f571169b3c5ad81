package tier

import (
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/replica"
)

// Spooled says what a node's spool has of a durable write: enough to finish it when all daemons have died.
type Spooled = format.Spooled

// Rooted is a part and its root.
type Rooted = format.Rooted

// ParseSpooled reads what Spooled.Seal wrote.
func ParseSpooled(b []byte) (*Spooled, error) { return format.ParseSpooled(b) }

// AddPiece notes the file that the next part of a write lies in; none where the part has no bytes.
func AddPiece(s *Spooled, file string, m replica.Manifest, regions []replica.Region) error {
	o, head, err := format.NewObject([]format.Source{{Manifest: m, Regions: regions}})
	if err != nil {
		return err
	}
	s.Pieces = append(s.Pieces, format.SpoolPiece{File: file, Head: head, Size: o.Size()})
	return nil
}

// StoredOf is a file that an index lists.
func StoredOf(f format.File) replica.Stored { return stored(format.Written{File: f}) }
