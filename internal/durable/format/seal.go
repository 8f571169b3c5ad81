package format

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
)

// Number is the format's. A program reads those up to its own; a newer one is refused by name.
const Number = 1

// MaxDocument bounds a JSON object, in bytes: what a store puts whole.
const MaxDocument = 64 << 20

var (
	// ErrCorrupt marks bytes that are not what was written, or not of the place where they lie.
	ErrCorrupt = errors.New("corrupt")
	// ErrNewer marks what a newer program wrote.
	ErrNewer = errors.New("written by a newer replicad")
)

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrCorrupt, fmt.Errorf(format, args...))
}

// envelope is what every JSON object is: the body's SHA-256 is of its bytes as they lie there.
type envelope struct {
	Kind   string          `json:"replicad"`
	Format int             `json:"format"`
	SHA256 string          `json:"sha256"`
	Body   json.RawMessage `json:"body"`
}

// Seal writes a JSON object of a kind. Equal bodies make equal bytes.
func Seal(kind string, body any) ([]byte, error) {
	b, err := json.MarshalIndent(body, "", " ")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	sum := sha256.Sum256(b)
	var out bytes.Buffer
	fmt.Fprintf(&out, "{\"replicad\":%q,\"format\":%d,\"sha256\":%q,\"body\":%s}\n", kind, Number, hex.EncodeToString(sum[:]), b)
	if out.Len() > MaxDocument {
		return nil, fmt.Errorf("%s: %d bytes, at most %d", kind, out.Len(), MaxDocument)
	}
	return out.Bytes(), nil
}

// unseal reads what Seal wrote. Every flipped bit is found; unknown fields are refused, since a later format has a later number.
func unseal(kind string, b []byte, body any) error {
	if len(b) > MaxDocument {
		return corrupt("%s: %d bytes, at most %d", kind, len(b), MaxDocument)
	}
	var e envelope
	if err := strict(b, &e); err != nil {
		return corrupt("%s: %w", kind, err)
	}
	if e.Format > Number && e.Kind != "" {
		return fmt.Errorf("%s: %w: format %d, this program reads up to %d: use a newer one", kind, ErrNewer, e.Format, Number)
	}
	if e.Kind != kind || e.Format < 1 {
		return corrupt("%s: it is of kind %.32q, format %d", kind, e.Kind, e.Format)
	}
	if sum := sha256.Sum256(e.Body); hex.EncodeToString(sum[:]) != e.SHA256 {
		return corrupt("%s: SHA-256 differs", kind)
	}
	if err := strict(e.Body, body); err != nil {
		return corrupt("%s: %w", kind, err)
	}
	return nil
}

func strict(b []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(into); err != nil { // once refuses what is none of its fields, which the decoder passes over
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("bytes behind its end")
	}
	return once(b, reflect.TypeOf(into))
}

// Sum is the SHA-256 of an object, as it is written.
func Sum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
