package node

import (
	"context"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/pki"
)

const (
	certificateLook   = time.Minute    // between two looks at the files
	certificateEarly  = 24 * time.Hour // between two lines that the certificate ends within thirty days
	certificateUrgent = time.Hour      // and within three
)

// certificate follows the node's own: one that was renewed on disk is presented from then on, and one that ends soon is named. Owned by its
// goroutine.
type certificate struct {
	id   *pki.Identity
	log  *journal
	said time.Time // when the end was last named
	bad  string    // what was last wrong with the files
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
	changed, err := c.id.Reload(now)
	switch {
	case err != nil && err.Error() != c.bad: // once; the two files of a renewal may come one after the other
		if c.bad = err.Error(); !c.id.NotAfter().Before(now) {
			c.log.failed("certificate", "the one that was read last is used further", c.bad)
		}
	case err == nil:
		c.bad = ""
	}
	if changed {
		c.said = time.Time{}
		c.log.renewed(c.id.NotAfter())
	}
	text, urgent := pki.Expires(c.id.NotAfter(), now)
	every := certificateEarly
	if urgent {
		every = certificateUrgent
	}
	if text != "" && (c.said.IsZero() || now.Sub(c.said) >= every) {
		c.said = now
		c.log.expires(text, c.id.NotAfter())
	}
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
