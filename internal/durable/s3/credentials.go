package s3

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// roleTime bounds the question for the credentials of a role, which is answered by the machine or not at all.
const roleTime = 5 * time.Second

var errCredentials = errors.New("no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile in ~/.aws/credentials, or give the machine a role")

// chain asks one provider after the other, as Amazon's own tools do. Unlike the library's it does not go on as nobody where none has any.
type chain struct {
	providers []credentials.Provider
	used      credentials.Provider                 // nil: none has answered
	from      atomic.Pointer[credentials.Provider] // what answered last: requests that fail ask beside one that retrieves
}

// Where credentials came from, and what somebody must do once they have expired.
const (
	fromEnv  = "renew AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, and restart the daemon or command with them; a file, ~/.aws/credentials or the one that store.credentials names, is read again by itself"
	fromRole = "they came from the role of this machine or container: see to that"
	fromFile = "renew %s, which is read again by itself"
	fromCall = "renew the access key that this store was opened with"
)

// renew is that of a provider.
func renew(p credentials.Provider) string {
	switch p := p.(type) {
	case *credentials.EnvAWS:
		return fromEnv
	case *credentials.FileAWSCredentials:
		return fmt.Sprintf(fromFile, cmp.Or(p.Filename, os.Getenv("AWS_SHARED_CREDENTIALS_FILE"), "~/.aws/credentials"))
	}
	return fromRole
}

// credentialsOf has them asked for, and says what to do once they have expired.
func credentialsOf(s Settings) (*credentials.Credentials, func() string) {
	if s.AccessKey != "" {
		return credentials.NewStaticV4(s.AccessKey, string(s.SecretKey), string(s.SessionToken)), func() string { return fromCall }
	}
	list := []credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}}
	if s.Credentials != "" {
		list = []credentials.Provider{&credentials.FileAWSCredentials{Filename: s.Credentials}}
	} else if os.Getenv("AWS_EC2_METADATA_DISABLED") != "true" {
		list = append(list, &credentials.IAM{})
	}
	c := &chain{providers: list}
	c.from.Store(&list[0])
	return credentials.New(c), func() string { return renew(*c.from.Load()) }
}

// RetrieveWithCredContext asks for credentials.
func (c *chain) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	ctx := cc.Context
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, roleTime)
	defer cancel()
	bounded := *cc
	bounded.Context = ctx
	why := []error{errCredentials}
	for _, p := range c.providers {
		v, err := p.RetrieveWithCredContext(&bounded)
		if err == nil && v.AccessKeyID != "" && v.SecretAccessKey != "" {
			c.used = p
			c.from.Store(&p)
			return v, nil
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			why = append(why, fmt.Errorf("%T: %w", p, err))
		}
	}
	c.used = nil
	return credentials.Value{}, errors.Join(why...)
}

// Retrieve asks for credentials.
func (c *chain) Retrieve() (credentials.Value, error) {
	return c.RetrieveWithCredContext(&credentials.CredContext{})
}

// IsExpired tells whether to ask anew.
func (c *chain) IsExpired() bool { return c.used == nil || c.used.IsExpired() }
