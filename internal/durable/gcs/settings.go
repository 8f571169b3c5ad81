package gcs

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/remote"
	"github.com/replicad/replicad/internal/durable/store"
)

// Settings are where a store is and how it is spoken to. The zero value is Google's server with the default credentials.
type Settings struct {
	Bucket string
	Prefix string // of all keys, without a slash at its end; empty: the whole bucket is the store's

	// Endpoint is http://HOST:PORT or https://HOST; empty: Google's. One by http gets no credentials: a token would lie open on the way, and
	// servers for tests want none.
	Endpoint string
	// Credentials is a file: a service account's key, or what `gcloud` and a workload's identity write. Empty: the default credentials, which
	// are GOOGLE_APPLICATION_CREDENTIALS, those of gcloud, or the machine's.
	Credentials string
	Key         string // of KMS, which the server encrypts objects with: projects/P/locations/L/keyRings/R/cryptoKeys/K. Empty: as the bucket says
	PartBytes   int64  // the least size of an upload's parts; 16 MiB

	Stall    time.Duration       // how long nothing of a request may move; 30 s
	Patience time.Duration       // how long a call is repeated; 20 s
	Notice   func(remote.Notice) // told of attempts that fail and will be repeated, and of requests that do not move. It must not block
}

const (
	theirs      = "https://storage.googleapis.com"
	defaultPart = 16 << 20
	leastPart   = 64 << 10
	mostPart    = 5 << 30
	mostPrefix  = 400 // bytes: names have at most 1,024, and that of a part is longer than its key
)

// bucketName leaves out names with dots, which need a domain of one's own; those work too.
var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]$`)

// keyName is how Google names a key.
var keyName = regexp.MustCompile(`^projects/[\w.:-]+/locations/[\w-]+/keyRings/[\w-]+/cryptoKeys/[\w-]+$`)

// Validate reports all faults at once.
func (s Settings) Validate() error {
	var all []error
	bad := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if !bucketName.MatchString(s.Bucket) {
		bad("bucket %.80q: want 3 to 222 lower case letters, digits, and - _ . between them", s.Bucket)
	}
	if s.Prefix != "" {
		if err := store.CheckKey(s.Prefix); err != nil {
			bad("prefix: %w", err)
		}
		if len(s.Prefix) > mostPrefix {
			bad("prefix of %d bytes: want at most %d", len(s.Prefix), mostPrefix)
		}
	}
	if s.Endpoint != "" && !remote.IsEndpoint(s.Endpoint, false) {
		bad("endpoint: want http://HOST:PORT or https://HOST, nothing else in it")
	}
	if s.Key != "" && !keyName.MatchString(s.Key) {
		bad("key %.80q: want projects/PROJECT/locations/LOCATION/keyRings/RING/cryptoKeys/KEY", s.Key)
	}
	if s.PartBytes != 0 && (s.PartBytes < leastPart || s.PartBytes > mostPart) {
		bad("part of %d bytes: want %d to %d", s.PartBytes, leastPart, int64(mostPart))
	}
	if s.Stall < 0 || s.Patience < 0 {
		bad("stall %v, patience %v: want positive times", s.Stall, s.Patience)
	}
	return errors.Join(all...)
}

// open tells whether requests go without credentials.
func (s Settings) open() bool { return strings.HasPrefix(s.Endpoint, "http://") }
