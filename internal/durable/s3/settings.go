package s3

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/s3utils"

	"github.com/replicad/replicad/internal/durable/remote"
	"github.com/replicad/replicad/internal/durable/store"
)

// Settings are where a store is and how it is spoken to. The zero value is Amazon's S3 with the credentials of the environment.
type Settings struct {
	Bucket string
	Prefix string // of all keys, without a slash at its end; empty: the whole bucket is the store's

	Endpoint string // http://HOST:PORT or https://HOST; empty: Amazon's, of the region
	Region   string // a wrong one is refused by the server; empty: us-east-1
	// VirtualHost puts the bucket into the name of the host, as Amazon wants it: always there. Elsewhere the path has it.
	VirtualHost bool
	// Checksum is "sha256" (x-amz-checksum-sha256), "md5" (Content-MD5) or "none" for servers that refuse the former two. The signature
	// covers a SHA-256 of the body in any case.
	Checksum string

	// PartBytes is the least size of an upload's parts; 16 MiB. It grows with the object, so that there are at most 10,000. At least 5 MiB.
	PartBytes int64

	AccessKey    string // empty: the environment, the files of ~/.aws, or the machine's or container's role
	SecretKey    remote.Secret
	SessionToken remote.Secret
	Credentials  string // a file as ~/.aws/credentials, where AccessKey is empty; empty: as above

	// Key of KMS that the server encrypts objects with: an id, an ARN or an alias. Empty: as the bucket says.
	Key string

	// Stall is how long nothing of a request may move; 30 s. Shorter than the server's own pauses, it breaks good requests.
	Stall time.Duration
	// Patience is how long a call is repeated; 20 s. The last attempt may take Stall longer.
	Patience time.Duration
	// Notice is told, at once, of each attempt that failed and will be repeated, and of requests that have not moved for a third of Stall.
	// It must not block.
	Notice func(remote.Notice)
}

const (
	mostName      = 1024 // bytes of an object's name in S3
	defaultRegion = "us-east-1"
)

// keyName is what ids, ARNs and aliases of keys are made of.
var keyName = regexp.MustCompile(`^[\w:/.-]{0,512}$`)

// withDefaults fills in what was left out.
func (s Settings) withDefaults() Settings {
	if s.Region == "" {
		s.Region = defaultRegion
	}
	if s.Checksum == "" {
		s.Checksum = "sha256"
	}
	if s.PartBytes == 0 {
		s.PartBytes = defaultPart
	}
	return s
}

// Validate reports all faults at once.
func (s Settings) Validate() error {
	var all []error
	bad := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if err := s3utils.CheckValidBucketNameStrict(s.Bucket); err != nil {
		bad("bucket %q: %w", s.Bucket, err)
	}
	if s.Prefix != "" {
		if err := store.CheckKey(s.Prefix); err != nil {
			bad("prefix: %w", err)
		}
		if most := mostName - 1 - store.MaxKey; len(s.Prefix) > most {
			bad("prefix of %d bytes: want at most %d", len(s.Prefix), most)
		}
	}
	if s.Endpoint != "" && !remote.IsEndpoint(s.Endpoint, false) {
		bad("endpoint: want http://HOST:PORT or https://HOST, nothing else in it") // it may hold a password: it is not shown
	}
	if strings.ContainsFunc(s.Region, func(r rune) bool { return !('a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '-') }) {
		bad("region %q: want lower case letters, digits and -", s.Region)
	}
	switch s.Checksum {
	case "", "sha256", "md5", "none":
	default:
		bad("checksum %q: want sha256, md5 or none", s.Checksum)
	}
	if !keyName.MatchString(s.Key) {
		bad("key %.80q: want the id, ARN or alias of a key of KMS", s.Key)
	}
	if (s.AccessKey == "") != (s.SecretKey == "") {
		bad("access key and secret key: one of them alone is given")
	}
	if s.PartBytes != 0 && (s.PartBytes < leastPart || s.PartBytes > mostPart) {
		bad("part of %d bytes: want %d to %d", s.PartBytes, leastPart, int64(mostPart))
	}
	if s.Stall < 0 || s.Patience < 0 {
		bad("stall %v, patience %v: want positive times", s.Stall, s.Patience)
	}
	return errors.Join(all...)
}
