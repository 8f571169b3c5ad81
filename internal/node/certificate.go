package node

import (
	"context"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/membership"
)

const (
	certificateLook   = 5 * time.Second // between two looks at the files
	certificateEarly  = 24 * time.Hour  // between two lines that the certificate ends within thirty days
	certificateUrgent = time.Hour       // and within three
)

// certificate follows the node's own credentials: a certificate that was renewed on disk is presented from then on, one that ends soon is
// named, and gossip keys that were changed are used. Owned by its goroutine.
type certificate struct {
	id     *pki.Identity
	log    *journal.Journal
	gossip gossip
	said   time.Time // when the end was last named

	badCertificate, badKeys wrong
}

// gossip is what keys are changed of.
type gossip interface {
	SetKeys([]membership.Key) error
	Members() []membership.Member
}

// wrong counts the looks in a row that found files wrong. That is said once, when it has lasted from one look to the next: the files of a
// renewal come one after the other.
type wrong struct{ looks int }

// says tells whether to say so now.
func (w *wrong) says(err error) bool {
	if err == nil {
		w.looks = 0
		return false
	}
	w.looks++
	return w.looks == 2
}

func (c *certificate) run(ctx context.Context) {
	ticker := time.NewTicker(certificateLook)
	defer ticker.Stop()
	for c.look(time.Now()); ; c.look(time.Now()) {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (c *certificate) look(now time.Time) {
	c.lookAtKeys()
	changed, err := c.id.Reload(now)
	if c.badCertificate.says(err) && !c.id.NotAfter().Before(now) {
		c.log.Failed("certificate", "the one that was read last is used further", err.Error())
	}
	if changed {
		c.said = time.Time{}
		c.log.Renewed(c.id.NotAfter())
	}
	text, urgent := pki.Expires(c.id.NotAfter(), now)
	every := certificateEarly
	if urgent {
		every = certificateUrgent
	}
	if text != "" && (c.said.IsZero() || now.Sub(c.said) >= every) {
		c.said = now
		c.log.Expires(text, c.id.NotAfter())
	}
}

// lookAtKeys uses the gossip keys that are in the file now.
func (c *certificate) lookAtKeys() {
	changed, err := c.id.ReloadGossip()
	if c.badKeys.says(err) {
		c.log.Failed("gossip keys", "those that were read last are used further", err.Error())
	}
	if !changed {
		return
	}
	keys := c.id.GossipKeys()
	if err := c.gossip.SetKeys(namedKeys(keys)); err != nil {
		c.log.Failed("gossip keys", "those that were read last are used further", err.Error())
		return
	}
	c.log.GossipKeys(pki.Fingerprints(keys), gossipKeyStatus(keys, c.id.Node, c.gossip.Members())[0].Missing)
}

// CertificateEnds says that the certificate of a configuration ends soon; empty if it does not, or can't be read, which Check says.
func CertificateEnds(c *config.Config) string {
	id, err := Identity(c)
	if err != nil {
		return ""
	}
	text, _ := pki.Expires(id.NotAfter(), time.Now())
	return text
}
