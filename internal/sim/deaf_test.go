package sim

import (
	"slices"

	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// deaf is what a node serves that does not take some parts: it says "not yet" whenever it is asked.
type deaf struct {
	transfer.Store
	to func(transfer.Key) bool
}

func (d deaf) Accept(peer replica.NodeName, k transfer.Key, m replica.Manifest) (transfer.Sink, func(error) error, error) {
	if d.to(k) {
		return nil, nil, transfer.ErrNotYet
	}
	return d.Store.Accept(peer, k, m)
}

// deafened is what a machine's daemon serves: nodes may be deaf to some parts.
func (w *world) deafened(m *machine, parts transfer.Store) transfer.Store {
	return deaf{parts, func(k transfer.Key) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.Contains(w.deaf[k.Part], m.name)
	}}
}
