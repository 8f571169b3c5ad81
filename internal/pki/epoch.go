package pki

import (
	"crypto/x509"
	"fmt"
	"strconv"
	"time"

	"github.com/replicad/replicad/replica"
)

// A certificate's epoch is the serialNumber attribute of its subject, which X.520 has to tell certificates of one name apart.

// nextEpoch is that of a certificate issued now, after one of the given epoch.
func nextEpoch(now time.Time, after replica.CertEpoch) replica.CertEpoch {
	return max(replica.CertEpoch(max(now.Unix(), 1)), after+1)
}

// epochOf reads it: 0 where a release before revocation issued the certificate.
func epochOf(c *x509.Certificate) (replica.CertEpoch, error) {
	text := c.Subject.SerialNumber
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 62)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != text { // one epoch has one spelling
		return 0, fmt.Errorf("certificate %.120q has %.40q for its epoch: want a number", c.Subject.CommonName, text)
	}
	return replica.CertEpoch(n), nil
}
