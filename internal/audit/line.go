package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	format   = "replicad-audit 1" // of the first line of each file
	maxField = 512                // bytes of a value; longer ones are cut
	maxLine  = 64 << 10           // more than any line takes
	maxLines = 1 << 53            // of a chain; other readers of JSON have no larger whole numbers
)

// Fields say what an event is about.
type Fields map[string]string

// line is one line of the log. Prev is the SHA-256 of the line before, without its newline; zeros at the beginning of a chain.
type line struct {
	N       uint64 `json:"n"`
	T       string `json:"t"`
	Prev    string `json:"prev"`
	Format  string `json:"format,omitempty"`  // of the first line of a file
	Dropped uint64 `json:"dropped,omitempty"` // lines before this one that found no room, or a disk that took none
	Torn    *torn  `json:"torn,omitempty"`
	Event   string `json:"event"`
	Fields  Fields `json:"fields,omitempty"`
}

// torn names bytes between the line before and this one, which were being written when their daemon or host died.
type torn struct {
	Bytes  int    `json:"bytes"`
	SHA256 string `json:"sha256"`
}

var chainStart = strings.Repeat("0", 2*sha256.Size)

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// parse reads a line strictly, without its newline.
func parse(b []byte) (l line, err error) {
	if len(b) > maxLine {
		return l, fmt.Errorf("%d bytes, at most %d", len(b), maxLine)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return line{}, err
	}
	if d.InputOffset() != int64(len(b)) {
		return line{}, errors.New("more after its end")
	}
	if _, err := time.Parse(time.RFC3339Nano, l.T); err != nil {
		return line{}, err
	}
	if _, err := hex.DecodeString(l.Prev); err != nil || len(l.Prev) != len(chainStart) || l.N == 0 || l.N > maxLines || l.Event == "" {
		return line{}, errors.New("not a line of an audit log")
	}
	return l, nil
}

// clip cuts what others wrote to what a line has room for.
func (f Fields) clip() Fields {
	out := make(Fields, len(f))
	for k, v := range f {
		if len(v) > maxField {
			v = strings.ToValidUTF8(v[:maxField], "") + "..."
		}
		out[k] = v
	}
	return out
}
