package replica

// Opened records that Epoch was opened and the step it started at.
type Opened struct {
	Epoch Epoch `json:"epoch" cbor:"1,keyasint"`
	Start Step  `json:"start" cbor:"2,keyasint"`
}

// Lineage lists every opened epoch, in rising order: the job's one history.
type Lineage []Opened

// Valid tells whether g is of this history: its epoch was opened, and no later epoch started below it (protocol section 2).
// Others are never eligible.
func (l Lineage) Valid(g Generation) bool {
	opened := false
	for _, o := range l {
		if o.Epoch == g.Epoch {
			opened = true
		}
		if o.Epoch > g.Epoch && g.Step > o.Start {
			return false
		}
	}
	return opened
}

// Open returns the lineage with (e, start) appended; ok is false if e is not newer than all opened ones.
func (l Lineage) Open(e Epoch, start Step) (Lineage, bool) {
	if n := len(l); n > 0 && l[n-1].Epoch >= e {
		return l, false
	}
	return append(l[:len(l):len(l)], Opened{e, start}), true
}

// Last is the newest opened epoch; zero if none was.
func (l Lineage) Last() Opened {
	if len(l) == 0 {
		return Opened{}
	}
	return l[len(l)-1]
}
