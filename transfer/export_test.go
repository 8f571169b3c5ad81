package transfer

import "github.com/replicad/replicad/replica"

// Double is a store of this package's own tests, for the suite of the contract, which can't be imported here.
type Double struct {
	Store
	Took  func() (bytes []byte, sealed bool)
	InUse func() []string
}

// NewMemStore has a part, and takes another one. What is wrong is refused, and fails no test.
func NewMemStore(has replica.Manifest, b []byte, takes replica.Manifest) Double {
	into := newSink(nil, takes)
	into.twice = true
	s := &memStore{m: has, b: b, mirror: into}
	return Double{s, func() ([]byte, bool) { return into.b, into.sealed }, s.inUse}
}

// NewAnySink has a part, and takes any.
func NewAnySink(has replica.Manifest, b []byte) Double {
	s := &anySink{memStore: memStore{m: has, b: b}}
	return Double{s, func() ([]byte, bool) {
		if s.last == nil {
			return nil, false
		}
		return s.last.b, s.last.sealed
	}, s.inUse}
}
