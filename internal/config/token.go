package config

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
)

// tokenBytes of a token's digest are shown, two digits each: the rank protocol has room for 63.
const tokenBytes = 20

// JobToken is what processes of a job must show: a digest of its name under JobSecret, so that no daemon has to keep tokens, every node
// knows them, and one job's says nothing of another's. Empty where there is no secret.
func (c *Config) JobToken(job string) string {
	if c.JobSecret == "" {
		return ""
	}
	mac := hmac.New(sha256.New, []byte(c.JobSecret))
	mac.Write([]byte("replicad job token 1\x00" + job)) // never fails
	return hex.EncodeToString(mac.Sum(nil)[:tokenBytes])
}
