package find

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// Holding is a claim as it lies in the store.
type Holding struct {
	Epoch replica.Epoch
	Key   string
	Said  *format.Claim // nil: it cannot be read
	Err   error
	gone  bool // a fleet has withdrawn it since it was listed
}

// Claims reads all claims of a run, by epoch. They do not change: one that was read is remembered.
func (c *Finder) Claims(ctx context.Context, r Run) ([]Holding, error) {
	var infos []store.Info
	err := c.objects.List(ctx, r.Under("epochs")+"/", "", func(info store.Info) error {
		if n := format.ParseName(strings.TrimPrefix(info.Key, r.Prefix())); n.Kind == format.ClaimKind {
			infos = append(infos, info)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	list := make([]Holding, len(infos))
	err = c.objects.Each(ctx, len(infos), func(ctx context.Context, i int) (err error) {
		list[i], err = c.holding(ctx, r, infos[i])
		return err
	})
	list = slices.DeleteFunc(list, func(h Holding) bool { return h.gone })
	slices.SortFunc(list, func(a, b Holding) int { return cmp.Compare(a.Epoch, b.Epoch) })
	return list, err
}

func (c *Finder) holding(ctx context.Context, r Run, info store.Info) (Holding, error) {
	n := format.ParseName(strings.TrimPrefix(info.Key, r.Prefix()))
	h := Holding{Epoch: n.Epoch, Key: info.Key}
	c.mu.Lock()
	h.Said = c.said[info]
	c.mu.Unlock()
	if h.Said != nil {
		return h, nil
	}
	claim, err := c.claim(ctx, r, n)
	if err != nil {
		h.Err, h.gone = fmt.Errorf("%s: %w", info.Key, err), n.Fleet != "" && errors.Is(err, store.ErrAbsent)
		if damage.CantTell(err) {
			return h, h.Err
		}
		return h, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said[info] = claim
	h.Said = claim
	return h, nil
}

func (c *Finder) claimNames(ctx context.Context, p format.Place) (list []format.Name, err error) {
	err = c.objects.List(ctx, p.Under("epochs")+"/", "", func(info store.Info) error {
		if n := format.ParseName(strings.TrimPrefix(info.Key, p.Prefix())); n.Kind == format.ClaimKind {
			list = append(list, n)
		}
		return nil
	})
	return list, err
}

func (c *Finder) claim(ctx context.Context, r Run, n format.Name) (*format.Claim, error) {
	b, _, err := c.objects.Get(ctx, r.Key(n))
	if err != nil {
		return nil, err
	}
	return format.ParseClaim(b, r.Place, r.ID, n.Epoch)
}

// Unread says that nobody knows whose a run is, and what brings it on. It is not ErrFenced: no other fleet is known of.
func (h *Holding) Unread() error {
	return fmt.Errorf("nobody knows which fleet has claimed epoch %d, since its claim cannot be read: %w. Bring that object back; or, if "+
		"no other fleet trains this run, delete it: the next durable write claims the epoch anew. A job that is started with --resume "+
		"needs neither", h.Epoch, h.Err)
}
