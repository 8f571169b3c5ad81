package control

import (
	"maps"
	"slices"

	"github.com/replicad/replicad/replica"
)

// Offers offers vacant ranks of a job to a node that has processes to give. A large job's are some ranges, not a message for each rank.
type Offers struct {
	Job    replica.JobID `cbor:"1,keyasint"`
	Ranges []OfferRange  `cbor:"2,keyasint"`
}

// OfferRange is ranks in a row of which the new incarnations all follow Expect.
type OfferRange struct {
	First  replica.Rank        `cbor:"1,keyasint"`
	Count  uint32              `cbor:"2,keyasint"`
	Expect replica.Incarnation `cbor:"3,keyasint"`
}

// Add offers one more rank.
func (o *Offers) Add(r replica.Rank, expect replica.Incarnation) {
	if n := len(o.Ranges); n > 0 {
		if last := &o.Ranges[n-1]; last.Expect == expect && uint64(last.First)+uint64(last.Count) == uint64(r) {
			last.Count++
			return
		}
	}
	o.Ranges = append(o.Ranges, OfferRange{r, 1, expect})
}

// In are the ranks that are offered of a job of so many, whatever the ranges say: of a rank that several name, the last one counts.
func (o Offers) In(world int) map[replica.Rank]replica.Incarnation {
	ranks := map[replica.Rank]replica.Incarnation{}
	left := 2 * world // ranges that lie over each other would be no end of work
	for _, g := range o.Ranges {
		for r := uint64(g.First); r < min(uint64(g.First)+uint64(g.Count), uint64(world)) && left > 0; r++ {
			ranks[replica.Rank(r)] = g.Expect
			left--
		}
	}
	return ranks
}

// Len counts the ranks.
func (o Offers) Len() (n int) {
	for _, g := range o.Ranges {
		n += int(g.Count)
	}
	return n
}

// after is what a node is to hear that has not heard of older offers yet: those, and these where both name a rank.
func (o Offers) after(older Offers) Offers {
	ranks := older.In(replica.MaxRanks)
	maps.Copy(ranks, o.In(replica.MaxRanks))
	all := Offers{Job: o.Job}
	for _, r := range slices.Sorted(maps.Keys(ranks)) {
		all.Add(r, ranks[r])
	}
	return all
}
