package azure

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/remote"
	"github.com/replicad/replicad/internal/durable/store"
)

// Settings are where a store is and how it is spoken to.
type Settings struct {
	Container string
	Prefix    string // of all keys, without a slash at its end; empty: the whole container is the store's

	Account  string // empty: what Endpoint names
	Endpoint string // https://ACCOUNT.blob.core.windows.net, or http://HOST:PORT/ACCOUNT; empty: Azure's, of the account
	// Key is the account's, SAS a shared access signature: one of them. Neither: an identity of Entra, which the environment or the machine has.
	Key       remote.Secret
	SAS       remote.Secret
	from      string // where Key or SAS was found; empty: whoever opens the store has it
	Scope     string // of encryption, which the server encrypts objects with; empty: as the container says
	PartBytes int64  // the least size of an upload's blocks; 16 MiB

	Stall    time.Duration       // how long nothing of a request may move; 30 s
	Patience time.Duration       // how long a call is repeated; 20 s
	Notice   func(remote.Notice) // told of attempts that fail and will be repeated, and of requests that do not move. It must not block

	env func(string) string // of the identity; nil: os.Getenv
}

const (
	defaultPart = 16 << 20
	leastPart   = 64 << 10
	mostPart    = 4000 << 20
	mostUpload  = 150 << 40 // bytes of an object: less than Azure allows
	mostPrefix  = 500       // bytes: names have at most 1,024
	suffix      = "core.windows.net"
)

// Told fills in what a file with a connection string and the environment say, as the az command reads it.
func (s Settings) Told(file string, env func(string) string) (Settings, error) {
	s.env = env
	text := env("AZURE_STORAGE_CONNECTION_STRING")
	if file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return s, fmt.Errorf("credentials: %w", err)
		}
		text = string(b)
	}
	said := map[string]string{}
	for part := range strings.SplitSeq(strings.TrimSpace(text), ";") {
		if k, v, ok := strings.Cut(strings.TrimSpace(part), "="); ok {
			said[strings.ToLower(k)] = v
		}
	}
	if file != "" && len(said) == 0 {
		return s, fmt.Errorf("credentials %s: want a connection string, as AccountName=NAME;AccountKey=KEY", file)
	}
	s.Account = cmp.Or(s.Account, said["accountname"], env("AZURE_STORAGE_ACCOUNT"))
	if s.Key == "" && s.SAS == "" {
		s.Key, s.SAS, s.from = remote.Secret(said["accountkey"]), remote.Secret(said["sharedaccesssignature"]), cmp.Or(file, "AZURE_STORAGE_CONNECTION_STRING")
	}
	if s.Key == "" && s.SAS == "" && file == "" {
		if s.Key, s.from = remote.Secret(env("AZURE_STORAGE_KEY")), "AZURE_STORAGE_KEY"; s.Key == "" {
			s.SAS, s.from = remote.Secret(env("AZURE_STORAGE_SAS_TOKEN")), "AZURE_STORAGE_SAS_TOKEN"
		}
	}
	s.SAS = remote.Secret(strings.TrimPrefix(string(s.SAS), "?"))
	s.Endpoint = strings.TrimSuffix(cmp.Or(s.Endpoint, said["blobendpoint"]), "/")
	if s.Endpoint == "" && s.Account != "" {
		s.Endpoint = "https://" + s.Account + ".blob." + cmp.Or(said["endpointsuffix"], suffix)
	}
	if s.Account == "" {
		s.Account = accountOf(s.Endpoint)
	}
	return s, nil
}

// accountOf is the account that an endpoint names: in its host, or in its path where the host is none of an account's.
func accountOf(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil {
		return ""
	}
	first, rest, _ := strings.Cut(u.Hostname(), ".")
	if rest == "" || net.ParseIP(u.Hostname()) != nil {
		first, _, _ = strings.Cut(strings.Trim(u.Path, "/"), "/")
	}
	return first
}

var (
	containerName = regexp.MustCompile(`^[a-z0-9](-?[a-z0-9]){2,62}$`)
	scopeName     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{1,61}[A-Za-z0-9]$`)
	accountName   = regexp.MustCompile(`^[A-Za-z0-9]{3,24}$`)
)

// Validate reports all faults at once.
func (s Settings) Validate() error {
	var all []error
	bad := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if !containerName.MatchString(s.Container) {
		bad("container %.80q: want 3 to 63 lower case letters, digits, and single - between them", s.Container)
	}
	if s.Prefix != "" {
		if err := store.CheckKey(s.Prefix); err != nil {
			bad("prefix: %w", err)
		}
		if len(s.Prefix) > mostPrefix {
			bad("prefix of %d bytes: want at most %d", len(s.Prefix), mostPrefix)
		}
	}
	switch {
	case s.Endpoint == "":
		bad("account: set AZURE_STORAGE_ACCOUNT, or the endpoint to https://ACCOUNT.blob.core.windows.net")
	case !remote.IsEndpoint(s.Endpoint, true):
		bad("endpoint: want https://ACCOUNT.blob.core.windows.net or http://HOST:PORT/ACCOUNT, nothing else in it")
	case !accountName.MatchString(s.Account):
		bad("account %.80q: want 3 to 24 letters and digits: set AZURE_STORAGE_ACCOUNT", s.Account)
	case strings.HasPrefix(s.Endpoint, "http://") && s.Key == "" && s.SAS == "":
		bad("endpoint: want https, since a token would lie open on the way; by http a key or a shared access signature may be used")
	}
	if s.Key != "" && s.SAS != "" {
		bad("a key and a shared access signature: want one of them")
	}
	if _, err := base64.StdEncoding.DecodeString(string(s.Key)); err != nil {
		bad("account key: want it in base64, as Azure shows it")
	}
	if _, err := url.ParseQuery(string(s.SAS)); err != nil {
		bad("shared access signature: want sv=...&sig=..., as Azure shows it")
	}
	if s.Scope != "" && !scopeName.MatchString(s.Scope) {
		bad("encryption scope %.80q: want 3 to 63 letters, digits and - _ .", s.Scope)
	}
	if s.PartBytes != 0 && (s.PartBytes < leastPart || s.PartBytes > mostPart) {
		bad("part of %d bytes: want %d to %d", s.PartBytes, leastPart, int64(mostPart))
	}
	if s.Stall < 0 || s.Patience < 0 {
		bad("stall %v, patience %v: want positive times", s.Stall, s.Patience)
	}
	return errors.Join(all...)
}
