package s3

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// roleTime bounds the question for the credentials of a role, which is answered by the machine or not at all.
const roleTime = 5 * time.Second

var errCredentials = errors.New("no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile in ~/.aws/credentials, or give the machine a role")

// chain asks one provider after the other, as Amazon's own tools do. Unlike the library's it does not go on as nobody where none has any.
type chain struct {
	providers []credentials.Provider
	used      credentials.Provider // nil: none has answered
}

func credentialsOf(s Settings) *credentials.Credentials {
	if s.AccessKey != "" {
		return credentials.NewStaticV4(s.AccessKey, string(s.SecretKey), string(s.SessionToken))
	}
	if s.Credentials != "" {
		return credentials.New(&chain{providers: []credentials.Provider{&credentials.FileAWSCredentials{Filename: s.Credentials}}})
	}
	list := []credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}}
	if os.Getenv("AWS_EC2_METADATA_DISABLED") != "true" {
		list = append(list, &credentials.IAM{})
	}
	return credentials.New(&chain{providers: list})
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
