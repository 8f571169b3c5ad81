package format

import (
	"fmt"
	"path"
	"slices"

	"github.com/replicad/replicad/replica"
)

// Spooled says what a node's spool has of a durable write, beside its parts there: enough to finish the write when all daemons have died.
type Spooled struct {
	Job        string             `json:"job"`
	ID         replica.JobID      `json:"id"`
	Owner      uint32             `json:"owner"`
	Began      uint64             `json:"began"`
	Cluster    replica.ClusterID  `json:"cluster"`
	Node       replica.NodeName   `json:"node"`
	Generation replica.Generation `json:"generation"`
	Number     uint64             `json:"number"` // of the write
	Epoch      replica.Epoch      `json:"epoch"`  // the newest that the job had opened
	Object     string             `json:"object"`
	Parts      []replica.Part     `json:"parts"`  // in the object
	Roots      []Rooted           `json:"roots"`  // of the generation, all of them
	Frozen     []Rooted           `json:"frozen"` // that its parts bind
	Said       Commit             `json:"said"`   // what COMMIT says beside its files
	// Loose: the node did not know the roots of the generation, and Roots are those of what it held.
	Loose bool `json:"loose,omitempty"`
	// Candidate: it had not heard that the generation is committed either.
	Candidate bool         `json:"candidate,omitempty"`
	Pieces    []SpoolPiece `json:"pieces,omitempty"`
}

// Rooted is a part and its root.
type Rooted struct {
	Part replica.Part   `json:"part"`
	Root replica.Digest `json:"root"`
}

// SpoolPiece is one part in the spool: its file, which has the part's bytes alone, and the header that an object of this part would have.
type SpoolPiece struct {
	File string `json:"file"`
	Head []byte `json:"head"`
	Size uint64 `json:"size"` // of that object
}

// Seal writes the document.
func (s *Spooled) Seal() ([]byte, error) { return Seal("spooled", s) }

// ParseSpooled reads what a spool has of a write.
func ParseSpooled(b []byte) (*Spooled, error) {
	var s Spooled
	if err := unseal("spooled", b, &s); err != nil {
		return nil, err
	}
	if err := s.check(); err != nil {
		return nil, corrupt("spooled: %w", err)
	}
	return &s, nil
}

func (s *Spooled) check() error {
	if err := replica.CheckJobName(s.Job); err != nil {
		return err
	}
	n := Name{Kind: ShardKind, Generation: s.Generation, Write: s.Number, Shard: s.Object}
	switch {
	case ParseName(n.String()) != n || s.Epoch > replica.MaxEpoch:
		return fmt.Errorf("it is %q of generation %v, write %d, epoch %d", s.Object, s.Generation, s.Number, s.Epoch)
	case len(s.Parts) == 0 || len(s.Parts) > MaxParts || len(s.Roots) > maxRows:
		return fmt.Errorf("%d parts of %d", len(s.Parts), len(s.Roots))
	case s.Pieces != nil && len(s.Pieces) != len(s.Parts):
		return fmt.Errorf("%d pieces of %d parts", len(s.Pieces), len(s.Parts))
	}
	for _, p := range s.Parts {
		if !slices.ContainsFunc(s.Roots, func(r Rooted) bool { return r.Part == p }) {
			return fmt.Errorf("%v is not of the generation", p)
		}
	}
	for _, p := range s.Pieces {
		if p.File != "" && (path.Base(p.File) != p.File || p.File == "." || p.File == ".." || p.File == "/") {
			return fmt.Errorf("a file %.80q", p.File)
		}
	}
	return s.Said.Layout.Check()
}

// Root is that of a part of the generation.
func (s *Spooled) Root(p replica.Part) (replica.Digest, bool) {
	i := slices.IndexFunc(s.Roots, func(r Rooted) bool { return r.Part == p })
	if i < 0 {
		return replica.Digest{}, false
	}
	return s.Roots[i].Root, true
}

// Packed is what a piece holds: the manifest, which hashes to the part's root, and the regions of its rank.
func (s *Spooled) Packed(i int) (*Packed, error) {
	o, err := ParseObject(s.Pieces[i].Head, s.Pieces[i].Size)
	if err != nil {
		return nil, err
	}
	want, _ := s.Root(s.Parts[i])
	p := &o.Parts[0]
	if len(o.Parts) != 1 || p.Manifest.Part != s.Parts[i] || p.Manifest.Root != want || p.Manifest.Job != s.ID || p.Manifest.Generation != s.Generation && s.Parts[i].Kind != replica.FrozenPart {
		return nil, corrupt("spooled: %s holds %v of generation %v with root %v, want %v of %v with %v", s.Pieces[i].File, p.Manifest.Part, p.Manifest.Generation, p.Manifest.Root, s.Parts[i], s.Generation, want)
	}
	return p, nil
}
