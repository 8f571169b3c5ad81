package pki

import (
	"crypto/x509"
	"fmt"
	"strconv"
	"time"

	"github.com/replicad/replicad/replica"
)

// A certificate's epoch is the serialNumber attribute of its subject, which X.520 has to tell certificates of one name apart.

// epochAhead is how far an epoch may lie past the time of issue. A revocation reaches what lies within, so it reaches each certificate that
// is good: NotBefore, which the CA signed, has passed by then.
const epochAhead = 24 * time.Hour

// nextEpoch is that of a certificate issued now, after one of the given epoch.
func nextEpoch(now time.Time, after replica.CertEpoch) (replica.CertEpoch, error) {
	issued := replica.CertEpoch(max(now.Unix(), 1))
	if last := issued + replica.CertEpoch(epochAhead/time.Second); after >= last {
		return 0, fmt.Errorf("a certificate after epoch %d (%s): want one before %d, a day from now by the clock here: correct --after, or the clock; if a clock that was ahead made the files that are to be replaced, move them away and use `replicad pki add`", after, EpochTime(after).UTC().Format(time.RFC3339), last)
	}
	return max(issued, after+1), nil
}

// epochOf reads it: 0 where a release before revocation issued the certificate. One that no revocation would reach is an error.
func epochOf(c *x509.Certificate) (replica.CertEpoch, error) {
	text := c.Subject.SerialNumber
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 62)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != text { // one epoch has one spelling
		return 0, fmt.Errorf("certificate %.72q has %.40q for its epoch: want a number: `replicad pki renew` or `pki operator` makes another", c.Subject.CommonName, text)
	}
	if last := c.NotBefore.Add(skew + epochAhead).Unix(); last < 0 || n > uint64(last) {
		return 0, fmt.Errorf("certificate %.72q has epoch %d, more than a day after its issue, where no revocation reaches it: `replicad pki renew` or `pki operator` makes another", c.Subject.CommonName, n)
	}
	return replica.CertEpoch(n), nil
}
