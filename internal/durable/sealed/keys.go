package sealed

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"filippo.io/age"
)

// IdentityVariable is the environment variable that names a file with keys of age. Ranks inherit it, and read with those what is encrypted.
const IdentityVariable = "REPLICAD_IDENTITY"

// MaxRecipients bounds to how many an object is encrypted: each adds to its envelope, by up to 1.7 KB.
const MaxRecipients = 32

var (
	// ErrLocked: no key that was given opens it.
	ErrLocked = errors.New("no key that was given opens it")
	// ErrDamaged: bytes that were not encrypted so, or lie elsewhere than where they were written.
	ErrDamaged = errors.New("it does not decrypt")
)

// Identity is a key.
type Identity = age.Identity

// Keys are to whom objects are encrypted, and what opens them. A nil one does neither.
type Keys struct {
	to         []age.Recipient
	names      []string
	identities []Identity
}

// New takes recipients as age prints them (age1..., age1pq1...), and identities that ParseIdentities has read. Without recipients nothing is
// encrypted, without identities nothing can be read that is.
func New(recipients []string, identities []Identity) (*Keys, error) {
	k := &Keys{identities: identities}
	if len(recipients) > MaxRecipients {
		return nil, fmt.Errorf("%d recipients, at most %d", len(recipients), MaxRecipients)
	}
	for _, text := range recipients {
		to, err := recipient(text)
		if err != nil {
			return nil, err
		}
		if slices.Contains(k.names, text) {
			return nil, fmt.Errorf("recipient %s is there twice", text)
		}
		k.to, k.names = append(k.to, to), append(k.names, text)
	}
	if k.Seals() {
		if _, err := age.Encrypt(io.Discard, k.to...); err != nil { // recipients of two kinds may not stand side by side
			return nil, err
		}
	}
	return k, nil
}

// CheckRecipient tells whether a text is one of age's own recipients.
func CheckRecipient(text string) error {
	_, err := recipient(text)
	return err
}

// maxShown bounds what is shown of a text that is no recipient; it may be a key that was put there by mistake, which is not shown at all.
const maxShown = 80

var secretKey = regexp.MustCompile(`(?i)AGE-SECRET-KEY-(PQ-)?1[0-9a-z]{8}`)

// HoldsKey tells whether there is a secret key in a text, which then comes into no error: it stands where a recipient, or the path of a key's file, is
// wanted; with the comments of its file, with quotes or with a word before it.
func HoldsKey(text string) bool { return secretKey.MatchString(text) }

func recipient(text string) (age.Recipient, error) {
	const want = "want age1... or age1pq1..., as age-keygen prints them"
	if HoldsKey(text) {
		return nil, errors.New("a recipient is a secret key (not shown): " + want + "; the key belongs into a file")
	}
	list, err := age.ParseRecipients(strings.NewReader(text))
	if err != nil || len(list) != 1 {
		return nil, fmt.Errorf("recipient %.*q: %s; ssh keys and plugins are not taken", maxShown, text, want)
	}
	return list[0], nil
}

// ParseIdentities reads keys as age-keygen writes them, one a line.
func ParseIdentities(b []byte) ([]Identity, error) {
	list, err := age.ParseIdentities(bytes.NewReader(b))
	if err != nil { // age shows nothing of a key
		return nil, fmt.Errorf("want keys as age-keygen writes them (AGE-SECRET-KEY-1...), one a line: %w", err)
	}
	return list, nil
}

// Seals tells whether objects are encrypted.
func (k *Keys) Seals() bool { return k != nil && len(k.to) > 0 }

// Opens tells whether there is a key.
func (k *Keys) Opens() bool { return k != nil && len(k.identities) > 0 }

// Recipients lists to whom objects are encrypted.
func (k *Keys) Recipients() []string {
	if k == nil {
		return nil
	}
	return slices.Clone(k.names)
}

// Tag stands for the recipients in names, in whatever order they were given: 8 hexadecimal digits.
func (k *Keys) Tag() string {
	names := k.Recipients()
	slices.Sort(names)
	sum := sha256.Sum256([]byte(strings.Join(names, "\n")))
	return hex.EncodeToString(sum[:4])
}

// Check tells whether what is encrypted here can be read here: ErrLocked where no key of these opens it.
func (k *Keys) Check() error {
	text := []byte("a round trip")
	b, err := k.SealBytes(text)
	if err != nil {
		return err
	}
	got, err := k.OpenBytes(b)
	if err == nil && !bytes.Equal(got, text) {
		err = ErrDamaged
	}
	return err
}

// Is tells whether bytes begin as those of an object that is encrypted.
func Is(b []byte) bool { return bytes.HasPrefix(b, []byte("age-encryption.org/v1\n")) }

// SealBytes encrypts a small object.
func (k *Keys) SealBytes(b []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := age.Encrypt(&out, k.to...)
	if err == nil {
		_, err = w.Write(b)
	}
	if err == nil {
		err = w.Close()
	}
	return out.Bytes(), err
}

// OpenBytes decrypts a small object.
func (k *Keys) OpenBytes(b []byte) ([]byte, error) {
	f, err := k.Open(b, uint64(len(b)))
	if err != nil {
		return nil, err
	}
	out := make([]byte, f.plain)
	return out, f.Decrypt(out, 0, b[f.envelope:])
}
